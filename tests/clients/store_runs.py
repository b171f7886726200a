"""Sorted runs of a FAWN-DS store, read from docs/formats/fawn-ds.md alone: no code is shared with fawn."""

import struct
from bisect import bisect_right
from collections import namedtuple

from store_files import (
    M64,
    PUT,
    TOMBSTONE,
    Damage,
    Record,
    check_header,
    checksum32,
    expiries_of,
    facts,
    fold,
    is_zero,
    mix,
    ring_key_of,
    u16,
    u32,
    u64,
)
from store_pieces import Content, place_in_file, read_pieces

PAGE_BYTES = 4096
SPACES = 4
RECORD_BYTES_MAX = 1022
EXPIRY, FLAGS, REMOVED = 1 << 0, 1 << 1, 1 << 7
GOLDEN = 0x9E3779B97F4A7C15

Area = namedtuple("Area", "first last base")
Group = namedtuple("Group", "prefix before")
Filter = namedtuple("Filter", "first_page seed slots words")
Placed = namedtuple("Placed", "place page record")


def run_name(uuid):
    return f"run-{fold(uuid):016x}.fawn"


class Footer:
    """The last block of a run."""

    def __init__(self, file, at, data):
        try:
            check_header(file, data, b"FAWN-END", [(84, 88), (296, 504), (512, PAGE_BYTES)])
        except Damage as damage:
            raise Damage(file, at + damage.at, f"footer: {damage.why}") from damage
        self.pages, self.uuid, self.store = u32(data, 12), data[16:32], data[32:48]
        self.records, self.tail_bytes = struct.unpack_from("<QQ", data, 48)
        self.first_pages, self.chain = struct.unpack_from("<5I", data, 64), u64(data, 88)
        bounds = [data[place : place + 20] for place in range(96, 256, 20)]
        self.lowest, self.highest = bounds[::2], bounds[1::2]
        self.expiry_base, *self.expiries = struct.unpack_from("<Q8I", data, 256)


