"""Compares stores of long histories with an independent reader of the format pages, and with `fawn dump`.

written_stores.py BINARY DIR SEED      e.g. written_stores.py target/release/fawn /tmp/w 1

DIR has the stores that the test `written_stores` of fawn-ds writes: their histories have cleaning, runs, splits, merges,
clears, expiry and checkpoints. The reader must print what `fawn dump` prints, with the values that the test expects, and
report a flipped bit in every kind of file and in every part of a run, also under checksums that were computed again.
"""

import random
import sys
from collections import Counter
from pathlib import Path

from store_compared import certain_bytes, compare, flip_bits, report_of, stores_of
from store_files import fold, hash64, mix, u32
from store_pieces import PIECE_BYTES, PIECE_HEADER_BYTES

STORES = 13
FLIPS = 2  # per kind of file or part
RESEALED = 40  # per part of a run
# Parts of the format that the files must have, counted over all stores.
EVER = ["puts", "tombstones", "clears", "marks", "rollbacks", "expired", "flags", "survivors", "dropped"]
EVER += ["checkpoints", "sole", "ancestors", "runs", "run_tombstones", "sorted_segments"]


def reseal(data, tail_at, footer_at, uuid):
    """Computes the checksums of all pieces of a run again."""
    for at in range(tail_at, footer_at, PIECE_BYTES):
        stop = at + PIECE_HEADER_BYTES + u32(data, at + 8)
        data[at : at + 8] = (hash64(bytes(data[at + 8 : stop])) ^ mix(fold(uuid), at)).to_bytes(8, "little")


def flip_resealed(store, rolls):
    """Flips bits of fences and filters under valid checksums: what of them matters is checked by the records."""
    reported = Counter()
    parts = certain_bytes(store)
    for kind in "run's fences", "run's filters":
        file, begin, end = parts[kind]
        path = store / file
        intact = path.read_bytes()
        for _ in range(RESEALED):
            changed = bytearray(intact)
            changed[rolls.randrange(begin, end)] ^= 1 << rolls.randrange(8)
            reseal(changed, parts["run's pages"][2], parts["run's footer"][1], intact[16:32])
            path.write_bytes(changed)
            found, _ = report_of(store)
            assert found in (file, None), f"a flipped bit of {file} is reported of {found}"
            reported[kind] += found is not None
        path.write_bytes(intact)
    assert report_of(store)[0] is None
    return dict(reported)


def main():
    binary, directory, seed = sys.argv[1:]
    stores, ever, rolls, with_runs = stores_of(directory), Counter(), random.Random(seed), []
    assert len(stores) == STORES, f"{len(stores)} stores in {directory}"
    for store in stores:
        records, seen = compare(binary, store)
        pairs = [line.split(" ") for line in (store / "expected").read_text().splitlines()]
        expected = {bytes.fromhex(key): bytes.fromhex(value) for key, value in pairs}
        found = {key: record[1] for key, record in records.items()}
        assert found == expected, f"{store}: other keys or values than were written"
        ever.update(seen)
        with_runs += [store] if seen["runs"] and seen["ancestors"] else []
        counts = ", ".join(f"{name} {count}" for name, count in seen.items() if count)
        print(f"{Path(store).name}: {len(records)} keys, {counts}", flush=True)
    missing = [name for name in EVER if not ever[name]]
    assert not missing and with_runs, f"the files never had {missing}: the test shows too little"
    smallest = min(with_runs, key=lambda store: sum(path.stat().st_size for path in store.iterdir()))
    kinds = flip_bits(binary, smallest, rolls, FLIPS)
    reported = flip_resealed(smallest, rolls)
    least = min(reported.values(), default=0)
    assert least >= RESEALED // 2, f"of {RESEALED} bits flipped under valid checksums, reported: {reported}"
    print(f"bits flipped in {kinds}; reported under valid checksums: {reported} of {RESEALED} each (seed {seed})")


if __name__ == "__main__":
    main()
