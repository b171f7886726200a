"""Restarts of a FAWN server that is only read: stopped and started again many times, then killed as often.

restarts.py BINARY DIR TIMES WORDS…      e.g. restarts.py target/release/fawn /tmp/r 200 demo

A range that nobody writes still begins an epoch with every start, so a fault in the epoch history shows only after many
starts without a write. Each start has to serve: a key of the first start is read over RESP before the server is stopped
(or killed with SIGKILL) again. Prints the slowest start and the mean of each half.
"""

import sys
import time

from server import Server, resp

CATALOGUE = "Package: restarts\nVersion: 1\n"
# What one start may take, seconds: a range that never serves again shows as a start that does not end.
START_LIMIT_S = 20


def read(server, key):
    """The value of `key`, or the error that stands in its place."""
    with server.connect() as connection:
        connection.sendall(resp("GET", key))
        with connection.makefile("rb") as lines:
            header = lines.readline()
            assert header.startswith(b"$") and header != b"$-1\r\n", f"GET {key}: {header!r}"
            return lines.read(int(header[1:]))


def main():
    binary, directory, times, *words = sys.argv[1:]
    times = int(times)
    words += ["--memory", "64M", "--durability", "sync"]
    if words[0] == "demo":
        path = directory + ".catalogue"
        with open(path, "w") as catalogue:
            catalogue.write(CATALOGUE)
        words += ["--catalogue", path]
    value = None
    for end in ("stopped", "killed"):
        took = []
        for start in range(1, times + 1):
            before = time.monotonic()
            try:
                with Server(binary, words, directory, start_limit_s=START_LIMIT_S) as server:
                    found = read(server, "restarts")
                    took.append(time.monotonic() - before)
                    assert found == (value or found), f"GET restarts: {found!r} instead of {value!r}"
                    value = found
                    if end == "stopped":
                        server.stop()
            except AssertionError as failure:
                sys.exit(f"start {start} of a server that is {end} each time: {failure}")
        print(f"{end} {times} times: a start takes {1000 * sum(took) / times:.0f} ms, the slowest {1000 * max(took):.0f} ms")


main()