class Fences:
    """Coordinates of ring keys: which pages may have a key."""

    def __init__(self, content, footer):
        self.footer = footer
        self.first_areas, self.first_groups = content.take("5I"), content.take("5I")
        self.area_coordinates, self.group_coordinates = content.take("II")
        self.areas = [Area(*content.take("QQI")) for _ in range(self.first_areas[SPACES])]
        self.groups = [Group(*content.take("QI")) for _ in range(self.first_groups[SPACES])]
        low = content.take(f"{footer.pages}B")
        words = content.take(f"{content.count()}Q")
        bits = [64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        for ascending in (self.first_areas, self.first_groups, [area.base for area in self.areas]):
            if list(ascending) != sorted(ascending):
                raise Damage(content.file, 0, "fences: areas or groups do not ascend")
        if len(bits) != footer.pages:
            raise Damage(content.file, 0, f"fences: {len(bits)} bits of {footer.pages} pages")
        self.coordinates = [(bit - page) << 8 | byte for page, (bit, byte) in enumerate(zip(bits, low))]
        if self.coordinates != sorted(self.coordinates):
            raise Damage(content.file, 0, "fences: the coordinates do not ascend")

    def coordinate(self, space, ring_key):
        """The coordinate of a ring key that is not below all areas of its space; else `None`."""
        prefix, low = (int.from_bytes(part, "big") for part in (ring_key[:8], ring_key[12:]))
        begin, end = self.first_areas[space : space + 2]
        at = bisect_right([area.first for area in self.areas[begin:end]], prefix) + begin - 1
        if at < begin:
            return None
        area = self.areas[at]
        bases = [other.base for other in self.areas] + [self.area_coordinates]
        width, span = bases[at + 1] - area.base, area.last - area.first + 1
        part = area.base + (width - 1 if prefix > area.last else (prefix - area.first) * (width - 1) // span)
        return part + self.of_groups(space, ring_key, prefix, low)

    def of_groups(self, space, ring_key, prefix, low):
        begin, end = self.first_groups[space : space + 2]
        at = bisect_right([group.prefix for group in self.groups[begin:end]], prefix) + begin
        befores = [group.before for group in self.groups] + [self.group_coordinates]
        if at == begin or self.groups[at - 1].prefix != prefix:
            return befores[at]
        at -= 1
        width, bounds = befores[at + 1] - befores[at], [0, M64]
        for n, bound in enumerate((self.footer.lowest[space], self.footer.highest[space])):
            if bound[:8] == ring_key[:8]:
                bounds[n] = int.from_bytes(bound[12:], "big")
        lowest, highest = bounds
        inside = (low - lowest) * (width - 1) // (highest - lowest + 1)
        return befores[at] + (width - 1 if low > highest else inside)

    def candidates(self, coordinate):
        """The last page with a lower coordinate, and all with the same one."""
        lower = [page for page, known in enumerate(self.coordinates) if known < coordinate][-1:]
        return lower + [page for page, known in enumerate(self.coordinates) if known == coordinate]


def read_filter(content):
    first_page, seed, slots, bits = content.take("IIIB")
    if slots % 128 or not slots or not bits:
        raise Damage(content.file, 0, f"a filter of {slots} slots of {bits} bits")
    words = content.take(f"{slots // 128 * bits * 2}Q")
    blocks = [words[2 * n] | words[2 * n + 1] << 64 for n in range(len(words) // 2)]
    # Per bit, all slots as one number.
    return Filter(first_page, seed, slots, [blocks[bit::bits] for bit in range(bits)])


def may_contain(of_run, space, ring_key):
    """Whether a filter has the key's equations."""
    t, m, low = u64(ring_key, 0), u32(ring_key, 8), u64(ring_key, 12)
    key = mix(mix(t ^ (m * 256 + space), 0) ^ low, 0)
    e = mix(key ^ of_run.seed * GOLDEN & M64, 0)
    first = e * (of_run.slots - 127) >> 64
    coefficient = mix(e + 2 & M64, 0) << 64 | mix(e + 1 & M64, 0) | 1
    fingerprint = mix(e + 3 & M64, 0)
    block, shift = divmod(first, 128)
    for bit, blocks in enumerate(of_run.words):
        slots = blocks[block] | (blocks[block + 1] << 128 if block + 1 < len(blocks) else 0)
        if (slots >> shift & coefficient).bit_count() & 1 != fingerprint >> bit & 1:
            return False
    return True


class Run:
    """A listed run, all of whose parts were checked. `records` have their ring keys, spaces and pages."""

    def __init__(self, directory, listed, state):
        self.file, self.age, self.secret = run_name(listed.uuid), listed.age, state.secret
        try:
            with open(directory / self.file, "rb") as opened:
                self.data = opened.read(listed.length + 1)
        except OSError as error:
            raise Damage(self.file, 0, f"listed, but not readable: {error}") from error
        data, length = self.data, listed.length
        if len(data) != length or length % PAGE_BYTES or length < 4 * PAGE_BYTES:
            raise Damage(self.file, len(data), f"not a file of the listed {length} bytes")
        check_header(self.file, data, b"FAWN-RUN", [(12, 16), (48, 504), (512, PAGE_BYTES)])
        footer = self.footer = Footer(self.file, length - PAGE_BYTES, data[-PAGE_BYTES:])
        if data[16:32] != listed.uuid or data[32:48] != state.store:
            raise Damage(self.file, 16, "another run than the manifest lists")
        tail_at = PAGE_BYTES * (1 + footer.pages)
        if (footer.uuid, footer.store) != (listed.uuid, state.store) or tail_at + footer.tail_bytes + PAGE_BYTES != length:
            raise Damage(self.file, length - PAGE_BYTES, "the footer is of another file")
        self.folded = fold(listed.uuid)
        self.records = self.read_pages()
        # Places of what a flipped bit changes for certain.
        self.parts = {"run's header": (0, PAGE_BYTES), "run's pages": (PAGE_BYTES, tail_at)}
        self.parts["run's footer"] = (length - PAGE_BYTES, length)
        content = Content(self.file, read_pieces(self.file, data[: length - PAGE_BYTES], tail_at, self.folded))
        self.read_tail(content, tail_at)

    def damage(self, page, why):
        return Damage(self.file, PAGE_BYTES * (1 + page), why)

    def read_pages(self):
        footer, chain, records = self.footer, 0, []
        for page in range(footer.pages):
            at = PAGE_BYTES * (1 + page)
            data = self.data[at : at + PAGE_BYTES]
            chain = mix(chain, u32(data, 0) + 2**63)
            if u32(data, 0) != checksum32(data[4:], self.folded, at):
                raise self.damage(page, "the checksum of a page differs")
            records += self.read_page(page, data)
        places = [record.place for record in records]
        if any(a >= b for a, b in zip(places, places[1:])):
            raise self.damage(0, "the records do not ascend")
        spaces = {page: record.place[0] for page, record in ((r.page, r) for r in records)}
        firsts = [sum(of_page < space for of_page in spaces.values()) for space in range(SPACES)] + [footer.pages]
        if len(records) != footer.records or chain != footer.chain or firsts != list(footer.first_pages):
            raise self.damage(footer.pages, "the footer has another count, chain, or first pages than the pages")
        for space in range(SPACES):
            keys = [ring_key for of_space, ring_key in places if of_space == space] or [bytes(20)]
            if (footer.lowest[space], footer.highest[space]) != (keys[0], keys[-1]):
                raise self.damage(footer.pages, "the footer has other bounds than the pages")
        later = [placed.record for placed in records if placed.record.expiry_ms > footer.expiry_base]
        expiries = expiries_of(later, footer.expiry_base)
        # Earlier builds did not count them.
        is_counted = footer.expiry_base or any(footer.expiries)
        if is_counted and footer.expiries != expiries or footer.expiry_base and not any(expiries):
            raise self.damage(footer.pages, f"records that expire of {expiries}, not {footer.expiries}")
        return records

    def read_page(self, page, data):
        end, count = u16(data, 4), u16(data, 6)
        if not count or end > PAGE_BYTES:
            raise self.damage(page, f"a page of {count} records up to {end}")
        records, at = [], 8
        for _ in range(count):
            placed, at = self.read_record(page, data, at, end)
            records.append(placed)
        if at != end or not is_zero(data[end:]):
            raise self.damage(page, "bytes behind the last record of a page")
        if len({placed.place[0] for placed in records}) > 1:
            raise self.damage(page, "a page has records of several spaces")
        return records

    def read_record(self, page, data, at, end):
        if at + 18 > end:
            raise self.damage(page, "a record is cut short")
        bits, kind, key_bytes, value_bytes, number, version = struct.unpack_from("<BBHHIQ", data, at)
        place, expiry_ms, flags = at + 18, 0, 0
        if bits & EXPIRY:
            expiry_ms, place = u64(data, place), place + 8
        if bits & FLAGS:
            flags, place = u32(data, place), place + 4
        stop = place + key_bytes + value_bytes
        is_wrong = bits & ~(EXPIRY | FLAGS | REMOVED) or bits & EXPIRY and not expiry_ms or bits & FLAGS and not flags
        is_wrong = is_wrong or bits & REMOVED and (bits != REMOVED or value_bytes) or kind
        if is_wrong or stop > end or stop - at > RECORD_BYTES_MAX:
            raise self.damage(page, f"a record of {stop - at} B with bits {bits:#x}, type {kind}")
        key, value = data[place : place + key_bytes], data[place + key_bytes : stop]
        in_file = PAGE_BYTES * (1 + page) + at
        made = TOMBSTONE if bits & REMOVED else PUT
        record = Record(in_file, stop - at, made, number, version, expiry_ms, flags, key, value, False, True)
        return Placed((kind & 3, ring_key_of(self.secret, key)), page, record), stop

    def read_tail(self, content, tail_at):
        tombstones, latest_ms = content.take("IQ")
        listed = (tombstones, latest_ms, content.items("IIQQ"))
        if facts([placed.record for placed in self.records]) != listed:
            raise self.damage(self.footer.pages, "the records have other facts than the tail lists")
        places = [content.at]
        fences = Fences(content, self.footer)
        places.append(content.at)
        filters = [read_filter(content) for _ in range(content.count())]
        content.end()
        places.append(content.at)
        begin, middle, end = (place_in_file(tail_at, place) for place in places)
        self.parts |= {"run's fences": (begin, middle), "run's filters": (middle, end)}
        self.check_fences(fences)
        self.check_filters(filters)

    def check_fences(self, fences):
        known = set()
        for (space, ring_key), page, _ in self.records:
            coordinate = fences.coordinate(space, ring_key)
            if page not in known and coordinate != fences.coordinates[page]:
                raise self.damage(page, f"the first key has the coordinate {coordinate}, not {fences.coordinates[page]}")
            known.add(page)
            if page not in fences.candidates(coordinate):
                raise self.damage(page, f"a key of coordinate {coordinate} is not found by the fences")

    def check_filters(self, filters):
        firsts = [of_run.first_page for of_run in filters]
        if firsts != sorted(set(firsts)) or firsts[:1] != [0] or firsts[-1] >= self.footer.pages:
            raise self.damage(self.footer.pages, f"the filters begin at the pages {firsts}")
        for (space, ring_key), page, _ in self.records:
            if not may_contain(filters[bisect_right(firsts, page) - 1], space, ring_key):
                raise self.damage(page, "a filter misses a key of its pages")


class Runs:
    """All runs of a store: the records of each key, newest first."""

    def __init__(self, directory, state):
        self.runs = sorted((Run(directory, listed, state) for listed in state.runs), key=lambda run: -run.age)
        self.secret, self.by_key, ages = state.secret, {}, {}
        for run in self.runs:
            for placed in run.records:
                if ages.get(placed.place) == run.age:
                    raise run.damage(placed.page, "runs of one age have a key in common")
                ages[placed.place] = run.age
                self.by_key.setdefault(placed.record.key, []).append((run, placed.record))

    def newest(self, listed, cleared):
        """The newest records that count for a range, by key, with their runs."""
        newest = {}
        for key, known in self.by_key.items():
            counting = [(run, record) for run, record in known if self.counts(record, listed, cleared)]
            if not counting:
                continue
            run, record = newest[key] = counting[0]
            if record.version < max(older.version for _, older in counting):
                raise Damage(run.file, record.at, f"older than the record of {key!r} in a run of lower age")
        return newest

    def counts(self, record, listed, cleared):
        if record.version <= cleared:
            return False
        ring_key = ring_key_of(self.secret, record.key)
        if record.number == listed.number:
            return listed.is_whole and listed.first <= ring_key < listed.end
        ancestors = (ancestor for ancestor in listed.lineage if ancestor.number == record.number)
        return any(a.first <= ring_key < a.end and record.version > a.cleared for a in ancestors)
