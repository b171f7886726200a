"""The manifest of a FAWN-DS store, read from docs/formats/fawn-ds.md alone: no code is shared with fawn."""

import struct
from collections import namedtuple
from dataclasses import dataclass, field

from store_files import FRAMES_AT, Damage, check_header, fold, hash64, is_zero, mix, round_up, u32, u64

COMMITS_AT = 512
COMMIT_HEADER_BYTES = 32
EDIT_BYTES_MAX = 2 << 20
RING_END = b"\xff" * 20 + b"\x00"  # above every ring key

Seal = namedtuple("Seal", "length tombstones latest_expiry_ms numbers")
Sole = namedtuple("Sole", "first epoch base is_over")
ListedRun = namedtuple("ListedRun", "uuid length age")
Ancestor = namedtuple("Ancestor", "number since base cleared sole first end")


@dataclass
class Range:
    """A listed range: its keys, and the records that belong to it."""

    first: bytes
    end: bytes
    number: int = 0
    since: int = 0
    base: int = 0
    is_whole: bool = False
    cleared: int = 0
    sole: Sole = None
    lineage: list = field(default_factory=list)

    def bequeathed(self):
        """The lineage of a range that takes over all of its keys."""
        want(self.is_whole, "a range is split or merged that is not whole")
        own = Ancestor(self.number, self.since, self.base, self.cleared, self.sole, self.first, self.end)
        return ([] if self.cleared else self.lineage) + [own]

    def inherit(self, lineage):
        """Ancestors within the bounds; parts of one that meet are one."""
        for ancestor in lineage:
            first, end = max(ancestor.first, self.first), min(ancestor.end, self.end)
            if first >= end:
                continue
            ancestor = ancestor._replace(first=first, end=end)
            alike = [n for n, a in enumerate(self.lineage) if a == ancestor._replace(first=a.first, end=first)]
            if alike:
                self.lineage[alike[0]] = self.lineage[alike[0]]._replace(end=end)
            else:
                self.lineage.append(ancestor)


@dataclass
class Listed:
    """A listed segment."""

    uuid: bytes
    sequence: int
    stream: int
    seal: Seal = None
    is_sorted: bool = False


