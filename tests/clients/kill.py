"""Kills a real FAWN server under load, again and again, and looks for anything acknowledged that is missing.

kill.py BINARY DIR KILLS SEED WORDS…      e.g. kill.py target/release/fawn /tmp/k 30 1 demo

WORDS start the server (`serve`, `demo`); the first half of the kills runs under `sync`, the second under `everysec`,
on the same directory. Writers of both protocols write ever larger numbers to keys of their own, delete some, and
remember the last answer per key. After each kill -9 and restart every key must hold what was last acknowledged, or
what was asked and not answered when the server died; never less, never anything else.
"""

import random
import socket
import sys
import threading
import time

from server import Server

WRITERS = 2  # of each protocol
KEYS = 40  # of each writer
PIPELINE = 8


class Writer(threading.Thread):
    """One connection that writes to its own keys; `acked` and `asked` hold, per key, the last known values."""

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
            pass  # the server was killed: that is the point
        except Exception as error:  # anything else is a finding
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
        assert good, f"{line!r} in answer to {'DEL' if value is None else 'SET'}"


class Memcached(Writer):
    def ask(self, lines, name, value):
        lines.write(f"delete {name}\r\n".encode() if value is None else f"set {name} 0 0 {len(value)}\r\n{value}\r\n".encode())

    def hear(self, lines, value):
        line = read_line(lines)
        good = line in (b"DELETED\r\n", b"NOT_FOUND\r\n") if value is None else line == b"STORED\r\n"
        assert good, f"{line!r} in answer to a {'delete' if value is None else 'set'}"


def read_line(lines):
    line = lines.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def verify(resp, state):
    """Reads every key over RESP; what an unanswered request left behind becomes the new truth."""
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
                print(f"LOST {name}: holds {shown[0]!r}, acknowledged {shown[1]!r}, asked {shown[2:]!r}")
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
    assert answered > kills * 20, f"only {answered} answers: the load was no load"
    print(f"kill -9: {kills} kills, {answered} answers, {checked} keys checked, {failures} failures (seed {seed})")
    sys.exit(1 if failures else 0)


main()
