"""Counts a FAWN server's system calls per request: syscalls.py BINARY DIR.

The server runs under strace. It is stopped while 50 connections send, and continued once all input has arrived. So
each loop iteration finds the same input on every machine, and the counts are reproducible. The limits apply to all
threads of the process, including background work.
"""

import collections
import os
import re
import signal
import sys
import time

from server import Server, resp

CONNECTIONS = 50
KEYS = 1000
VALUE = b"v" * 64
STOP_LIMIT_S = 30
# `PID name(…) = …`, or two lines: `PID name(… <unfinished ...>` and `PID <... name resumed>…) = …`.
CALL = re.compile(r"^\d+ +(<\.\.\. )?([a-z0-9_]+)")
INTERRUPTED = re.compile(r"= \?? ?(-1 EINTR|ERESTART)")


class Traced(Server):
    """A server under strace; its system calls can be counted over any period."""

    def __init__(self, binary, words, directory):
        self.trace = directory + ".strace"
        before = ("strace", "-f", "-qq", "-e", "signal=none", "-s", "0", "-o", self.trace)
        super().__init__(binary, words, directory, before)
        (self.pid,) = children(self.process.pid)

    def pause(self):
        os.kill(self.pid, signal.SIGSTOP)
        self.await_states("tT")

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def await_states(self, wanted):
        deadline = time.monotonic() + STOP_LIMIT_S
        while not all(state in wanted for state in states(self.pid)):
            assert time.monotonic() < deadline, f"the server's threads are {states(self.pid)}, expected {wanted}"
            time.sleep(0.0005)

    def __exit__(self, *failure):
        # Kill the server first: strace ends with it.
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        super().__exit__(*failure)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def states(pid):
    """The state letter of each thread."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            found.append(file.read().rsplit(")", 1)[1].split()[0])
    return found


def counted(path, start):
    """Calls by name in the trace after byte `start`, without calls that our SIGSTOP interrupted."""
    calls = collections.Counter()
    with open(path, errors="replace") as trace:
        trace.seek(start)
        for line in trace:
            if found := CALL.match(line):
                resumed, name = found.groups()
                calls[name] += (0 if resumed else 1) - (1 if INTERRUPTED.search(line) else 0)
    return calls


def rounds(server, connections, count, request, answer):
    """Sends `request` on all connections at once and reads `answer` from each, `count` times."""
    for _ in range(count):
        server.pause()
        for connection in connections:
            connection.sendall(request)
        server.go_on()
        for connection in connections:
            heard = b""
            while len(heard) < len(answer):
                part = connection.recv(1 << 20)
                assert part, "the server closed the connection"
                heard += part
            assert heard == answer, f"{heard[:80]!r}, expected {answer[:80]!r}"


def measure(binary, directory, durability, name, request, answer, pipeline, count, most):
    with Traced(binary, ["serve", "--durability", durability], directory) as server:
        connections = [server.connect() for _ in range(CONNECTIONS)]
        load = b"".join(resp("SET", f"key:{n}", VALUE) for n in range(KEYS))
        rounds(server, connections[:1], 1, load, b"+OK\r\n" * KEYS)
        # Warm up, so that growing buffers are not counted.
        rounds(server, connections, 2, request * pipeline, answer * pipeline)
        start = os.path.getsize(server.trace)
        rounds(server, connections, count, request * pipeline, answer * pipeline)
        calls = counted(server.trace, start)
        for connection in connections:
            connection.close()
    requests = CONNECTIONS * count * pipeline
    total = sum(calls.values()) / requests
    parts = sorted(((calls[call], call) for call in calls), reverse=True)[:6]
    shown = ", ".join(f"{call} {number / requests:.4f}" for number, call in parts)
    print(f"{name}: {total:.3f} system calls per request, at most {most} allowed ({shown})")
    assert calls, "no calls were counted: the trace is empty"
    assert total <= most, f"{name}: {total:.3f} system calls per request, at most {most} allowed"


def main():
    binary, directory = sys.argv[1:]
    os.makedirs(directory, exist_ok=True)
    get, found = resp("GET", "key:7"), b"$64\r\n" + VALUE + b"\r\n"
    put, done = resp("SET", "key:7", VALUE), b"+OK\r\n"
    # The minimum is one read and one write per connection and loop iteration, and one wait per iteration.
    measure(binary, directory + "/get", "memory", "GET", get, found, 1, 40, 2.1)
    measure(binary, directory + "/get32", "memory", "GET at pipeline depth 32", get, found, 32, 10, 0.15)
    # One batch per iteration: 50 clients share its write and its sync.
    measure(binary, directory + "/set", "sync", "SET acknowledged after its sync", put, done, 1, 40, 2.3)


main()