@dataclass
class State:
    """Result of all edits. A contradiction between edits is a `ValueError`."""

    store: bytes = None
    segment_bytes: int = 0
    secret: bytes = b""
    generation: int = 0
    ranges: dict = field(default_factory=dict)
    segments: dict = field(default_factory=dict)
    blobs: dict = field(default_factory=dict)
    ends: dict = field(default_factory=lambda: {0: (0, 0), 1: (0, 0)})
    checkpoints: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    indexes_deletes: bool = False
    clock: tuple = (0, 0)
    last_sequence: int = 0
    last_number: int = 0
    is_rewritten: bool = False

    def apply(self, tag, body):
        want(tag == 1 or self.store is not None, "the first edit is not the identity")
        edit = EDITS.get(tag)
        want(edit, f"edit tag {tag}")
        edit(self, body)

    def identity(self, body):
        want(self.store is None and len(body) in (40, 44), "a second identity, or one of another length")
        self.pointer_bits = u32(body, 40) if len(body) == 44 else 32
        want(self.pointer_bits in (32, 40), f"pointers of {self.pointer_bits} bits")
        self.store, self.segment_bytes, self.secret = body[:16], u32(body, 20), body[24:40]
        want(u32(body, 16) == 2, f"format {u32(body, 16)}")
        size = self.segment_bytes
        want(64 << 10 <= size <= 1 << 30 and size & size - 1 == 0, f"segments of {size} bytes")

    def begin_generation(self, body):
        (generation,) = struct.unpack("<I", body)
        want(generation > self.generation, "a generation falls")
        self.generation = generation

    def add_range(self, body):
        want(len(body) in (24, 44), "a range of another length")
        name, first, end = u32(body, 0), body[4:24], body[24:] or RING_END
        want(name not in self.ranges and first < end, "a range is listed twice, or ends before it begins")
        self.ranges[name] = Range(first, end)

    def drop_range(self, body):
        self.range_of(struct.unpack("<I", body)[0])
        del self.ranges[u32(body, 0)]

    def range_of(self, name):
        want(name in self.ranges, f"range {name} is not listed")
        return self.ranges[name]

    def add_segment(self, body):
        slot, uuid, sequence, stream = struct.unpack("<I16sQI", body)
        want(slot not in self.segments, "a slot is taken twice")
        want(slot < (1 << 36) // self.segment_bytes, "a slot that no pointer has")
        want(sequence > self.last_sequence and stream <= 1, "a sequence number falls, or an unknown stream")
        self.last_sequence = sequence
        self.segments[slot] = Listed(uuid, sequence, stream)

    def seal_segment(self, body):
        slot, length, tombstones, latest_ms = struct.unpack_from("<IIIQ", body)
        want(slot in self.segments and not self.segments[slot].seal, "a seal of a segment that is not open")
        want((len(body) - 20) % 24 == 0, "a seal of another length")
        numbers = list(struct.iter_unpack("<IIQQ", body[20:]))
        want(all(a[0] < b[0] for a, b in zip(numbers, numbers[1:])), "a seal's local numbers do not ascend")
        want(FRAMES_AT <= length <= self.segment_bytes, "a seal behind the segment's end")
        self.segments[slot].seal = Seal(length, tombstones, latest_ms, numbers)

    def drop_segment(self, body):
        slot, uuid = struct.unpack("<I16s", body)
        want(slot in self.segments and self.segments[slot].uuid == uuid, "a dropped segment is not listed")
        del self.segments[slot]

    def clear_range(self, body):
        name, version = struct.unpack("<IQ", body)
        listed = self.range_of(name)
        listed.cleared = max(listed.cleared, version)

    def set_blob(self, body):
        want(4 <= len(body) <= 4 + (64 << 10), "a blob of another length")
        self.blobs.pop(u32(body, 0), None)
        if len(body) > 4:
            self.blobs[u32(body, 0)] = body[4:]

    def begin_range(self, body):
        name, number, since, base = struct.unpack("<IIQQ", body)
        self.assign_number(number)
        listed = self.range_of(name)
        listed.number, listed.since, listed.base, listed.is_whole = number, since, base, False
        listed.cleared, listed.sole, listed.lineage = 0, None, []

    def assign_number(self, number):
        want(number > self.last_number, "a local number falls")
        self.last_number = number

    def range_is_whole(self, body):
        listed = self.range_of(struct.unpack("<I", body)[0])
        want(listed.number and not listed.is_whole, "a range is whole that has not begun")
        listed.is_whole = True

    def pad(self, body):
        want(len(body) <= 1024 and is_zero(body), "a pad that is not zero")

    def end_of_log(self, body):
        sequence, offset, stream = struct.unpack("<QII", body)
        want(stream <= 1 and (sequence, offset) >= self.ends[stream], "the end of the log falls")
        is_listed = any(s.sequence == sequence and s.stream == stream for s in self.segments.values())
        # A rewritten manifest may name a segment that was dropped before.
        want(is_listed or self.is_rewritten and sequence <= self.last_sequence, "the log ends in an unknown segment")
        self.ends[stream] = (sequence, offset)

    def set_clock(self, body):
        time_ms, mono_ms = struct.unpack("<QQ", body)
        want(time_ms >= self.clock[0], "expiry time falls")
        self.clock = (time_ms, mono_ms)

    def begin_sole_epoch(self, body):
        name, epoch, base = struct.unpack("<IIQ", body)
        listed = self.range_of(name)
        last = listed.sole
        want(listed.is_whole and (not base or base >> 36 < epoch), "a sole epoch begins in or below its base")
        want(not last or last.epoch < epoch and last.base <= base, "a sole epoch or its base falls")
        listed.sole = Sole(last.first if last and not last.is_over else epoch, epoch, base, False)

    def end_sole_epoch(self, body):
        name, base = struct.unpack("<IQ", body)
        listed = self.range_of(name)
        last = listed.sole
        want(last and not last.is_over and base >= last.base and base >> 36 <= last.epoch, "no such sole epoch ends")
        listed.sole = last._replace(base=base, is_over=True)

    def set_last_number(self, body):
        self.assign_number(struct.unpack("<I", body)[0])

    def split_range(self, body):
        parent, *heirs, since, base, boundary = struct.unpack("<IIIIIQQ20s", body)
        old = self.range_of(parent)
        lineage = old.bequeathed()
        want(old.first < boundary < old.end, "a range is split outside of its bounds")
        (left, right), numbers = heirs[::2], heirs[1::2]
        want(left != right and left not in self.ranges and right not in self.ranges, "a range is listed twice")
        del self.ranges[parent]
        for name, number, first, end in ((left, numbers[0], old.first, boundary), (right, numbers[1], boundary, old.end)):
            self.assign_number(number)
            self.ranges[name] = Range(first, end, number, since, base, True)
            self.ranges[name].inherit(lineage)

    def merge_ranges(self, body):
        left, right, into, number, since, base = struct.unpack("<IIIIQQ", body)
        lower, upper = self.range_of(left), self.range_of(right)
        want(lower.end == upper.first and into not in self.ranges, "ranges are merged that do not meet")
        lineage = lower.bequeathed() + upper.bequeathed()
        del self.ranges[left], self.ranges[right]
        self.assign_number(number)
        self.ranges[into] = Range(lower.first, upper.end, number, since, base, True)
        self.ranges[into].inherit(lineage)

    def set_lineage(self, body):
        listed = self.range_of(u32(body, 0))
        want(len(body) % 88 == 4, "a lineage of another length")
        listed.lineage = []
        for number, state, since, base, cleared, first_epoch, epoch, sole_base, first, end in struct.iter_unpack(
            "<IIQQQIIQ20s20s", body[4:]
        ):
            want(state <= 2 and (state or not (first_epoch or epoch or sole_base)), "an unknown state of sole epochs")
            end = RING_END if is_zero(end) else end
            want(number < listed.number and listed.first <= first < end <= listed.end, "an ancestor out of bounds")
            sole = Sole(first_epoch, epoch, sole_base, state == 2) if state else None
            listed.lineage.append(Ancestor(number, since, base, cleared, sole, first, end))

    def add_checkpoint(self, body):
        uuid, length = struct.unpack("<16sQ", body)
        want(uuid not in [known for known, _ in self.checkpoints], "a checkpoint is listed twice")
        self.checkpoints.append((uuid, length))

    def drop_checkpoint(self, body):
        left = [(uuid, length) for uuid, length in self.checkpoints if uuid != body]
        want(len(left) == len(self.checkpoints) - 1, "a dropped checkpoint is not listed")
        self.checkpoints = left

    def add_run(self, body):
        run = ListedRun(*struct.unpack("<16sQQ", body))
        want(self.indexes_deletes, "a run is listed before deletes have index entries")
        want(run.uuid not in [known.uuid for known in self.runs], "a run is listed twice")
        self.runs.append(run)

    def drop_run(self, body):
        left = [run for run in self.runs if run.uuid != body]
        want(len(left) == len(self.runs) - 1, "a dropped run is not listed")
        self.runs = left

    def sort_segment(self, body):
        slot, uuid = struct.unpack("<I16s", body)
        listed = self.segments.get(slot)
        want(listed and listed.uuid == uuid and listed.seal, "a sorted segment is not listed, or not sealed")
        want(not listed.is_sorted, "a segment is sorted twice")
        listed.is_sorted = True

    def index_deletes(self, body):
        want(not body, "an edit 26 with a body")
        self.indexes_deletes = True


EDITS = {
    1: State.identity,
    2: State.begin_generation,
    3: State.add_range,
    4: State.drop_range,
    5: State.add_segment,
    6: State.seal_segment,
    7: State.drop_segment,
    8: State.clear_range,
    9: State.set_blob,
    10: State.begin_range,
    11: State.range_is_whole,
    12: State.pad,
    13: State.end_of_log,
    14: State.set_clock,
    15: State.begin_sole_epoch,
    16: State.end_sole_epoch,
    17: State.set_last_number,
    18: State.add_checkpoint,
    19: State.drop_checkpoint,
    20: State.split_range,
    21: State.merge_ranges,
    22: State.set_lineage,
    23: State.add_run,
    24: State.drop_run,
    25: State.sort_segment,
    26: State.index_deletes,
}


def want(holds, why):
    if not holds:
        raise ValueError(why)


def read_commit(data, at, salt):
    """The commit at `at`: its end, the length that was synced before it, its edits; `None` if there is none."""
    if data[at : at + 4] != b"FwnM" or u32(data, at + 4) > EDIT_BYTES_MAX:
        return None
    stop = at + COMMIT_HEADER_BYTES + u32(data, at + 4)
    end = at + round_up(stop - at, 16)
    if end > len(data) or u64(data, at + 8) != hash64(data[at + 16 : stop]) ^ salt or u64(data, at + 16) != at:
        return None
    return (end, u64(data, at + 24), data[at + COMMIT_HEADER_BYTES : stop]) if is_zero(data[stop:end]) else None


def edits(data):
    at = 0
    while at < len(data):
        want(at + 8 <= len(data) and is_zero(data[at + 1 : at + 4]), "an edit has no header")
        end = at + 8 + u32(data, at + 4)
        want(end <= len(data), "an edit is cut short")
        yield data[at], data[at + 8 : end]
        at = end


def read_manifest(directory):
    """The state, and the length that a later commit proves synced: damage below it is found for certain."""
    file = "manifest"
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise Damage(file, 0, f"not readable: {error}") from error
    check_header(file, data, b"FAWN-MAN", [(12, 16), (40, 504)])
    salt, state = mix(fold(data[16:32]), u64(data, 32)), State(is_rewritten=u64(data, 32) > 0)
    at, certified = COMMITS_AT, 0
    while commit := read_commit(data, at, salt):
        end, synced, content = commit
        if synced > at:
            raise Damage(file, at, "a commit says that bytes behind it were synced")
        try:
            for tag, body in edits(content):
                state.apply(tag, body)
        except (ValueError, struct.error) as error:
            raise Damage(file, at, f"contradiction: {error}") from error
        at, certified = end, max(certified, synced)
    if state.store != data[16:32]:
        raise Damage(file, COMMITS_AT, "no first commit, or one of another store")
    later = range(at, len(data), 16) if not is_zero(data[at:]) else ()
    for place in later:
        commit = read_commit(data, place, salt) if data[place : place + 4] == b"FwnM" else None
        if commit and commit[1] > at:
            raise Damage(file, at, f"no commit, but the one at byte {place} says that {commit[1]} bytes were synced")
    return state, certified
