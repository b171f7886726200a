"""A session of redis-py with a FAWN server: redis_session.py HOST:PORT [PROTOCOL]."""

import sys
import time

import redis


def strings(client):
    assert client.set("k", b"\x00\xff\r\nvalue") is True
    assert client.get("k") == b"\x00\xff\r\nvalue"
    assert client.set("k", "other", nx=True) is None, "NX must not write a present key"
    assert client.set("absent", "v", xx=True) is None, "XX must not write an absent key"
    assert client.get("absent") is None
    assert client.set("k", "new", get=True) == b"\x00\xff\r\nvalue"
    assert client.append("k", "er") == 5 and client.strlen("k") == 5
    assert client.getset("k", "last") == b"newer"
    assert client.getdel("k") == b"last" and client.getdel("k") is None
    assert client.setnx("k", "1") is True and client.setnx("k", "2") is False
    assert client.set("empty", "") and client.get("empty") == b"", "an empty value differs from an absent one"
    big = bytes(range(256)) * 4096
    assert client.set("big", big) and client.get("big") == big


def counters(client):
    client.delete("n")
    assert client.incr("n") == 1 and client.incrby("n", 41) == 42
    assert client.decr("n") == 41 and client.decrby("n", 40) == 1
    client.set("n", "9223372036854775807")
    for call in (lambda: client.incr("n"), lambda: client.incr("empty-string")):
        client.set("empty-string", "x")
        try:
            call()
            raise AssertionError("expected an error")
        except redis.ResponseError as error:
            assert "overflow" in str(error) or "not an integer" in str(error), error


def many(client):
    # MSET requires all keys in one range, hence the hash tag. MGET and DEL do not.
    tagged = [f"{{tag}}many:{i}" for i in range(500)]
    assert client.mset({key: key.upper() for key in tagged})
    assert client.mget(tagged) == [key.upper().encode() for key in tagged] and client.delete(*tagged) == 500
    keys = [f"many:{i}" for i in range(500)]
    assert all(client.set(key, key.upper()) for key in keys)
    assert client.mget(keys) == [key.upper().encode() for key in keys]
    assert client.exists(*keys, "never") == 500
    assert set(client.scan_iter(match="many:*", count=50)) == {key.encode() for key in keys}
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.set(key, "p").get(key)
        assert pipe.execute() == [True, b"p"] * 500, "a connection must read its own writes"
    assert client.delete(*keys[:400]) == 400 and client.unlink(*keys) == 100


def expiry(client):
    client.set("t", "v", ex=100)
    assert 98 <= client.ttl("t") <= 100 and 98_000 <= client.pttl("t") <= 100_000
    assert client.persist("t") and client.ttl("t") == -1 and client.ttl("never") == -2
    assert client.expire("t", 50) and client.expire("t", 40, gt=True) is False
    assert client.getex("t", px=30_000) == b"v" and client.ttl("t") <= 30
    client.set("t", "w", keepttl=True)
    assert 0 < client.ttl("t") <= 30
    assert client.expire("t", 1000, lt=True) is False and client.expire("t", 1000, nx=True) is False
    assert client.expire("t", 5, lt=True) and client.ttl("t") <= 5
    client.set("t", "5", ex=100)
    assert client.incr("t") == 6 and client.append("t", "0") == 2 and client.get("t") == b"60"
    assert 90 <= client.ttl("t") <= 100, "INCR and APPEND must keep the expiry"
    client.set("t", "w")
    assert client.ttl("t") == -1, "a plain SET must remove the expiry"
    assert client.persist("t") is False, "no expiry to remove"
    assert client.expire("t", 50, xx=True) is False and client.expire("t", 50, gt=True) is False
    assert client.expire("t", 50, nx=True) and client.persist("t")
    client.set("soon", "v", px=40)
    deadline = time.monotonic() + 5
    while client.get("soon") is not None:
        assert time.monotonic() < deadline, "an expired key must be absent"
    assert client.exists("soon") == 0
    assert client.expire("t", -1) and client.get("t") is None


def server(client):
    assert client.ping() and client.echo("hello") == b"hello"
    assert client.type("k") in (b"string", "string") and client.type("never") in (b"none", "none")
    assert client.dbsize() > 0
    info = client.info()
    assert "fawn_version" in info and info["used_memory"] > 0, sorted(info)
    assert client.client_id() > 0 and client.client_setname("session") and client.client_getname() in (b"session", "session")
    assert client.command_count() > 40
    assert client.config_get("maxmemory")
    for words in (["NOSUCH", "x"], ["GET"], ["SET", "k", "v", "EX", "0"], ["SET", "k", "v", "NX", "XX"]):
        try:
            client.execute_command(*words)
            raise AssertionError(f"{words} must be rejected")
        except redis.ResponseError:
            pass
    assert client.ping(), "an error must not close the connection"


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    protocol = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    client = redis.Redis(host=host, port=int(port), protocol=protocol, socket_timeout=20)
    parts = [strings, counters, many, expiry, server]
    for part in parts:
        part(client)
    for key in ["k", "n", "big", "empty", "empty-string", "t"]:
        client.delete(key)
    print(f"redis-py {redis.__version__}, RESP{protocol}: {len(parts)} parts passed")


main()
