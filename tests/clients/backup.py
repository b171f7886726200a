"""Backs up a server under load and restores the backups while it goes on; every restored key is as new as it was acknowledged.

backup.py BINARY DIR ROUNDS SEED WORDS…      e.g. backup.py target/release/fawn /tmp/b 4 1 serve --shards 2

WORDS start the server. Writers set their keys to increasing numbers. In each round a backup is made and restored, once
with links and once without. A second server on the restored directory must have, for every key, a number between the
last one acknowledged before the backup began and the last one sent when it ended. That server then writes, while the
first one goes on, and both must close in good order: the directories share no file that either of them changes.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import threading

from server import Server, resp

WRITERS = 3
KEYS = 2000  # per writer
PIPELINE = 64
SEGMENT = "1M"
MEMORY = "64M"


class Writer(threading.Thread):
    """One connection that sets its own keys; `asked` and `acked` have the last number sent and acknowledged of each."""

    def __init__(self, name, server, seed):
        super().__init__(daemon=True)
        self.name, self.connection, self.random = name, server.connect(), random.Random(f"{seed}{name}")
        self.asked, self.acked, self.failure, self.is_ended = [0] * KEYS, [0] * KEYS, None, False

    def run(self):
        try:
            with self.connection, self.connection.makefile("rwb") as lines:
                while not self.is_ended:
                    self.batch(lines)
        except Exception as error:  # a failure of the test
            self.failure = f"{type(error).__name__}: {error}"

    def batch(self, lines):
        # A third of the writes are on hot keys, so that segments are cleaned.
        keys = self.random.sample(range(KEYS // 20 if self.random.random() < 0.33 else KEYS), PIPELINE)
        for key in keys:
            self.asked[key] += 1
            value = f"{self.asked[key]}:{'x' * self.random.randrange(0, 1500)}"
            lines.write(resp("SET", f"{self.name}:{key}", value))
        lines.flush()
        for key in keys:
            reply = lines.readline()
            assert reply == b"+OK\r\n", reply
            self.acked[key] = self.asked[key]


def numbers(server, writer):
    """The number of each key of a writer, 0 for those that are absent."""
    found = []
    with server.connect() as connection, connection.makefile("rwb") as lines:
        for first in range(0, KEYS, PIPELINE):
            count = min(PIPELINE, KEYS - first)
            lines.write(b"".join(resp("GET", f"{writer.name}:{key}") for key in range(first, first + count)))
            lines.flush()
            for _ in range(count):
                length = int(lines.readline()[1:])
                value = lines.read(length + 2) if length >= 0 else b"0:"
                found.append(int(value.split(b":")[0]))
    return found


def fawn(binary, *words):
    done = subprocess.run([binary, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def refused(binary, *words):
    done = subprocess.run([binary, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode not in (0, 101), f"{words} was not refused\n{done.stdout}{done.stderr}"
    return done.stderr


def one_round(binary, words, directory, writers, extra):
    backup, restored = directory + ".backup", directory + ".restored"
    for stale in (backup, restored):
        shutil.rmtree(stale, ignore_errors=True)
    before = [list(writer.acked) for writer in writers]
    said = fawn(binary, "backup", directory, backup, *extra)
    after = [list(writer.asked) for writer in writers]
    said += fawn(binary, "restore", backup, restored, *extra)
    assert "sound" in fawn(binary, "check", backup)
    with Server(binary, words, restored) as server:
        for writer, low, high in zip(writers, before, after):
            for key, number in enumerate(numbers(server, writer)):
                assert low[key] <= number <= high[key], f"{writer.name}:{key} is {number}, not in {low[key]}..{high[key]}"
        rewriters = [Writer(f"r{i}", server, i) for i in range(2)]
        for writer in rewriters:
            for _ in range(40):
                writer.batch(writer.connection.makefile("rwb"))
        server.stop()
    assert "sound" in fawn(binary, "check", restored)
    assert "sound" in fawn(binary, "check", backup), "a server on the restored directory changed the backup"
    print(*said.splitlines(), sep="; ")
    return int(re.search(r"(\d+) files? linked", said).group(1)) > 0


def bad_input(binary, directory):
    """What is refused: targets that are taken, backups that are incomplete."""
    backup, other = directory + ".backup", directory + ".other"
    shutil.rmtree(other, ignore_errors=True)
    assert "not empty" in refused(binary, "backup", directory, backup)
    assert "not empty" in refused(binary, "restore", backup, directory)
    assert "stays as it is" in refused(binary, "backup", directory, os.path.join(directory, "copy"))
    assert "no such directory" in refused(binary, "restore", directory + ".none", other)
    os.mkdir(other)
    assert "no manifest" in refused(binary, "restore", other, directory + ".third")
    os.rmdir(other)
    shards = [name for name in os.listdir(backup) if name.startswith("shard-")]
    store = os.path.join(backup, shards[0]) if shards else backup
    segment = sorted(name for name in os.listdir(store) if name.startswith("segment-"))[0]
    os.rename(os.path.join(store, segment), directory + ".segment")
    assert segment in refused(binary, "restore", backup, other), "the missing file is named"
    assert not os.path.exists(other + ".partial"), "what was copied of it is removed"
    os.rename(directory + ".segment", os.path.join(store, segment))
    os.unlink(os.path.join(store, "manifest"))
    assert "holds no store" in refused(binary, "restore", backup, other)


def main():
    binary, directory, rounds, seed, *words = sys.argv[1:]
    words += ["--segment", SEGMENT, "--memory", MEMORY, "--durability", "everysec"]
    with Server(binary, words, directory) as server:
        writers = [Writer(f"w{i}", server, seed) for i in range(WRITERS)]
        for writer in writers:
            writer.start()
        for at in range(int(rounds)):
            is_linked = one_round(binary, words, directory, writers, ["--copy"] if at % 2 else [])
            # In the first round no segment may be complete yet.
            assert is_linked == (at % 2 == 0) or at == 0, f"round {at}"
            assert all(writer.is_alive() for writer in writers), [writer.failure for writer in writers]
        for writer in writers:
            writer.is_ended = True
            writer.join()
            assert writer.failure is None, writer.failure
            assert numbers(server, writer) == writer.acked, "the source has every write"
        server.stop()
    assert "sound" in fawn(binary, "check", directory)
    bad_input(binary, directory)
    print(f"{rounds} backups restored; {sum(sum(writer.acked) for writer in writers)} writes meanwhile")


main()
