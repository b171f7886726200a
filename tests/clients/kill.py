"""Kills a FAWN server under load repeatedly, and checks that no acknowledged write is lost.

kill.py BINARY DIR KILLS SEED WORDS…      e.g. kill.py target/release/fawn /tmp/k 30 1 demo

WORDS start the server (`serve`, `demo`). The first half of the kills runs with `sync`, the second with `everysec`, on
the same directory. Writers of both protocols write increasing numbers to their own keys, delete some keys, and record
the last acknowledged value per key. After each `kill -9` and restart, every key must hold its last acknowledged value,
or the value of a request that was not acknowledged when the server died.
"""

import random
import socket
import sys
import threading
import time

from server import Server

WRITERS = 2  # per protocol
KEYS = 40  # per writer
PIPELINE = 8


class Writer(threading.Thread):
    """One connection that writes to its own keys; `acked` and `asked` are the acknowledged and the requested value."""

    def __init__(self, name, address, seed, state):
        super().__init__(daemon=True)
        self.name, self.address, self.random = name, address, random.Random(f"{seed}{name}")
        self.state, self.failure, self.answers = state, None, 0

    def run(self):
        try:
            host, port = self.address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                lines = connection.makefile("rwb")
                while True:
                    self.batch(lines)
        except (OSError, EOFError):
            pass  # expected: the server was killed
        except Exception as error:  # unexpected: a failure of the test
            self.failure = f"{type(error).__name__}: {error}"

    def batch(self, lines):
        keys = self.random.sample(range(KEYS), PIPELINE)
        for key in keys:
            name, held = f"{self.name}:{key}", self.state.setdefault(f"{self.name}:{key}", {"acked": None, "n": 0})
            held["n"] += 1
            value = None if self.random.random() < 0.1 else f"{held['n']}:{'x' * self.random.randrange(0, 600)}"
            held["asked"] = [value]
            self.ask(lines, name, value)
        lines.flush()
        for key in keys:
            held = self.state[f"{self.name}:{key}"]
            self.hear(lines, held["asked"][0])
            held["acked"] = held.pop("asked")[0]
            self.answers += 1


class Resp(Writer):
    def ask(self, lines, name, value):
        words = ["DEL", name] if value is None else ["SET", name, value]
        lines.write(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))

    def hear(self, lines, value):
        line = read_line(lines)
        good = line in (b":0\r\n", b":1\r\n") if value is None else line == b"+OK\r\n"
        assert good, f"unexpected reply {line!r} to {'DEL' if value is None else 'SET'}"


class Memcached(Writer):
    def ask(self, lines, name, value):
        lines.write(f"delete {name}\r\n".encode() if value is None else f"set {name} 0 0 {len(value)}\r\n{value}\r\n".encode())

    def hear(self, lines, value):
        line = read_line(lines)
        good = line in (b"DELETED\r\n", b"NOT_FOUND\r\n") if value is None else line == b"STORED\r\n"
        assert good, f"unexpected reply {line!r} to {'delete' if value is None else 'set'}"


def read_line(lines):
    line = lines.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def verify(resp, state):
    """Checks every key over RESP. The value left by an unacknowledged request becomes the expected value."""
    host, port = resp.rsplit(":", 1)
    found = lost = 0
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        lines = connection.makefile("rwb")
        for name, held in sorted(state.items()):
            lines.write(f"*2\r\n$3\r\nGET\r\n${len(name)}\r\n{name}\r\n".encode())
            lines.flush()
            header = read_line(lines)
            value = None if header == b"$-1\r\n" else lines.read(int(header[1:]) + 2)[:-2].decode()
            allowed = [held["acked"]] + held.get("asked", [])
            if value not in allowed:
                lost += 1
                shown = [text and text[:20] for text in [value, *allowed]]
                print(f"LOST {name}: holds {shown[0]!r}, acknowledged {shown[1]!r}, requested {shown[2:]!r}")
            held["acked"] = value
            held.pop("asked", None)
            found += 1
    return found, lost


def main():
    binary, directory, kills, seed, *words = sys.argv[1:]
    kills, state, answered, failures = int(kills), {}, 0, 0
    rolls = random.Random(seed)
    for kill in range(kills + 1):
        durability = "sync" if kill < (kills + 1) // 2 else "everysec"
        with Server(binary, [*words, "--durability", durability], directory) as server:
            checked, lost = verify(server.places["resp"], state)
            failures += lost
            if kill == kills:
                server.stop()
                break
            kinds = [(Resp, server.places["resp"]), (Memcached, server.places["memcached"])]
            writers = [kind(f"{kind.__name__.lower()}{i}", at, f"{seed}.{kill}", state) for kind, at in kinds for i in range(WRITERS)]
            for writer in writers:
                writer.start()
            time.sleep(rolls.uniform(0.05, 0.5))
            server.process.kill()
            server.process.wait()
            for writer in writers:
                writer.join(30)
                if writer.failure:
                    failures += 1
                    print(f"FAILED {writer.name}: {writer.failure}")
                answered += writer.answers
    assert answered > kills * 20, f"only {answered} replies: too little load for a meaningful test"
    print(f"kill -9: {kills} kills, {answered} replies, {checked} keys checked, {failures} failures (seed {seed})")
    sys.exit(1 if failures else 0)


main()
