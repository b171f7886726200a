"""Checkpoints of a FAWN-DS store, read from docs/formats/fawn-ds.md alone, and compared with the log they stand for."""

import struct
from collections import Counter, namedtuple

from store_files import (
    CLEAR,
    FOREGROUND,
    FRAMES_AT,
    M64,
    MARK,
    PUT,
    ROLLBACK,
    SURVIVORS,
    TOMBSTONE,
    Damage,
    check_header,
    expiries_of,
    fold,
    sip,
    u32,
    u64,
)
from store_pieces import Content, read_pieces

STEPS = 64  # of record lengths

Entry = namedtuple("Entry", "first depth fragment pointer")
RangeEnd = namedtuple("RangeEnd", "number committed cleared complete_above kept")
Kept = namedtuple("Kept", "version pointer length sequence")
Share = namedtuple(
    "Share", "number has_rollback puts entries entry_bytes newest died_by lowest_put hides_below clears"
)
Part = namedtuple("Part", "slot sequence tombstone_bytes record_bytes lengths expiry_base expiries shares voids")


def checkpoint_name(uuid):
    return f"checkpoint-{fold(uuid):016x}.fawn"


class Checkpoint:
    """A listed checkpoint. `positions` are where each stream's log continues."""

    def __init__(self, directory, uuid, length, state):
        self.file = checkpoint_name(uuid)
        try:
            with open(directory / self.file, "rb") as opened:
                data = opened.read(length)
        except OSError as error:
            raise Damage(self.file, 0, f"listed, but not readable: {error}") from error
        check_header(self.file, data, b"FAWN-CKP", [(60, 64), (76, 504), (512, FRAMES_AT)])
        if u32(data, 12) != 2:
            raise Damage(self.file, 12, f"content of layout {u32(data, 12)}")
        if data[16:32] != uuid or data[32:48] != state.store or len(data) != length:
            raise Damage(self.file, 16, "another checkpoint than the manifest lists, or a part of it")
        self.positions = {FOREGROUND: (u64(data, 48), u32(data, 56)), SURVIVORS: (u64(data, 64), u32(data, 72))}
        content = Content(self.file, read_pieces(self.file, data, FRAMES_AT, fold(uuid)), state.pointer_bits)
        numbers = content.count()
        self.entries = dict(self.read_cells(content) for _ in range(numbers))
        self.ranges = {end.number: end for end in (self.read_range(content) for _ in range(numbers))}
        self.parts, self.partial = (
            [self.read_part(content) for _ in range(content.count())] for _ in ("before", "partly")
        )
        if content.at != len(content.data) or list(self.ranges) != list(self.entries) or len(self.partial) > 1:
            raise Damage(self.file, FRAMES_AT, "the parts of the content contradict each other")

    def read_cells(self, content):
        number, pages = content.take("II")
        first, entries = 0, []
        while first < 2**64:
            (head,) = content.take("H")
            depth = head >> 10
            if not depth or first % (1 << 64 - depth) or depth < pages.bit_length() - 1:
                raise Damage(self.file, FRAMES_AT, "a cell does not begin where the one before ends")
            fragments, pointers = content.columns(head & 1023)
            if not all(fragments):
                raise Damage(self.file, FRAMES_AT, "an entry without a fragment")
            entries += (Entry(first, depth, *entry) for entry in zip(fragments, pointers))
            first += 1 << 64 - depth
        return number, entries

    def read_range(self, content):
        number, committed, cleared, complete_above = content.take("IQQQ")
        kept = [
            Kept(*content.take("Q"), content.pointer(), *content.take("IQ"))
            for _ in ("retransmission", "results")
            for _ in range(content.count())
        ]
        return RangeEnd(number, committed, cleared, complete_above, kept)

    def read_part(self, content):
        slot, sequence, tombstone_bytes, record_bytes = content.take("IQQQ")
        lengths = content.items("II")
        (expiry_base,) = content.take("Q")
        expiries = content.items("II")
        shares = [Share(*share) for share in content.items("IIQQQQQQQQ")]
        voids = content.items("IQQ")
        return Part(slot, sequence, tombstone_bytes, record_bytes, lengths, expiry_base, expiries, shares, voids)

    def wrong(self, why):
        return Damage(self.file, FRAMES_AT, why)

    def records(self, state, segments):
        """The records of the entries that count, by local number, as many as parts 3 and 4 say."""
        unit_bits = (state.segment_bytes // 16).bit_length() - 1
        at = {slot: segment.by_offset() for slot, segment in segments.items()}
        found, counts, lengths = {}, Counter(), Counter()
        ancestors = {ancestor.number for listed in state.ranges.values() for ancestor in listed.lineage}
        for number, entries in self.entries.items():
            found[number] = {}
            for entry in entries:
                slot, offset = entry.pointer >> unit_bits, (entry.pointer & (1 << unit_bits) - 1) * 16
                segment = segments.get(slot)
                if not segment or (segment.listed.sequence, offset) >= self.positions[segment.listed.stream]:
                    continue
                if segment.listed.is_sorted:
                    continue  # The runs have its records, or later ones.
                record = at[slot].get(offset)
                is_own = record and (record.number == number or record.number in ancestors)
                kinds = (PUT, TOMBSTONE) if state.indexes_deletes else (PUT,)
                if not is_own or record.kind not in kinds:
                    raise self.wrong(f"an entry points to byte {offset} of {segment.file}, which has no such record")
                if not fits(entry, sip(state.secret, record.key)):
                    raise self.wrong(f"an entry has other hash bits than its key at byte {offset} of {segment.file}")
                if record.key in found[number]:
                    raise self.wrong(f"two entries of the key {record.key!r}")
                found[number][record.key] = record
                counts[slot, number] += 1
                lengths[slot, number] += record.bytes
        self.check_counts(segments, counts, lengths)
        return found

    def check_counts(self, segments, counts, lengths):
        parts = [part for part in self.parts + self.partial if self.is_listed(part, segments)]
        for part in (part for part in parts if not segments[part.slot].listed.is_sorted):
            for share in part.shares:
                place = (part.slot, share.number)
                entries, entry_bytes = counts.pop(place, 0), lengths.pop(place, 0)
                if (entries, entry_bytes) != (share.entries, share.entry_bytes):
                    said = f"{share.entries} entries of {share.entry_bytes} B"
                    raise self.wrong(f"{entries} entries of {entry_bytes} B point to slot {part.slot}, not {said}")
        before = {slot for slot, s in segments.items() if s.listed.sequence < self.positions[s.listed.stream][0]}
        if counts or before - {part.slot for part in parts}:
            raise self.wrong("segments before the position are missing")
        if any(not segments[slot].listed.seal for slot in before):
            raise self.wrong("a segment before the position is not sealed")

    def is_listed(self, part, segments):
        return part.slot in segments and segments[part.slot].listed.sequence == part.sequence

    def check_facts(self, state, segments):
        """Compares all that parts 2 and 3 repeat of the segments' records."""
        listed = {r.number: {a.number for a in r.lineage} for r in state.ranges.values() if r.is_whole}
        for part in self.parts:
            if not self.is_listed(part, segments):
                continue
            segment = segments[part.slot]
            self.check_lengths(state, segment, part)
            for share in part.shares:
                own = [r for r in segment.records if r.number == share.number]
                if share.number not in listed:
                    continue
                if any(r.number in listed[share.number] for r in segment.records):
                    continue  # Records of ancestors may be counted here, or under their own number.
                puts = [r.version for r in own if r.kind == PUT]
                clears = max((r.version for r in own if r.kind == CLEAR), default=0)
                rolls_back = int(any(r.kind == ROLLBACK for r in own))
                found, said = (len(puts), min(puts, default=M64)), (share.puts, share.lowest_put)
                # Tombstones with index entries are counted as puts. A sorted segment has none left.
                is_sorted = segment.listed.is_sorted and (said, share.entries) == ((0, M64), 0)
                is_counted = state.indexes_deletes and said[0] >= found[0] and said[1] <= found[1] or is_sorted
                if (clears, rolls_back) != (share.clears, share.has_rollback) or found != said and not is_counted:
                    found += (clears, rolls_back)
                    raise self.wrong(f"slot {part.slot} has records of {found} under {share.number}, not {share}")
        self.check_kept(state, segments)

    def check_lengths(self, state, segment, part):
        records = [r for r in segment.records if r.kind not in (MARK, ROLLBACK)]
        steps = Counter(min((record.bytes - 1) // 256, STEPS - 1) for record in records)
        found = (sum(record.bytes for record in records), sorted(steps.items()))
        tombstone_bytes = sum(record.bytes for record in records if record.kind == TOMBSTONE)
        is_counted = part.tombstone_bytes < tombstone_bytes and state.indexes_deletes
        if found != (part.record_bytes, part.lengths) or part.tombstone_bytes != tombstone_bytes and not is_counted:
            raise self.wrong(f"slot {part.slot} has records of {found}, tombstones of {tombstone_bytes} B, not {part[2:5]}")
        expiries = [step for step in enumerate(expiries_of(records, part.expiry_base)) if step[1]]
        if expiries != part.expiries:
            raise self.wrong(f"slot {part.slot} has records that expire of {expiries}, not {part.expiries}")

    def check_kept(self, state, segments):
        unit_bits = (state.segment_bytes // 16).bit_length() - 1
        at = {slot: segment.by_offset() for slot, segment in segments.items()}
        for kept in (kept for end in self.ranges.values() for kept in end.kept):
            slot, offset = kept.pointer >> unit_bits, (kept.pointer & (1 << unit_bits) - 1) * 16
            if slot in segments and segments[slot].listed.sequence == kept.sequence:
                here = at[slot].get(offset)
                if not here or (here.version, here.bytes) != (kept.version, kept.length):
                    raise self.wrong(f"{kept} is kept, but {here} is at byte {offset} of slot {slot}")


def fits(entry, hash_of_key):
    """Whether the key's hash is in the entry's cell, and has the bits of its fragment."""
    own_bits = 15 - ((entry.fragment & -entry.fragment).bit_length() - 1)
    below = (hash_of_key << entry.depth & M64) >> 48
    shift = 16 - own_bits
    in_cell = hash_of_key >> 64 - entry.depth == entry.first >> 64 - entry.depth
    return in_cell and below >> shift == entry.fragment >> shift
