"""Asks a FAWN server's admin port what an operator would: admin.py HOST:PORT."""

import json
import re
import sys
import urllib.error
import urllib.request


def get(path):
    with urllib.request.urlopen(f"http://{sys.argv[1]}{path}", timeout=20) as reply:
        return reply.status, reply.headers.get("Content-Type", ""), reply.read().decode()


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
    assert status == 200 and "json" in kind and isinstance(json.loads(text), dict)
    try:
        get("/nothing-here")
        raise AssertionError("an unknown page must be refused")
    except urllib.error.HTTPError as error:
        assert error.code == 404
    print(f"admin: {samples} samples, health, readiness and status answered")


main()
