"""Reads all packages of the catalogue back from a demo through both protocols, and compares every byte.

catalogue.py RESP_HOST:PORT MEMCACHED_HOST:PORT CATALOGUE_FILE

The catalogue is the output of `apt-cache dumpavail`: stanzas separated by an empty line. The key is the stanza's
Package field, the value is the stanza without the separator. If a name occurs twice, the last stanza counts.
"""

import sys

import redis
from pymemcache.client.base import Client

BATCH = 256
MEMCACHED_KEY_BYTES_MAX = 250


def stanzas(path):
    with open(path, "rb") as file:
        for stanza in file.read().split(b"\n\n"):
            stanza = stanza.strip(b"\n")
            if stanza:
                yield stanza


def name_of(stanza):
    for line in stanza.split(b"\n"):
        if line.startswith(b"Package:"):
            return line[len(b"Package:") :].strip()
    raise AssertionError(f"a stanza without Package: {stanza[:80]!r}")


def main():
    resp, memcached, path = sys.argv[1:4]
    wanted = {name_of(stanza): stanza for stanza in stanzas(path)}
    assert wanted, "the catalogue is empty"
    host, port = resp.rsplit(":", 1)
    by_redis = redis.Redis(host=host, port=int(port), socket_timeout=60)
    host, port = memcached.rsplit(":", 1)
    by_memcached = Client((host, int(port)), timeout=60, connect_timeout=20)
    names = sorted(wanted)
    checked = 0
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        for name, value in zip(batch, by_redis.mget(batch)):
            assert value == wanted[name], f"RESP: {name!r} differs: {value!r:.200} instead of {wanted[name]!r:.200}"
        short = [name for name in batch if len(name) <= MEMCACHED_KEY_BYTES_MAX]
        values = by_memcached.get_many(short)
        for name in short:
            assert values.get(name) == wanted[name], f"memcached: {name!r} differs"
        checked += len(batch)
    assert checked == len(wanted)
    print(f"catalogue: {checked} packages read back byte for byte through both protocols")


main()
