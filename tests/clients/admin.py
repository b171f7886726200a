"""Checks the pages of a FAWN server's admin port: admin.py HOST:PORT [BACK_ENDS].

BACK_ENDS: number of back-ends, for a cluster in one process. Each must be reported apart from the front-end.
"""

import json
import re
import sys
import urllib.error
import urllib.request


def get(path):
    with urllib.request.urlopen(f"http://{sys.argv[1]}{path}", timeout=20) as reply:
        return reply.status, reply.headers.get("Content-Type", ""), reply.read().decode()


def cluster(shard, metrics, count):
    """Checks that directory, copies, keys and device are reported per back-end, without sums over the back-ends."""
    assert shard["store"] is None, "only back-ends have stores"
    members = shard["cluster"]["back_ends"]
    assert [member["node"] for member in members] == list(range(1, count + 1)), members
    assert [member["directory"] for member in members] == [f"node-{node}" for node in range(1, count + 1)]
    roles = set()
    for member in members:
        assert member["poisoned"] is None and member["store"]["poisoned"] is None
        assert all(copy["broken"] is None for copy in member["copies"]) and member["copies"], member
        assert all(copy["copying"] is None for copy in member["copies"]), "no failures, so no copy in progress"
        roles |= {copy["phase"] for copy in member["copies"]}
        store = member["store"]
        assert store["log_writes"] > 0 and store["device_name"] in ("io_uring", "portable"), store
        assert sum(io_class["written_bytes"] for io_class in store["device"]) > 0, "each back-end has its own device"
    assert roles == {"head", "middle", "tail"}, roles
    keys = [member["store"]["keys"] for member in members]
    assert min(keys) > 0 and max(keys) - min(keys) <= max(keys) // 100, f"each back-end has all keys: {keys}"
    assert shard["node"]["commands"] > 0 and "keys" not in shard["node"], "the front-end counts requests, not keys"
    for name in ("fawn_keys", "fawn_store_poisoned", "fawn_log_writes_total", "fawn_device_writes_total"):
        nodes = set(re.findall(rf'^{name}\{{shard="0",node="(\d+)"', metrics, re.M))
        assert nodes == {str(node) for node in range(1, count + 1)}, f"{name} of {nodes}"
        assert not re.search(rf'^{name}\{{shard="0"[}}]', metrics, re.M), f"{name} must not be summed"
    copies = {(member["node"], copy["range"]) for member in members for copy in member["copies"]}
    for name in ("fawn_copying", "fawn_copying_keys", "fawn_copying_keys_estimated"):
        samples = re.findall(rf'^{name}\{{shard="0",node="(\d+)",range="(\d+)"\}} (\d+)$', metrics, re.M)
        assert {(int(node), int(copied)) for node, copied, _ in samples} == copies, f"{name}: {samples}"
        assert all(value == "0" for _, _, value in samples), f"{name}: {samples}"
    assert len(re.findall(r"^fawn_commands_total\{", metrics, re.M)) == 1


def main():
    assert get("/healthz")[0] == 200 and get("/readyz")[0] == 200
    status, kind, metrics = get("/metrics")
    assert status == 200 and kind.startswith("text/plain"), kind
    samples = 0
    for line in metrics.splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r'fawn_[a-z0-9_]+(\{[^}]*\})? [-+.0-9eEinfNa]+', line), f"not a sample: {line!r}"
            samples += 1
    assert samples > 20, metrics
    status, kind, text = get("/status")
    assert status == 200 and "json" in kind
    shards = json.loads(text)["shards"]
    if len(sys.argv) > 2:
        cluster(shards[0], metrics, int(sys.argv[2]))
    else:
        assert shards[0]["cluster"] is None and shards[0]["store"]["keys"] >= 0
    try:
        get("/nothing-here")
        raise AssertionError("an unknown page must be an error")
    except urllib.error.HTTPError as error:
        assert error.code == 404
    print(f"admin: {samples} samples, health, readiness and status answered")


main()
