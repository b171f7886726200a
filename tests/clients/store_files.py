"""FAWN-DS segments, frames and records, read from docs/formats/fawn-ds.md alone: no code is shared with fawn."""

import functools
import struct
from collections import namedtuple

import xxhash

FRAMES_AT = 4096
FRAME_HEADER_BYTES = 64
UNIT_BYTES = 16
TAIL_UNIT_BYTES = 64
M64 = 2**64 - 1
EXPIRY_STEPS = 8
FOREGROUND, SURVIVORS = 0, 1
PUT, TOMBSTONE, RESULT, CLEAR, MARK, ROLLBACK = range(1, 7)
EXPIRY, FLAGS, TAG, SHORT_RESULT, BATCH, WIDE_RESULT = (1 << bit for bit in range(6))

Frame = namedtuple("Frame", "at end record_bytes count generation synced chain")
Record = namedtuple("Record", "at bytes kind number version expiry_ms flags key value in_batch in_runs", defaults=[False])


class Damage(Exception):
    """Bytes that contradict the format page: file, offset and reason."""

    def __init__(self, file, at, why):
        super().__init__(f"{file}: byte {at}: {why}")
        self.file, self.at, self.why = file, at, why


def hash64(data):
    return xxhash.xxh3_64_intdigest(data)


def mix(a, b):
    z = (a ^ b * 0x9E3779B97F4A7C15) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def fold(uuid):
    return mix(*struct.unpack("<QQ", uuid))


def checksum32(data, folded, at):
    h = hash64(data) ^ mix(folded, at)
    return (h ^ h >> 32) & 0xFFFFFFFF


