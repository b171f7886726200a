"""Compares the files that FAWN writes with an independent reader of its format pages, with `fawn dump` and with a model.

written_files.py BINARY DIR SEED ENDING WORDS…      e.g. written_files.py target/release/fawn /tmp/w 1 killed serve

WORDS start the server (`serve`, `demo`). `serve` gets a small capacity, so that cleaning drops segments, `demo` a small
catalogue. Several rounds of sets, deletes, expiry and FLUSHALL each end with a stop or a kill; the last one as ENDING
says (`kept`: a stop, `killed`). After each, the reader and `fawn dump` must agree in every byte of their output, and both
with the last acknowledged writes. At the end, the reader must report a flipped bit in a file of every kind.
"""

import random
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from server import Server, resp
from store_compared import compare, flip_bits, stores_of

# A checkpoint is due at a stop after some MiB of log. Cleaning soon drops a clear: it comes last in its round.
ROUNDS = ["light", "stopped clear", "stopped heavy", "light", "clear", "stopped heavy", "light"]
KEYS = 600
BATCH = 64
BATCHES = 60
HEAVY_BATCHES = 200
CATALOGUE = 500  # keys that a demo loads
LENGTHS = [0, 1, 40, 300, 700, 1000]
HEAVY_LENGTHS = [40, 700, 2000, 4000]
SMALL = ["--capacity", "4M", "--segment", "64K", "--memory", "64M", "--durability", "everysec"]
KEY_PREFIX = b"test:"
EXPIRY_MS_MAX = 300
EXPIRY_MARGIN_MS = 1_000
FLIPS = 4  # per kind of file
# Parts of the format that the files must have had at the end of some round.
EVER_OF_SERVE = ["puts", "tombstones", "clears", "expired", "flags", "survivors", "dropped", "checkpoints", "sole"]
EVER_OF_CHAIN = ["puts", "tombstones", "clears", "expired", "flags", "marks", "checkpoints"]


class Model:
    """The last acknowledged state of each key: value, flags and whether it expires late; `unclear` has the other states
    that a request without a reply may have left."""

    def __init__(self):
        self.acked, self.unclear = {}, {}

    def expect(self, key, state):
        self.acked[key], self.unclear[key] = state, []

    def check(self, found, is_settled):
        """Compares the found states. If they are `settled`, each is the only one that its key may have from now on."""
        for key in self.acked.keys() | found.keys():
            value, flags, expiry_ms = found[key][1:] if key in found else (None, 0, 0)
            state = (value, flags, expiry_ms > 0)
            allowed = [self.acked.get(key, NONE), *self.unclear.get(key, [])]
            assert state in allowed, f"{key!r}: found {str(state)[:60]}, expected one of {str(allowed)[:200]}"
            if is_settled:
                self.expect(key, state)


NONE = (None, 0, False)


