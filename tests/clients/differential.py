"""Sends random requests to FAWN and to redis-server or memcached, and compares the replies.

    differential.py BINARY DIRECTORY SEED [SECONDS [WORDS…]]

Redis is tested in RESP2 and RESP3, memcached in its text protocol. Intended differences are listed in docs/guide/commands.md
and excluded below, each with its reason. Any other difference ends the run and prints the seed and the requests since
the keys were last removed.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from server import Server, resp

ROUND_REQUESTS = 60
SHOWN_REQUESTS = 25
# The two servers receive a request at different times, so remaining times may differ by this much.
SLACK_MS = 1500


class Peer:
    """The reference server of the protocol, on a free loopback port, without persistence."""

    def __init__(self, make_command):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.directory = tempfile.mkdtemp()
        command = make_command(self.port, self.directory)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def connect(self):
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=20)
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def redis_command(port, directory):
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return command + ["--dir", directory, "--databases", "1", "--loglevel", "warning"]


def memcached_command(port, _directory):
    user = ["-u", "root"] if os.geteuid() == 0 else []
    return ["memcached", "-l", "127.0.0.1", "-p", str(port), "-I", "8m", "-m", "64", *user]


class Wire:
    """A connection's input, from which complete replies are taken."""

    def __init__(self, connection):
        self.connection = connection
        self.buffer = b""

    def send(self, data):
        self.connection.sendall(data)

    def more(self):
        data = self.connection.recv(1 << 16)
        if not data:
            raise EOFError(f"closed after {self.buffer[-200:]!r}")
        self.buffer += data

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def block(self, size):
        while len(self.buffer) < size + 2:
            self.more()
        block, self.buffer = self.buffer[:size], self.buffer[size + 2 :]
        return block

    def value(self):
        """Parses a RESP2 or RESP3 value with its type character, so that a bulk string differs from a simple string."""
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind in (b"+", b"-", b":", b"_", b"#", b",", b"("):
            return (kind, rest)
        if kind in (b"$", b"="):
            return (kind, self.block(int(rest)) if rest != b"-1" else None)
        if kind in (b"*", b"~", b">"):
            return (kind, [self.value() for _ in range(int(rest))] if rest != b"-1" else None)
        if kind == b"%":
            return (kind, [(self.value(), self.value()) for _ in range(int(rest))])
        raise AssertionError(f"no reply begins with {line!r}")

    def text(self):
        """Reads the memcached replies up to the reply to the `version` that follows each request."""
        reply = []
        while True:
            line = self.line()
            if line.startswith(b"VERSION "):
                return reply
            words = line.split(b" ")
            if words[0] == b"VALUE":
                reply.append((b" ".join(words[:4]), words[4:], self.block(int(words[3]))))
            else:
                reply.append(line)