def u16(data, at):
    return int.from_bytes(data[at : at + 2], "little")


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def round_up(number, unit):
    return -(-number // unit) * unit


def is_zero(data):
    return data.count(0) == len(data)


def check_header(file, data, magic, zeros):
    """Checks the part that the headers of manifest, segments and checkpoints share; `zeros` are its zero fields."""
    if len(data) < 512 or data[:8] != magic:
        raise Damage(file, 0, f"no header that begins with {magic.decode()}")
    if u64(data, 504) != hash64(data[:504]):
        raise Damage(file, 0, "the header's checksum differs")
    if u32(data, 8) != 2:
        raise Damage(file, 8, f"format {u32(data, 8)}")
    for begin, end in zeros:
        if not is_zero(data[begin:end]):
            raise Damage(file, begin, "a zero field of the header is not zero")


def read_record(data, at, end, folded):
    """The record at `at` of a segment's bytes, or the reason why there is none."""
    if at + 24 > end:
        return "a record is cut short"
    value_bytes, kind, key_bytes = u32(data, at + 4) & 0xFFFFFF, data[at + 7], u16(data, at + 8)
    bits, number, version = data[at + 10], u32(data, at + 12), u64(data, at + 16)
    if not PUT <= kind <= ROLLBACK or bits >> 6 or data[at + 11]:
        return f"kind {kind}, extensions {bits:#x}"
    place, expiry_ms, flags = at + 24, 0, 0
    if bits & EXPIRY:
        expiry_ms, place = u64(data, place), place + 8
    if bits & FLAGS:
        flags, place = u32(data, place), place + 4
    if bits & TAG:
        place += 16
    result_bytes = 0
    if bits & SHORT_RESULT:
        result_bytes = u16(data, place)
        place += 2 + result_bytes
    if bits & WIDE_RESULT:
        result_bytes = u32(data, place)
        place += 4 + result_bytes
    stop = place + key_bytes + value_bytes
    length = round_up(stop - at, UNIT_BYTES)
    if at + length > end:
        return "a record is longer than its frame"
    if u32(data, at) != checksum32(data[at + 4 : stop], folded, at):
        return "a record's checksum differs"
    empty = bits & EXPIRY and not expiry_ms or bits & FLAGS and not flags
    both = bits & SHORT_RESULT and bits & WIDE_RESULT
    wrong_result = bits & SHORT_RESULT and not result_bytes or bits & WIDE_RESULT and result_bytes < 65536
    if empty or both or wrong_result or not is_zero(data[stop : at + length]):
        return "a record has another encoding than the only one"
    if value_bytes and kind != PUT or key_bytes and kind in (CLEAR, MARK, ROLLBACK):
        return f"a record of kind {kind} has a key or a value"
    key = bytes(data[place : place + key_bytes])
    value = bytes(data[place + key_bytes : stop])
    return Record(at, length, kind, number, version, expiry_ms, flags, key, value, bool(bits & BATCH))


class Segment:
    """One segment's bytes, judged by what the manifest and the other segments of its stream say was synced."""

    def __init__(self, path, file, slot, listed, store, segment_bytes, tail):
        self.file, self.slot, self.listed, self.segment_bytes = file, slot, listed, segment_bytes
        try:
            with open(path, "rb") as opened:
                self.data = opened.read(segment_bytes + 1)
        except OSError as error:
            raise Damage(file, 0, f"listed, but not readable: {error}") from error
        self.read_header(store)
        if len(self.data) > segment_bytes:
            raise Damage(file, segment_bytes, "the file is longer than a segment")
        # A file that is shorter than its segment was never written behind its end.
        self.data += bytes(segment_bytes - len(self.data))
        self.folded = fold(listed.uuid)
        self.frames, self.records = [], []
        self.end, self.why, self.synced, self.generation = FRAMES_AT, None, (0, 0), 0
        # The first byte that the tail file has, too.
        self.tail_from = segment_bytes
        if listed.stream == FOREGROUND and not listed.seal:
            self.lay_over(tail)
        self.scan(listed.seal.length if listed.seal else segment_bytes)

    def read_header(self, store):
        check_header(self.file, self.data, b"FAWN-SEG", [(64, 504), (512, FRAMES_AT)])
        sequence, stream = u64(self.data, 48), u32(self.data, 60)
        found = (u32(self.data, 12), self.data[16:32], self.data[32:48], sequence, u32(self.data, 56), stream)
        listed = self.listed
        if found != (self.slot, listed.uuid, store, listed.sequence, self.segment_bytes, listed.stream):
            raise Damage(self.file, 12, "the header is of another segment than the manifest lists")

    def by_offset(self):
        return {record.at: record for record in self.records}

    def frame_header(self, at):
        data = self.data
        if data[at : at + 4] != b"FwnF" or at + FRAME_HEADER_BYTES > self.segment_bytes:
            return None
        if u32(data, at + 4) != checksum32(data[at + 8 : at + 64], self.folded, at):
            return None
        if data[at + 24 : at + 40] != self.listed.uuid or u32(data, at + 40) != at:
            return None
        synced = (u64(data, at + 48), u32(data, at + 44))
        frame_bytes, record_bytes, count, generation = struct.unpack_from("<4I", data, at + 8)
        return Frame(at, at + frame_bytes, record_bytes, count, generation, synced, u64(data, at + 56))

    def frame_records(self, frame, limit):
        """The records of a frame, or the reason why it is not acceptable."""
        records, records_end = [], frame.at + FRAME_HEADER_BYTES + frame.record_bytes
        if not records_end <= frame.end <= limit or frame.end % UNIT_BYTES or not frame.count:
            return "the frame's lengths contradict each other"
        if frame.generation < self.generation:
            return "its generation is below that of the frame before"
        at, chain = frame.at + FRAME_HEADER_BYTES, 0
        while at < records_end:
            record = read_record(self.data, at, records_end, self.folded)
            if isinstance(record, str):
                return record
            chain = mix(chain, u32(self.data, at) + 2**63)
            records.append(record)
            at += record.bytes
        if len(records) != frame.count or chain != frame.chain or records[-1].in_batch:
            return "the frame does not have exactly the records that it lists"
        if not is_zero(self.data[records_end : frame.end]):
            return "the frame's padding is not zero"
        return records

    def lay_over(self, tail):
        """Takes the frames of the tail file that count for this segment; it may have them already."""
        content, generation, recorded_end = tail
        data, at = bytearray(self.data), 0
        while at + FRAME_HEADER_BYTES <= len(content):
            place, end = u32(content, at + 40), at + u32(content, at + 8)
            frame = content[at:end]
            before = bytes(data[place : place + len(frame)])
            is_here = content[at + 24 : at + 40] == self.listed.uuid and u32(content, at + 20) == generation
            is_inside = end <= len(content) and FRAMES_AT <= place <= self.segment_bytes - len(frame)
            if is_here and is_inside and (self.listed.sequence, place) >= recorded_end:
                data[place : place + len(frame)] = frame
                self.data = bytes(data)
                header = self.frame_header(place)
                if header and not isinstance(self.frame_records(header, self.segment_bytes), str):
                    self.tail_from = min(self.tail_from, place)
                    at = round_up(end, TAIL_UNIT_BYTES)
                    continue
                data[place : place + len(frame)] = before
                self.data = bytes(data)
            at += TAIL_UNIT_BYTES

    def scan(self, limit):
        """Accepts frames up to the first that is not acceptable; behind it, only headers count, as evidence."""
        while self.end + FRAME_HEADER_BYTES <= limit:
            frame = self.frame_header(self.end)
            records = self.frame_records(frame, limit) if frame else "no frame"
            if isinstance(records, str):
                self.why = records
                break
            self.frames.append(frame)
            # Puts and tombstones of a sorted segment do not count: the runs have those that did.
            self.records += [r._replace(in_runs=True) for r in records] if self.listed.is_sorted else records
            self.end, self.generation = frame.end, frame.generation
        headers = list(self.frames)
        at = self.data.find(b"FwnF", self.end, limit)
        while at >= 0:
            frame = self.frame_header(at) if at % UNIT_BYTES == 0 else None
            headers += [frame] if frame else []
            at = self.data.find(b"FwnF", at + 1, limit)
        self.has_header = bool(headers)
        self.synced = max([frame.synced for frame in headers], default=(0, 0))
        # The highest watermark that lies in each segment.
        self.ends = {}
        for frame in headers:
            sequence, offset = frame.synced
            self.ends[sequence] = max(self.ends.get(sequence, 0), offset)

    def judge(self, watermark, own, later_header):
        """Raises `Damage` if synced bytes are corrupt or are not those that the seal lists."""
        here, why = (self.listed.sequence, self.end), self.why or "frames are missing"
        seal = self.listed.seal
        if seal:
            if self.end < seal.length:
                raise Damage(self.file, self.end, f"{why}; sealed up to byte {seal.length}")
            found = facts(self.records)
            if found != (seal.tombstones, seal.latest_expiry_ms, seal.numbers):
                raise Damage(self.file, FRAMES_AT, "the records have other facts than the seal lists")
            return
        rest_is_zero = is_zero(self.data[self.end :])
        if own > self.end or not rest_is_zero and (here < watermark or later_header):
            raise Damage(self.file, self.end, f"{why}; synced up to {max(watermark, (here[0], own))}")


def expiries_of(records, base):
    """Length of the records that expire in each step after the time `base`."""
    lengths = [0] * EXPIRY_STEPS
    for record in (record for record in records if record.expiry_ms):
        after_s = (record.expiry_ms - base) / 1000
        lengths[next((i for i in range(EXPIRY_STEPS - 1) if after_s <= 60 * 4**i), EXPIRY_STEPS - 1)] += record.bytes
    return lengths


def facts(records):
    """Facts of a segment's records, as its seal lists them."""
    counted = [record for record in records if record.kind not in (MARK, ROLLBACK)]
    numbers = {}
    for record in counted:
        count, lowest, highest = numbers.get(record.number, (0, M64, 0))
        numbers[record.number] = count + 1, min(lowest, record.version), max(highest, record.version)
    tombstones = sum(record.kind == TOMBSTONE for record in counted)
    latest_ms = max((record.expiry_ms for record in counted), default=0)
    return tombstones, latest_ms, [(number, *numbers[number]) for number in sorted(numbers)]


def segment_name(slot, uuid):
    return f"segment-{slot:06}-{fold(uuid):016x}.fawn"


def read_segments(directory, state):
    """All listed segments by slot, each judged, and without damage."""
    segments, path = {}, directory / "tail"
    tail = (path.read_bytes() if path.exists() else b"", state.generation, state.ends[FOREGROUND])
    for slot, listed in state.segments.items():
        file = segment_name(slot, listed.uuid)
        segments[slot] = Segment(directory / file, file, slot, listed, state.store, state.segment_bytes, tail)
    for stream in (FOREGROUND, SURVIVORS):
        of_stream = sorted((s for s in segments.values() if s.listed.stream == stream), key=lambda s: s.listed.sequence)
        ends = [segment.synced for segment in of_stream] + [state.ends[stream]]
        watermark, later_header = max(ends), False
        owns = {}
        for segment in of_stream:
            for sequence, offset in segment.ends.items():
                owns[sequence] = max(owns.get(sequence, 0), offset)
        end_sequence, end_offset = state.ends[stream]
        owns[end_sequence] = max(owns.get(end_sequence, 0), end_offset)
        for segment in reversed(of_stream):
            segment.judge(watermark, owns.get(segment.listed.sequence, 0), later_header)
            later_header = later_header or segment.has_header
    for segment in segments.values():
        if segment.generation > state.generation:
            raise Damage(segment.file, segment.end, "a generation above the manifest's, which lost its end")
        for record in segment.records:
            if record.number > state.last_number:
                raise Damage(segment.file, record.at, "a local number that was never assigned: the manifest lost its end")
    return segments


def rotate(word, bits):
    return (word << bits | word >> 64 - bits) & M64


def sip(secret, data, wide=False):
    """SipHash-1-3: 64 bits as a number, or 128 bits as bytes, the low half first."""
    k0, k1 = struct.unpack("<QQ", secret)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    v[1] ^= 0xEE if wide else 0

    def rounds(count):
        a, b, c, d = v
        for _ in range(count):
            a = (a + b) & M64
            b = rotate(b, 13) ^ a
            c = (c + d) & M64
            d = rotate(d, 16) ^ c
            a = rotate(a, 32)
            c = (c + b) & M64
            b = rotate(b, 17) ^ c
            a = (a + d) & M64
            d = rotate(d, 21) ^ a
            c = rotate(c, 32)
        v[:] = a, b, c, d

    whole = len(data) // 8 * 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in [*struct.unpack(f"<{whole // 8}Q", data[:whole]), last]:
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 0xEE if wide else 0xFF
    rounds(3)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    if not wide:
        return low
    v[1] ^= 0xDD
    rounds(3)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])


@functools.cache
def ring_key_of(secret, key):
    return sip(secret, tag_of(key), wide=True)[:12] + sip(secret, key).to_bytes(8, "big")


def tag_of(key):
    """The part of the key that places it: between the first `{` and the next `}`, if that is not empty."""
    open_at = key.find(b"{")
    close_at = key.find(b"}", open_at + 1) if open_at >= 0 else -1
    return key[open_at + 1 : close_at] if close_at > open_at + 1 else key
