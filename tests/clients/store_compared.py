"""Comparison of a store's files, as the independent reader of the format pages sees them, with what fawn says of them."""

import json
import subprocess
from pathlib import Path

from read_store import dump_line, read_directory
from store_checkpoints import checkpoint_name
from store_files import FRAMES_AT, Damage, read_segments
from store_manifest import read_manifest
from store_runs import Run

DUMP_LIMIT_S = 60


def stores_of(directory):
    """Directories of the stores below `directory`."""
    return sorted(path.parent for path in Path(directory).rglob("manifest"))


def dump_of(binary, directory):
    """The middle lines of a dump, sorted, and the time for which it holds."""
    done = subprocess.run([binary, "dump", directory], capture_output=True, timeout=DUMP_LIMIT_S)
    assert done.returncode == 0, f"fawn dump {directory}: {done.returncode}\n{done.stderr.decode()}"
    header, *lines, end = done.stdout.splitlines(keepends=True)
    assert json.loads(end)["complete"], end
    return sorted(lines), json.loads(header)["time_ms"]


def compare(binary, directory):
    """Reads a directory in both ways. Returns its keys, and the counts of what its files have."""
    lines, time_ms = dump_of(binary, str(directory))
    records, seen = read_directory(directory, time_ms)
    read = sorted(dump_line(key, record) for key, record in records.items())
    if read != lines:
        only_read, only_dumped = sorted(set(read) - set(lines)), sorted(set(lines) - set(read))
        raise AssertionError(f"{directory}: only the reader has {only_read[:2]}, only the dump {only_dumped[:2]}")
    return records, seen


def certain_bytes(store):
    """A file of every kind: its name, and the part of it, begin and end, in which any damage is found for certain."""
    state, certified = read_manifest(store)
    segments = read_segments(store, state).values()
    parts = {"manifest": ("manifest", 0, certified)}
    for segment in segments:
        sequence, stream, seal = segment.listed.sequence, segment.listed.stream, segment.listed.seal
        evidence = [other.ends.get(sequence, 0) for other in segments if other.listed.stream == stream]
        end_sequence, end = state.ends[stream]
        evidence += [end] if end_sequence == sequence else []
        # A kill may leave a tail file with frames that other segments show to be synced: it mends them.
        end = seal.length if seal else min(max(evidence), segment.tail_from)
        kind = f"{'sealed' if seal else 'open'} segment of stream {stream}"
        if end > FRAMES_AT:
            parts[kind] = (segment.file, 0, end)
    for uuid, length in state.checkpoints:
        parts["checkpoint"] = (checkpoint_name(uuid), 0, length)
    for listed in state.runs:
        run = Run(store, listed, state)
        parts |= {kind: (run.file, begin, end) for kind, (begin, end) in run.parts.items()}
    return parts


def report_of(directory):
    """The file that the reader reports as damaged, and why."""
    try:
        read_directory(directory, 0)
    except Damage as damage:
        return damage.file, str(damage)
    return None, "no report"


def flip_bits(binary, store, rolls, flips):
    """Flips a bit in a file of every kind, one at a time: the reader must report the file."""
    flipped = certain_bytes(store)
    for kind, (file, begin, end) in sorted(flipped.items()):
        path = store / file
        intact = path.read_bytes()
        headers = [rolls.randrange(begin, min(end, 512))] if begin == 0 else []
        for at in headers + [rolls.randrange(begin, end) for _ in range(flips)]:
            changed = bytearray(intact)
            changed[at] ^= 1 << rolls.randrange(8)
            path.write_bytes(changed)
            found, report = report_of(store)
            assert found == file, f"bit of byte {at} of {file} ({kind}) flipped: {report}"
            if kind != "checkpoint":
                # A checkpoint repeats what the log says: its damage is a note.
                checked = subprocess.run([binary, "check", store], capture_output=True, timeout=DUMP_LIMIT_S)
                assert checked.returncode != 0, f"bit of byte {at} of {file} ({kind}) flipped: fawn check reports nothing"
        path.write_bytes(intact)
    return list(flipped)
