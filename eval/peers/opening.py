"""Times the opening of stores with the same data, after a close and after a kill, one after the other on one machine.

opening.py DIR KEYS OVERWRITES VALUE_BYTES ROUNDS [STORE…]      e.g. opening.py /tmp/opening 50000000 5000000 64 5

Stores: fawn (`cargo build --release -p fawn-ds --example opening`), rocksdb and lmdb (PyPI: rocksdict, lmdb), fjall
(`cargo build --release --manifest-path eval/peers/fjall/Cargo.toml --target-dir target/fjall`). Each is filled with KEYS
keys of 16 B and values that cannot be compressed. Each round overwrites random keys and closes the store, drops the
system's page cache, and times the opening and one lookup; then the same, but the process is killed as soon as its last
write was acknowledged. One JSON row per opening is printed.
"""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAWN = os.path.join(ROOT, "target/release/examples/opening")
FJALL = os.path.join(ROOT, "target/fjall/release/opening")
MEMORY_BYTES = 1 << 30
BATCH = 1000
POOL_BYTES = 8 << 20


def key(i):
    return struct.pack(">QQ", i, ~i & 0xFFFFFFFFFFFFFFFF)


def writes(keys, count, seed):
    """Each key once, in order, or `count` random ones."""
    if count == keys:
        return range(keys)
    choice = random.Random(seed)
    return (choice.randrange(keys) for _ in range(count))


def lmdb_store(path):
    import lmdb

    store = lmdb.open(path, map_size=1 << 40, sync=False, writemap=False)

    def put(batch):
        with store.begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                cursor.putmulti(batch)

    def get(name):
        with store.begin() as transaction:
            return transaction.get(name)

    return put, get, lambda: (store.sync(), store.close())


def rocksdb_store(path):
    from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch

    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    options.create_if_missing(True)
    blocks.set_block_cache(Cache(MEMORY_BYTES))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    options.set_max_background_jobs(2)
    store = Rdict(path, options)

    def put(batch):
        group = WriteBatch(raw_mode=True)
        for name, value in batch:
            group[name] = value
        store.write(group)

    return put, store.get, store.close


def peer(name, path, phase, keys, count, value_bytes, seed):
    """One process of a peer that has a Python binding."""
    begun = time.perf_counter()
    put, get, close = {"lmdb": lmdb_store, "rocksdb": rocksdb_store}[name](path)
    if phase == "open":
        found = get(key(random.randrange(keys)))
        print(json.dumps({"open_ms": (time.perf_counter() - begun) * 1000, "found": found is not None}), flush=True)
        close()
        return
    pool, batch = os.urandom(POOL_BYTES), []
    for i in writes(keys, count, seed):
        # No value is like its neighbours: compression gains nothing.
        at = i * value_bytes % (POOL_BYTES - value_bytes)
        batch.append((key(i), pool[at : at + value_bytes]))
        if len(batch) == BATCH:
            put(batch)
            batch = []
    put(batch)
    if phase == "killed":
        print("written", flush=True)
        signal.pause()
    close()


def command(name, path, phase, keys, count, value_bytes, seed):
    words = [path, phase, keys, count, value_bytes, seed]
    binary = {"fawn": [FAWN], "fjall": [FJALL]}.get(name, [sys.executable, os.path.abspath(__file__), "peer", name])
    return [*binary, *map(str, words)]


def write(name, path, phase, keys, count, value_bytes, seed):
    """Fills or overwrites; a `killed` one ends with SIGKILL after its last acknowledgement."""
    process = subprocess.Popen(command(name, path, phase, keys, count, value_bytes, seed), stdout=subprocess.PIPE, text=True)
    if phase == "killed":
        assert process.stdout.readline() == "written\n", f"{name} did not write"
        process.kill()
    process.stdout.read()
    code = process.wait()
    assert code == (-signal.SIGKILL if phase == "killed" else 0), f"{name}: exit code {code}"


def opened(name, path, keys, value_bytes):
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")
    done = subprocess.run(command(name, path, "open", keys, 0, value_bytes, 0), stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["found"], f"{name} lost a key"
    return row


def size_of(path):
    found = (os.stat(os.path.join(at, file)) for at, _, files in os.walk(path) for file in files)
    return sum(file.st_blocks * 512 for file in found)


def main():
    if sys.argv[1] == "peer":
        name, path, phase, *numbers = sys.argv[2:]
        return peer(name, path, phase, *map(int, numbers))
    directory, *numbers = sys.argv[1:6]
    keys, overwrites, value_bytes, rounds = map(int, numbers)
    for name in sys.argv[6:] or ["fawn", "rocksdb", "lmdb", "fjall"]:
        path = os.path.join(directory, name)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(directory, exist_ok=True)
        begun = time.perf_counter()
        write(name, path, "closed", keys, keys, value_bytes, 0)
        fill_s = time.perf_counter() - begun
        for at in range(rounds):
            for end in ("closed", "killed"):
                write(name, path, end, keys, overwrites, value_bytes, 2 * at + (end == "killed"))
                row = {"level": "opening", "system": name, "after": end, "keys": keys, "value_bytes": value_bytes}
                row |= {"overwrites": overwrites, "memory_bytes": MEMORY_BYTES, "fill_s": round(fill_s, 1)}
                row |= {"disk_bytes": size_of(path), **opened(name, path, keys, value_bytes)}
                print(json.dumps(row), flush=True)
        shutil.rmtree(path)


main()
