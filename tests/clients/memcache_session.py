"""A session of pymemcache with a FAWN server: memcache_session.py HOST:PORT."""

import socket
import sys
import time

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError, MemcacheServerError


def storage(client):
    value = bytes(range(256)) * 16
    assert client.set("m", value, noreply=False) and client.get("m") == value
    assert client.add("m", b"x", noreply=False) is False and client.replace("none", b"x", noreply=False) is False
    assert client.append("m", b"end", noreply=False) and client.get("m") == value + b"end"
    assert client.prepend("m", b"start", noreply=False) and client.get("m") == b"start" + value + b"end"
    assert client.append("none", b"x", noreply=False) is False
    assert client.set("empty", b"", noreply=False) and client.get("empty") == b""
    client.set("quiet", b"v", noreply=True)
    assert client.get("quiet") == b"v"
    assert client.delete("quiet", noreply=False) is True and client.delete("quiet", noreply=False) is False


def cas(client):
    client.set("c", b"1", noreply=False)
    value, version = client.gets("c")
    assert value == b"1" and client.cas("c", b"2", version, noreply=False) is True
    assert client.cas("c", b"3", version, noreply=False) is False, "a stale cas must not write"
    assert client.cas("none", b"3", version, noreply=False) is None
    assert client.get("c") == b"2"


def counters(client):
    client.set("n", b"10", noreply=False)
    assert client.incr("n", 5, noreply=False) == 15 and client.decr("n", 20, noreply=False) == 0
    client.set("n", b"100", noreply=False)
    assert client.decr("n", 1, noreply=False) == 99 and client.get("n") == b"99 ", "a counter never gets shorter"
    client.set("n", b"18446744073709551615", noreply=False)
    assert client.incr("n", 1, noreply=False) == 0, "incr wraps around at 64 bits"
    assert client.incr("none", 1, noreply=False) is None
    client.set("n", b"x", noreply=False)
    try:
        client.incr("n", 1, noreply=False)
        raise AssertionError("incr of text must be rejected")
    except MemcacheClientError:
        pass


def many(client):
    values = {f"many{i}": b"%d" % i for i in range(300)}
    assert client.set_many(values, noreply=False) == []
    assert client.get_many(list(values) + ["never"]) == values
    assert len(client.gets_many(list(values)[:10])) == 10
    client.delete_many(list(values), noreply=False)
    assert client.get_many(list(values)) == {}


def expiry(client):
    client.set("t", b"v", expire=-1, noreply=False)
    assert client.get("t") is None, "a negative time expires at once"
    client.set("t", b"v", expire=100, noreply=False)
    assert client.touch("t", 1, noreply=False) is True and client.touch("none", 1, noreply=False) is False
    deadline = time.monotonic() + 6
    while client.get("t") is not None:
        assert time.monotonic() < deadline, "a touched key must expire"


def get_and_touch(host, port):
    """`gat` and `gats` over a plain socket, since pymemcache does not have them."""
    with socket.create_connection((host, port), timeout=20) as connection:
        lines = connection.makefile("rwb")
        lines.write(b"set g 7 0 1\r\nv\r\ngat 100 g none\r\ngats 0 g\r\ndelete g\r\n")
        lines.flush()
        heard = [lines.readline() for _ in range(8)]
        lines.write(b"set f 9 100 1\r\n1\r\nincr f 1\r\nappend f 0 0 1\r\n0\r\nget f\r\ndelete f\r\n")
        lines.flush()
        kept = [lines.readline() for _ in range(7)]
    assert kept[1:6] == [b"2\r\n", b"STORED\r\n", b"VALUE f 9 2\r\n", b"20\r\n", b"END\r\n"], kept
    assert heard[:4] == [b"STORED\r\n", b"VALUE g 7 1\r\n", b"v\r\n", b"END\r\n"], heard
    assert heard[4].startswith(b"VALUE g 7 1 ") and heard[5:] == [b"v\r\n", b"END\r\n", b"DELETED\r\n"], heard


def server(client):
    assert client.version()
    stats = client.stats()
    assert b"curr_items" in stats and b"cmd_get" in stats, sorted(stats)
    for call in (
        lambda: client.set("k" * 251, b"v", noreply=False),
        lambda: client.set("big", b"x" * (9 << 20), noreply=False),
    ):
        try:
            call()
            raise AssertionError("a request beyond a limit must be rejected")
        except (MemcacheClientError, MemcacheServerError, MemcacheIllegalInputError):
            pass
    assert client.get("c") == b"2", "a rejected request must not stop the service"


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    client = Client((host, int(port)), timeout=20, connect_timeout=20, default_noreply=False)
    parts = [storage, cas, counters, many, expiry, server]
    for part in parts:
        part(client)
    get_and_touch(host, int(port))
    for key in ["m", "c", "n", "empty"]:
        client.delete(key, noreply=False)
    print(f"pymemcache: {len(parts) + 1} parts passed")


main()
