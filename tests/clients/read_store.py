"""An independent reader of FAWN's files, written from docs/formats alone: no code is shared with fawn.

read_store.py DIR [TIME_MS]      e.g. read_store.py /tmp/k/node-1 | diff - <(fawn dump /tmp/k/node-1 | sed '1d;$d' | LC_ALL=C sort)

Prints the keys that live at TIME_MS (default: now) as the middle lines of a dump, sorted: records that wait for a commit
mark count too. Reads everything: a byte that
contradicts the format pages, a checkpoint that disagrees with the log included, is reported with its file and offset,
and ends the reader with exit code 1.
"""

import base64
import sys
import time
import tomllib
from collections import deque
from pathlib import Path

from store_checkpoints import Checkpoint, checkpoint_name
from store_files import (
    CLEAR,
    FLAGS,
    FOREGROUND,
    FRAMES_AT,
    M64,
    MARK,
    PUT,
    RESULT,
    ROLLBACK,
    SURVIVORS,
    TOMBSTONE,
    Damage,
    hash64,
    read_segments,
    ring_key_of,
    u64,
)
from store_manifest import read_manifest
from store_runs import Runs


class RangeContent:
    """Records of a range that count, by key, the newest of each; `pending` are those that wait for a commit mark."""

    def __init__(self, listed):
        self.listed, self.newest, self.pending = listed, {}, deque()
        self.traces = {}  # newest records of sorted segments
        self.cleared, self.has_marks = listed.cleared, False

    def count(self, record):
        if record.kind == CLEAR:
            self.cleared = max(self.cleared, record.version)
        elif record.kind in (PUT, TOMBSTONE):
            known = self.newest.get(record.key)
            # Of two copies, the one in the log counts.
            if not known or (known.version, not known.in_runs) < (record.version, not record.in_runs):
                self.newest[record.key] = record
            trace = self.traces.get(record.key)
            if record.in_runs and (not trace or trace.version < record.version):
                self.traces[record.key] = record

    def commit_through(self, version):
        # Pending versions ascend: a range's history is in the order of its log.
        while self.pending and self.pending[0].version <= version:
            self.count(self.pending.popleft())

    def take(self, record):
        """The next record of the foreground."""
        sole, version = self.listed.sole, record.version
        if record.kind == MARK:
            self.has_marks = True
            self.commit_through(version)
        elif record.kind == ROLLBACK:
            while self.pending and self.pending[-1].version > version:
                self.pending.pop()
        elif version <= self.listed.base:
            self.count(record)
        elif sole and sole.first <= version >> 36 <= sole.epoch and (not sole.is_over or version <= sole.base):
            self.commit_through(version)
            self.count(record)
        elif self.has_marks:
            self.pending.append(record)
        else:
            self.count(record)

    def finish(self, committed=0):
        """All of the log is read: commits what the manifest or a checkpoint says is committed."""
        self.commit_through(max(self.listed.sole.base if self.listed.sole else 0, committed))

    def live(self, time_ms, runs):
        """Live records without their places: of two copies, either counts."""
        of_log = {key: record for key, record in self.newest.items() if record.version > self.cleared}
        of_runs = runs.newest(self.listed, self.cleared)
        found = {key: record for key, (_, record) in of_runs.items()}
        for key, record in of_log.items():
            known = found.get(key)
            if known and known.version > record.version and not record.in_runs:
                run = of_runs[key][0]
                raise Damage(run.file, known.at, f"newer than the record of {key!r} in the log, which counts")
            if not record.in_runs:
                found[key] = record
        return {
            key: (r.version, r.value, r.flags, r.expiry_ms)
            for key, r in found.items()
            if r.kind == PUT and not 0 < r.expiry_ms <= time_ms
        }


def histories_of(state):
    """Ranges that were split or merged, by number: their records are read as they were written."""
    ancestors = {ancestor.number: ancestor for listed in state.ranges.values() for ancestor in listed.lineage}
    return {number: RangeContent(ancestor) for number, ancestor in ancestors.items()}


def inherit(state, contents, histories):
    """Counts the records of each lineage for the range that has their keys now. All of them are committed."""
    for history in histories.values():
        history.finish(M64)
    for content in contents.values():
        for ancestor in content.listed.lineage:
            history = histories[ancestor.number]
            for key, record in [*history.newest.items(), *history.traces.items()]:
                if ancestor.first <= ring_key_of(state.secret, key) < ancestor.end and record.version > ancestor.cleared:
                    content.count(record)