class Load:
    """Writes of one round over one connection of each protocol, in batches whose keys differ."""

    def __init__(self, server, rolls, model, lengths):
        self.rolls, self.model, self.lengths = rolls, model, lengths
        self.resp, self.memcached = (server.connect(protocol).makefile("rwb") for protocol in ("resp", "memcached"))

    def key(self, number):
        tag = b"{%d}" % (number % 7) if number % 3 == 0 else b"{}"
        return b"%s%d:%s%s" % (KEY_PREFIX, number, tag, b"\xff\x00" if number % 5 == 0 else b"")

    def value(self):
        length = self.rolls.choice(self.lengths) if self.rolls.random() < 0.97 else self.rolls.randrange(4096, 14000)
        return self.rolls.randbytes(length) if self.rolls.random() < 0.5 else b'"\\\t\n\r\x7f\xc3\xa9' * (length // 8)

    def requests(self):
        """Requests of one batch: protocol, bytes, the key, and the states that it passes through."""
        for number in self.rolls.sample(range(KEYS), BATCH):
            roll, key, value = self.rolls.random(), self.key(number), self.value()
            if roll < 0.12:
                yield self.resp, resp("DEL", key), key, [NONE]
            elif roll < 0.20:
                # The key has the value until it expires: expected is its end.
                yield self.resp, resp("SET", key, value, "PX", 1 + self.rolls.randrange(EXPIRY_MS_MAX)), key, [(value, 0, True), NONE]
            elif roll < 0.26:
                yield self.resp, resp("SET", key, value, "EX", 3600), key, [(value, 0, True)]
            elif roll < 0.45 and number % 5:
                flags = 1 + self.rolls.randrange(2**32 - 1)
                request = b"set %s %d 0 %d\r\n%s\r\n" % (key, flags, len(value), value)
                yield self.memcached, request, key, [(value, flags, False)]
            else:
                yield self.resp, resp("SET", key, value), key, [(value, 0, False)]

    def batch(self):
        asked = list(self.requests())
        for connection, request, key, states in asked:
            self.model.unclear[key] = [*self.model.unclear.get(key, []), *states]
            connection.write(request)
        self.resp.flush()
        self.memcached.flush()
        for connection, _, key, states in asked:
            reply = connection.readline()
            if not reply.endswith(b"\n"):
                raise EOFError
            assert reply in (b"+OK\r\n", b":0\r\n", b":1\r\n", b"STORED\r\n"), f"unexpected reply {reply!r}"
            self.model.expect(key, states[-1])

    def flush_all(self):
        for key in self.model.acked:
            self.model.unclear[key] = [*self.model.unclear.get(key, []), NONE]
        self.resp.write(resp("FLUSHALL"))
        self.resp.flush()
        reply = self.resp.readline()
        if not reply:
            raise EOFError
        assert reply == b"+OK\r\n", f"unexpected reply {reply!r}"
        for key in self.model.acked:
            self.model.expect(key, NONE)

    def run(self, batches, clears):
        for batch in range(batches):
            if clears and batch == batches - 1:
                self.flush_all()
            self.batch()


def run_round(binary, words, directory, rolls, model, kind, is_killed):
    batches, lengths = (HEAVY_BATCHES, HEAVY_LENGTHS) if "heavy" in kind else (rolls.randrange(BATCHES // 2, BATCHES), LENGTHS)
    with Server(binary, words, directory) as server:
        load = Load(server, rolls, model, lengths)
        load.run(batches, "clear" in kind)
        if not is_killed:
            server.stop()
            return
        killer = threading.Timer(rolls.uniform(0.001, 0.05), server.process.kill)
        killer.start()
        try:
            load.run(10_000, False)
        except (OSError, EOFError):
            pass  # expected: the server was killed
        killer.join()
        server.process.wait()


def compare_all(binary, directory, words, model, is_killed):
    """Compares the directory of a server, or each store of a demo, whose nodes have all keys each."""
    # Keys that expire soon have expired then, so that both reads and the model are of one time.
    time.sleep((EXPIRY_MS_MAX + EXPIRY_MARGIN_MS) / 1000)
    if words[0] == "serve":
        records, seen = compare(binary, Path(directory))
        model.check(records, is_settled=True)
        return seen
    nodes, seen = {}, Counter()
    for store in stores_of(directory):
        records, counts = compare(binary, store)
        seen.update(counts)
        # Without the catalogue.
        own = {key: record for key, record in records.items() if key.startswith(KEY_PREFIX)}
        nodes.setdefault(store.name.split("-shard")[0], {}).update(own)
    assert len(nodes) == 3, f"replicas: {list(nodes)}"
    for records in nodes.values():
        # After a kill, replicas may differ in writes that were not acknowledged.
        model.check(records, is_settled=not is_killed)
    return dict(seen)


def main():
    binary, directory, seed, ending, *words = sys.argv[1:]
    rolls, model, ever = random.Random(f"{seed} {ending} {words}"), Model(), Counter()
    shutil.rmtree(directory, ignore_errors=True)
    is_serve = words[0] == "serve"
    catalogue = Path(f"{directory}.catalogue")
    catalogue.write_text("".join(f"Package: p{number}\nVersion: {number}\n\n" for number in range(CATALOGUE)))
    server_words = [*words, *(SMALL if is_serve else ["--catalogue", catalogue])]
    for number, kind in enumerate(ROUNDS):
        is_last = number == len(ROUNDS) - 1
        is_killed = ending == "killed" if is_last else "stopped" not in kind and rolls.random() < 0.5
        run_round(binary, server_words, directory, rolls, model, kind, is_killed)
        seen = compare_all(binary, directory, words, model, is_killed)
        ever.update(seen)
        counts = ", ".join(f"{name} {count}" for name, count in seen.items() if count)
        print(f"round {number}, {'killed' if is_killed else 'stopped'}: {counts}", flush=True)
    wanted = EVER_OF_SERVE if is_serve else EVER_OF_CHAIN
    missing = [name for name in wanted if not ever[name]]
    assert not missing, f"the files never had {missing}: the test shows too little"
    kinds = [flip_bits(binary, store, rolls, FLIPS) for store in stores_of(directory)[:1]]
    print(f"format page: {len(ROUNDS)} rounds, bits flipped in {kinds} (seed {seed})")


main()