class Redis:
    """Random requests in RESP."""

    KEYS = [b"a", b"b", b"c", b"n", b"", b"\x00", b"k\r\nx", b"{t}1", b"{t}2", b"x" * 300, "é".encode()]
    VALUES = [b"", b"0", b"1", b"-1", b"10", b"007", b"+1", b" 1", b"1 ", b"1.5", b"1e3", b"-0", b"x", b"\r\n", b"v" * 40]
    VALUES += [b"9223372036854775807", b"-9223372036854775808", b"9223372036854775808", b"18446744073709551615"]
    VALUES += [b"\xff\x00", b"v" * 5000, b"nan"]
    # Invalid, overflowing or past times. A time in the near future could expire between the requests to the two
    # servers.
    TIMES = [b"", b"0", b"-1", b"+1", b" 1", b"1.5", b"1e3", b"-0", b"x", b"-9223372036854775808"]
    TIMES += [b"9223372036854775807", b"9223372036854775808", b"9223372036854776", b"-9223372036854775"]
    NUMBERS = VALUES + TIMES + [b"2", b"100", b"-5", b"99999999999"]
    WORDS = [b"NX", b"XX", b"GT", b"LT", b"GET", b"EX", b"PX", b"EXAT", b"PXAT", b"KEEPTTL", b"PERSIST", b"nx", b"Ex"]
    WORDS += [b"", b"x", b"100", b"MATCH", b"COUNT", b"TYPE"]

    def __init__(self, random):
        self.random = random

    def key(self):
        return self.random.choice(self.KEYS)

    def word(self):
        return self.random.choice(self.random.choice([self.KEYS, self.VALUES, self.NUMBERS, self.WORDS, self.WORDS]))

    def near(self, seconds):
        """A time near the present, or an unusual one."""
        if self.random.random() < 0.3:
            return self.random.choice(self.TIMES)
        # Times are far enough apart that both servers agree which one is later.
        later = 10 * self.random.randrange(10, 10000)
        at = self.random.choice([-100, 10**14 + later, later])
        return b"%d" % (at if seconds else at * 1000)

    def instant(self, seconds):
        if self.random.random() < 0.3:
            return self.random.choice(self.TIMES)
        at = int(time.time()) + self.random.choice([-1000, 10 * self.random.randrange(10, 10000)])
        return b"%d" % (at if seconds else at * 1000)

    def time_option(self):
        name = self.random.choice([b"EX", b"PX", b"EXAT", b"PXAT", b"ex"])
        make = self.instant if name.endswith(b"AT") else self.near
        return [name, make(name.upper().startswith(b"EX"))]

    def options(self, *choices):
        words = []
        for _ in range(self.random.choice([0, 0, 1, 1, 1, 2, 2, 3])):
            words += self.random.choice(choices)()
        return words

    def one_of(self, *words):
        return lambda: [self.random.choice(words)]

    SET = [b"NX", b"XX", b"GET", b"KEEPTTL", b"PERSIST", b"get", b"GT"]
    GETEX = [b"PERSIST", b"persist", b"NX", b"EX"]

    def when(self):
        return self.options(self.one_of(b"NX", b"XX", b"GT", b"LT", b"lt", b"EX"))

    def keys(self):
        return [self.key() for _ in range(self.random.choice([1, 1, 2, 3, 5]))]

    def request(self):
        pick = self.random.choice
        make = pick(
            [
                lambda: [b"SET", self.key(), pick(self.VALUES)],
                lambda: [b"SET", self.key(), pick(self.VALUES)] + self.options(self.time_option, self.one_of(*self.SET)),
                lambda: [b"GETEX", self.key()] + self.options(self.time_option, self.one_of(*self.GETEX)),
                lambda: [pick([b"GET", b"STRLEN", b"GETDEL", b"INCR", b"DECR", b"get"]), self.key()],
                lambda: [pick([b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME", b"TYPE", b"PERSIST"]), self.key()],
                lambda: [pick([b"APPEND", b"GETSET", b"SETNX"]), self.key(), pick(self.VALUES)],
                lambda: [pick([b"INCRBY", b"DECRBY"]), self.key(), pick(self.NUMBERS)],
                lambda: [b"SETEX", self.key(), self.near(True), pick(self.VALUES)],
                lambda: [b"PSETEX", self.key(), self.near(False), pick(self.VALUES)],
                lambda: [b"EXPIRE", self.key(), self.near(True)] + self.when(),
                lambda: [b"PEXPIRE", self.key(), self.near(False)] + self.when(),
                lambda: [b"EXPIREAT", self.key(), self.instant(True)] + self.when(),
                lambda: [b"PEXPIREAT", self.key(), self.instant(False)] + self.when(),
                lambda: [pick([b"DEL", b"UNLINK", b"EXISTS", b"TOUCH", b"MGET"])] + self.keys(),
                # One hash tag, so that MSET works with any number of shards.
                lambda: [b"MSET"] + [word for _ in range(pick([1, 2, 3])) for word in (pick([b"{t}1", b"{t}2"]), pick(self.VALUES))],
                lambda: [pick([b"ECHO", b"PING"]), pick(self.VALUES)],
                lambda: [b"DBSIZE"],
                lambda: [b"SCAN", b"0", b"COUNT", b"1000"]
                + self.options(lambda: [b"MATCH", pick([b"*", b"a", b"[a-c]", b"\\a", b"?", b"{t}*", b"[^a]", b"", b"*x*", b"[", b"a\\"])],
                               lambda: [b"TYPE", pick([b"string", b"STRING", b"list", b""])]),
                lambda: [b"SELECT", pick([b"0", b"0", b"1", b"x", b"-1", b"99999999999999999999"])],
                lambda: [b"CLIENT", b"SETNAME", pick([b"n", b"a b", b"", b"x\n", b"\xc3\xa9", b"y~"])],
                lambda: [b"CLIENT", b"GETNAME"],
                self.any_words,
            ]
        )
        return make()

    def any_words(self):
        name = self.random.choice(self.NAMES)
        words = [self.word() for _ in range(self.random.choice([0, 1, 2, 3, 4]))]
        if b"EX" in name or b"EXP" in name or name == b"SET":
            # No time in the near future, which could expire between the requests to the two servers.
            words = [b"x" if word.strip().isdigit() and 0 < int(word) < 100_000 else word for word in words]
        return [name, *words]

    # Commands for any number of random arguments. HELLO, RESET and QUIT are excluded: they change how replies are
    # parsed.
    NAMES = [b"APPEND", b"DECR", b"DECRBY", b"GET", b"GETDEL", b"GETEX", b"GETSET", b"INCR", b"INCRBY", b"MGET", b"PSETEX"]
    NAMES += [b"SET", b"SETEX", b"SETNX", b"STRLEN", b"DEL", b"EXISTS", b"EXPIRE", b"EXPIREAT", b"EXPIRETIME", b"PERSIST"]
    NAMES += [b"PEXPIRE", b"PEXPIREAT", b"PEXPIRETIME", b"PTTL", b"TOUCH", b"TTL", b"TYPE", b"UNLINK", b"ECHO", b"PING"]
    NAMES += [b"SELECT", b"DBSIZE", b"NOSUCH", b"", b"no\r\nsuch", b"CLIENT", b"COMMAND", b"FLUSHALL", b"FLUSHDB", b"SCAN"]


def same_time(left, right, scale_ms):
    return left > 0 and right > 0 and abs(left - right) * scale_ms <= max(SLACK_MS, scale_ms)


def redis_equal(words, ours, theirs):
    if ours == theirs:
        return True
    name = words[0].upper()
    if name in (b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME") and ours[0] == theirs[0] == b":":
        scale_ms = 1 if name.startswith(b"P") else 1000
        return same_time(int(ours[1]), int(theirs[1]), scale_ms)
    if name == b"SCAN" and ours[0] == theirs[0] == b"*":
        return ours[1][0] == theirs[1][0] and sorted(ours[1][1][1]) == sorted(theirs[1][1][1])
    return False


def redis_left_out(words, ours, theirs):
    """Whether the difference is intended."""
    name = words[0].upper()
    if ours[0] == theirs[0] == b"-":
        # Redis ends error texts at a zero byte, and prints bytes that are not UTF-8 differently.
        ours, theirs = (kept(text[1]) for text in (ours, theirs))
        return ours == theirs or name == b"SCAN" and ours == b"ERR invalid cursor" or name == b"SELECT"
    if ours[0] == b"-":
        # FAWN checks arguments before it reads the key, and requires a numeric cursor.
        absent = theirs in ((b"$", None), (b"_", b""))
        return name == b"GETEX" and absent or name == b"SCAN" and ours[1] == b"ERR invalid cursor"
    if name == b"DBSIZE":
        # Redis counts a key with an expiry time in the past until a request accesses it.
        return int(ours[1]) <= int(theirs[1])
    if name == b"SCAN" and words[1] != b"0":
        # A cursor that neither server has returned.
        return True
    # The command tables differ.
    return name == b"COMMAND"


def kept(text):
    """An error without the parts in which the servers quote unusual or long words differently."""
    for odd in (b"\xef\xbf\xbd", b"\xff", b"\x00", b"'", b"x" * 64, b"v" * 40):
        text = text.split(odd)[0]
    return text.strip()


def redis_round(random, protocol, ours, theirs):
    generator = Redis(random)
    for wire in (ours, theirs):
        wire.send(resp("FLUSHALL") + resp("HELLO", protocol))
        wire.value(), wire.value()
    requests = [generator.request() for _ in range(ROUND_REQUESTS)]
    if random.random() < 0.3:
        # One by one: covers both replies that wait for a commit and replies that do not.
        pieces = [[request] for request in requests]
    else:
        pieces = [requests]
    done = []
    for piece in pieces:
        data = b"".join(resp(*words) for words in piece)
        for wire in (ours, theirs):
            wire.send(data)
        for words in piece:
            done.append(words)
            left, right = ours.value(), theirs.value()
            if not redis_equal(words, left, right) and not redis_left_out(words, left, right):
                report(f"RESP{protocol}", done, left, right)
    return len(done)


class Memcached:
    """Random requests in memcached's text protocol. `{CAS}` stands for the last version that the server returned."""

    KEYS = [b"a", b"b", b"c", b"n", b"k" * 250, b"k" * 251, b"\xc3\xa9", b"a\x01", b"a\tb", b"a\x7f", b"noreply", b"0"]
    VALUES = [b"", b"0", b"1", b"10", b"99", b"007", b"-1", b" 1", b"5 ", b"x", b"1x", b"\r\nx", b"get a\r\n", b"v" * 3000]
    VALUES += [b"18446744073709551615", b"18446744073709551616", b"18446744073709551614", b"123456789012345678901"]
    NUMBERS = [b"0", b"1", b"5", b"100", b"18446744073709551615", b"18446744073709551616", b"-1", b"x", b"1x", b"+1", b"01"]
    NUMBERS += [b"4294967295", b"4294967296", b"9223372036854775807", b"2147483648", b"1.5"]
    TIMES = [b"0", b"0", b"0", b"100", b"-1", b"2592000", b"2592001", b"2000000000", b"x", b"1x", b"+5", b"-0"]
    STORES = [b"set", b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas"]

    def __init__(self, random):
        self.random = random

    def key(self):
        # Mostly valid keys.
        return self.random.choice(self.KEYS[:4] if self.random.random() < 0.7 else self.KEYS)

    def ending(self):
        return self.random.choice([[], [], [], [b"noreply"], [b"noreply"], [b"x"], [b""]])

    def number(self):
        return self.random.choice(self.NUMBERS if self.random.random() < 0.3 else self.NUMBERS[:5])

    def time(self):
        return self.random.choice(self.TIMES if self.random.random() < 0.3 else self.TIMES[:6])

    def store(self):
        name, value = self.random.choice(self.STORES), self.random.choice(self.VALUES)
        flags = self.random.choice([b"0", b"0", b"7", b"4294967295", b"4294967296", b"-1", b"x", b"01"])
        words = [name, self.key(), flags, self.time(), b"%d" % len(value)]
        if name == b"cas":
            words.append(self.random.choice([b"{CAS}", b"{CAS}", b"1", b"x", b"-1", b"18446744073709551616"]))
        return b" ".join(words + self.ending()) + b"\r\n" + value + b"\r\n"

    def request(self):
        pick = self.random.choice
        make = pick(
            [
                self.store,
                self.store,
                self.store,
                lambda: [pick([b"get", b"gets"])] + [self.key() for _ in range(pick([1, 1, 1, 2, 3, 0]))],
                lambda: [pick([b"get", b"gets"])] + [self.key() for _ in range(pick([1, 1, 1, 2, 30]))],
                lambda: [pick([b"gat", b"gats"]), self.time()] + [self.key() for _ in range(pick([1, 1, 2, 0]))],
                lambda: [pick([b"incr", b"decr"]), self.key(), self.number()] + self.ending(),
                lambda: [b"touch", self.key(), self.time()] + self.ending(),
                lambda: [b"delete", self.key()] + pick([[], [], [b"0"], [b"5"], [b"x"], [b"0", b"noreply"]]) + self.ending(),
                lambda: [b"verbosity"] + pick([[], [b"1"], [b"1", b"1"]]) + self.ending(),
                lambda: [pick([b"nosuch", b"", b"GET", b"SET", b"version x", b"flush_all x", b"touch", b"incr", b"delete", b"get "])]
                + [pick(self.KEYS[:4] + self.NUMBERS[:3]) for _ in range(pick([0, 0, 1, 2]))],
            ]
        )
        made = make()
        return made if isinstance(made, bytes) else b" ".join(made) + pick([b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n"])


    # Maximum number of words per line, without `noreply`. memcached ignores surplus words.
    WORDS = {b"set": 5, b"add": 5, b"replace": 5, b"append": 5, b"prepend": 5, b"cas": 6, b"touch": 3, b"incr": 3, b"decr": 3}
    WORDS |= {b"delete": 3, b"verbosity": 2, b"version": 1, b"flush_all": 2}


def memcached_round(random, ours, theirs):
    generator, done = Memcached(random), []
    for wire in (ours, theirs):
        wire.cas = b"1"
        wire.send(b"flush_all\r\nversion\r\n")
        wire.text()
    for _ in range(ROUND_REQUESTS):
        request = generator.request()
        done.append(request)
        replies = []
        for wire in (ours, theirs):
            wire.send(request.replace(b"{CAS}", wire.cas) + b"version\r\n")
            reply = wire.text()
            for line in reply:
                # Each server has its own versions.
                if isinstance(line, tuple) and line[1]:
                    wire.cas = line[1][0]
            replies.append([(line[0], len(line[1]), line[2]) if isinstance(line, tuple) else line for line in reply])
        if replies[0] == replies[1]:
            continue
        if not memcached_left_out(request, *replies):
            report("memcached", done, *replies)
        # One server may have stored a value that the other one rejected.
        break
    return len(done)


def memcached_left_out(request, ours, theirs):
    """Whether the difference is intended: FAWN rejects lines that memcached accepts, ignores or splits."""
    if len(ours) != 1 or not ours[0].startswith((b"ERROR", b"CLIENT_ERROR")):
        return False
    words = [word for word in request.split(b"\n")[0].strip(b"\r").split(b" ") if word]
    silent = words[-1:] == [b"noreply"]
    return (
        silent
        or len(words) > Memcached.WORDS.get(words[0], len(words))
        # Keys with control characters, and numbers with a plus sign.
        or any(word.startswith(b"+") or any(byte < 32 or byte == 127 for byte in word) for word in words)
        # FAWN drops the data block after a rejected line; memcached executes it as commands.
        or words[0] in Memcached.STORES and (theirs[:1] == ours or words[2] == b"4294967296")
        or words[0] == b"delete" and theirs == [ours[0] + b".  Usage: delete <key> [noreply]"]
        or words[0] in (b"gat", b"gats") and len(words) == 2
    )


def report(protocol, done, ours, theirs):
    print(f"{protocol}: replies differ. The last requests since the keys were removed:")
    for request in done[-SHOWN_REQUESTS:]:
        print("   ", str(request)[:400])
    print(f"FAWN:  {str(ours)[:600]}\ntheirs: {str(theirs)[:600]}")
    raise AssertionError("replies differ")


def main():
    binary, directory, seed = sys.argv[1:4]
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 12
    words = sys.argv[5:] or ["serve"]
    print(f"again: tests/clients/differential.py {' '.join(sys.argv[1:3])} {seed} {seconds:g} {' '.join(words)}")
    source, count = random.Random(seed), 0
    with (
        Peer(redis_command) as redis,
        Peer(memcached_command) as memcached,
        Server(binary, [*words, "--durability", "memory"], directory) as server,
    ):
        resp_wires = Wire(server.connect()), Wire(redis.connect())
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            count += redis_round(source, source.choice([2, 3]), *resp_wires)
            # New connections for each round: after a rejected line, the servers may disagree about the start of the
            # next one.
            with server.connect("memcached") as ours, memcached.connect() as theirs:
                count += memcached_round(source, Wire(ours), Wire(theirs))
        server.stop()
    assert count > 1000, f"only {count} requests were compared"
    print(f"{count} requests had the same replies as from redis-server and memcached")


main()