def read_log(state, segments, contents, histories, positions):
    """Counts the records behind the positions: the survivors first, then the foreground in its order."""
    by_number = {content.listed.number: content for content in contents.values() if content.listed.is_whole}
    by_number.update(histories)
    for stream in (SURVIVORS, FOREGROUND):
        of_stream = [segment for segment in segments.values() if segment.listed.stream == stream]
        for segment in sorted(of_stream, key=lambda segment: segment.listed.sequence):
            sequence = segment.listed.sequence
            for record in segment.records:
                content = by_number.get(record.number)
                if not content or (sequence, record.at) < positions[stream]:
                    continue
                if sequence < content.listed.since and stream == FOREGROUND:
                    raise Damage(segment.file, record.at, "a record under a number before it was assigned")
                if stream == FOREGROUND:
                    content.take(record)
                elif record.kind in (PUT, TOMBSTONE):
                    content.count(record)
                else:
                    raise Damage(segment.file, record.at, "a survivor that is neither a put nor a tombstone")
    inherit(state, contents, histories)


def contents_of(state):
    return {name: RangeContent(listed) for name, listed in state.ranges.items()}


def check_checkpoint(checkpoint, state, segments, runs, expected, time_ms, traces):
    """A checkpoint, the log behind it and the traces of sorted segments must say the same as all of the log."""
    checkpoint.check_facts(state, segments)
    records, contents, committed = checkpoint.records(state, segments), contents_of(state), {}
    for name, content in contents.items():
        end = checkpoint.ranges.get(content.listed.number)
        if not end or not content.listed.is_whole:
            continue
        committed[name] = end.committed
        if content.listed.cleared <= end.cleared:
            content.newest = records[end.number]
        content.cleared = max(content.cleared, end.cleared)
    histories = histories_of(state)
    for number, history in histories.items():
        end = checkpoint.ranges.get(number)
        if end and history.listed.cleared <= end.cleared:
            history.newest = records[number]
    read_log(state, segments, contents, histories, checkpoint.positions)
    for name, content in contents.items():
        content.finish(committed.get(name, 0))
        for trace in traces[name].values():
            content.count(trace)
        found = content.live(time_ms, runs)
        if found != expected[name]:
            keys = found.keys() | expected[name].keys()
            differing = [key for key in keys if found.get(key) != expected[name].get(key)]
            raise checkpoint.wrong(f"{len(differing)} keys of range {name} differ from the log's, as {differing[0]!r}")


def check_orphans(directory, state, segments):
    """An unlisted segment of this store that is newer than all listed ones and has a frame: the manifest lost its end."""
    listed = {segment.file for segment in segments.values()} | {checkpoint_name(uuid) for uuid, _ in state.checkpoints}
    for path in sorted(directory.glob("segment-*.fawn")):
        data = path.read_bytes() if path.name not in listed else b""
        of_store = data[:8] == b"FAWN-SEG" and data[32:48] == state.store and u64(data, 504) == hash64(data[:504])
        if of_store and u64(data, 48) > state.last_sequence and data[FRAMES_AT : FRAMES_AT + 4] == b"FwnF":
            raise Damage(path.name, FRAMES_AT, "an unlisted segment with data: the manifest lost its end")


def read_store(directory, time_ms, seen):
    """The live records of one store by key, pending ones too, as a dump has them. `seen` counts what its files have."""
    state, seen["manifest"] = read_manifest(directory)
    segments = read_segments(directory, state)
    runs = Runs(directory, state)
    check_orphans(directory, state, segments)
    time_ms = max(time_ms, state.clock[0])
    contents = contents_of(state)
    read_log(state, segments, contents, histories_of(state), {FOREGROUND: (0, 0), SURVIVORS: (0, 0)})
    for content in contents.values():
        content.finish()
    records = {name: content.live(time_ms, runs) for name, content in contents.items()}
    traces = {name: content.traces for name, content in contents.items()}
    for uuid, length in state.checkpoints:
        checkpoint = Checkpoint(directory, uuid, length, state)
        check_checkpoint(checkpoint, state, segments, runs, records, time_ms, traces)
    seen["pending"] = seen.get("pending", 0) + sum(len(content.pending) for content in contents.values())
    for name, content in contents.items():
        content.finish(M64)
        records[name], listed = content.live(time_ms, runs), content.listed
        for key in records[name]:
            if not listed.first <= ring_key_of(state.secret, key) < listed.end:
                raise Damage("manifest", 0, f"the key {key!r} lies outside of its range {name}")
    describe(state, segments, runs, time_ms, seen)
    return state, {key: record for of_range in records.values() for key, record in of_range.items()}


def describe(state, segments, runs, time_ms, seen):
    """Counts of what a test wants to have read."""
    logs = [record for segment in segments.values() for record in segment.records]
    kinds = {"puts": PUT, "tombstones": TOMBSTONE, "results": RESULT, "clears": CLEAR, "marks": MARK, "rollbacks": ROLLBACK}
    for name, kind in kinds.items():
        seen[name] = seen.get(name, 0) + sum(record.kind == kind for record in logs)
    seen["expired"] = seen.get("expired", 0) + sum(0 < record.expiry_ms <= time_ms for record in logs)
    seen["flags"] = seen.get("flags", 0) + sum(record.flags > 0 for record in logs)
    seen["longest"] = max([seen.get("longest", 0)] + [len(record.value) for record in logs])
    survivors = [segment for segment in segments.values() if segment.listed.stream == SURVIVORS]
    seen["survivors"] = seen.get("survivors", 0) + sum(len(segment.records) for segment in survivors)
    seen["dropped"] = seen.get("dropped", 0) + state.last_sequence - len(segments)
    seen["checkpoints"] = seen.get("checkpoints", 0) + len(state.checkpoints)
    seen["sole"] = seen.get("sole", 0) + sum(listed.sole is not None for listed in state.ranges.values())
    ancestors = [len(listed.lineage) for listed in state.ranges.values()]
    seen["ancestors"] = seen.get("ancestors", 0) + sum(ancestors)
    seen["runs"] = seen.get("runs", 0) + len(runs.runs)
    seen["run_records"] = seen.get("run_records", 0) + sum(len(run.records) for run in runs.runs)
    seen["run_tombstones"] = seen.get("run_tombstones", 0) + sum(
        placed.record.kind == TOMBSTONE for run in runs.runs for placed in run.records
    )
    seen["sorted_segments"] = seen.get("sorted_segments", 0) + sum(s.listed.is_sorted for s in segments.values())
    seen["begun"] = seen.get("begun", 0) + max(0, state.last_number - len(state.ranges))


def read_layout(directory):
    """The number of shards and their secret; `None` if the directory is a store."""
    path = directory / "layout.toml"
    if not path.exists():
        return None
    data = path.read_bytes()
    try:
        layout = tomllib.loads(data.decode())
        body = data[: data.rindex(b"checksum = ")]
    except ValueError as error:
        raise Damage("layout.toml", 0, str(error)) from error
    if layout.get("format") != 1 or layout.get("checksum") != f"{hash64(body):016x}":
        raise Damage("layout.toml", 0, "another format, or the checksum differs")
    lines = ["# What the shards of this FAWN data directory share. Not to be edited; keep it with the data.", "format = 1"]
    lines += [f"shards = {layout['shards']}", f'secret = "{layout["secret"]}"', f'stores = "{layout["stores"]}"']
    if body != "".join(line + "\n" for line in lines).encode() or data != body + b'checksum = "%016x"\n' % hash64(body):
        raise Damage("layout.toml", 0, "other lines than the format page's")
    return layout["shards"], bytes.fromhex(layout["secret"])


def read_directory(directory, time_ms):
    """All live records of a data directory by key, and the counts of what its files have."""
    layout, seen = read_layout(directory), {}
    if not layout:
        return read_store(directory, time_ms, seen)[1], seen
    shards, secret = layout
    records = {}
    for shard in range(shards):
        name = f"shard-{shard}"
        try:
            state, of_shard = read_store(directory / name, time_ms, seen)
        except Damage as damage:
            raise Damage(f"{name}/{damage.file}", damage.at, damage.why) from damage
        first = -(-shard * 2**32 // shards)
        if list(state.ranges) != [shard] or state.secret != secret:
            raise Damage(f"{name}/manifest", 0, "a store of another directory or shard")
        if int.from_bytes(state.ranges[shard].first, "big") != first << 128:
            raise Damage(f"{name}/manifest", 0, "a range that does not begin where its shard's does")
        records |= of_shard
    return records, seen


def text(data):
    """The text of a key or value in a dump, or `None` if it is written as base64."""
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        return None
    if any(byte < 32 and byte not in b"\t\n\r" for byte in data):
        return None
    for plain, escaped in ("\\", "\\\\"), ('"', '\\"'), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"):
        decoded = decoded.replace(plain, escaped)
    return decoded


def dump_line(key, record):
    _, value, flags, expiry_ms = record
    members = []
    for name, data in ("key", key), ("value", value):
        plain = text(data)
        encoded = (name, plain) if plain is not None else (f"{name}_base64", base64.b64encode(data).decode())
        members.append('"%s":"%s"' % encoded)
    members += [f'"flags":{flags}'] if flags else []
    members += [f'"expires_at_ms":{expiry_ms}'] if expiry_ms else []
    return ("{" + ",".join(members) + "}\n").encode()


def main():
    directory, *time_ms = sys.argv[1:]
    try:
        records, _ = read_directory(Path(directory), int(time_ms[0]) if time_ms else time.time_ns() // 1_000_000)
    except Damage as damage:
        print(f"DAMAGE {damage}", file=sys.stderr)
        sys.exit(1)
    sys.stdout.buffer.write(b"".join(sorted(dump_line(key, record) for key, record in records.items())))


if __name__ == "__main__":
    main()
