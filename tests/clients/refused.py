"""Runs a FAWN server on a kernel that denies io_uring: refused.py BINARY DIR.

Many containers and hardened hosts deny io_uring with a seccomp filter; this script installs one in its child process.
The demo must start with the portable device, log the reason, and keep all writes. It must also read data written with
io_uring, and the reverse. If io_uring is configured explicitly, the denial must be an error that names it.
"""

import ctypes
import json
import os
import struct
import subprocess
import sys
import urllib.request

from server import Server, resp

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# The number is the same on all architectures.
IO_URING_SETUP = 425
EPERM = 1
PACKAGES = 40


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def refuse_io_uring():
    """Makes `io_uring_setup` fail in this process and its children; changes nothing else."""
    steps = [
        (LOAD_WORD, 0, 0, 0),  # number of the system call
        (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
        (RETURN, 0, 0, ERRNO | EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{words[:2]}")


def catalogue(path):
    stanzas = {f"package-{n}": f"Package: package-{n}\nDescription: number {n}, {'x' * 40 * n}" for n in range(PACKAGES)}
    with open(path, "w") as file:
        file.write("\n\n".join(stanzas.values()) + "\n")
    return stanzas


def get(lines, key):
    lines.write(resp("GET", key))
    lines.flush()
    header = lines.readline()
    return None if header == b"$-1\r\n" else lines.read(int(header[1:]) + 2)[:-2].decode()


def check(server, stanzas, written):
    """Checks all loaded and written keys, then writes another key and adds it to `written`."""
    with server.connect() as connection:
        lines = connection.makefile("rwb")
        for key, value in {**stanzas, **written}.items():
            assert get(lines, key) == value, f"{key}: {get(lines, key)!r:.80}, expected {value!r:.80}"
        key = f"written-{len(written)}"
        lines.write(resp("SET", key, key))
        lines.flush()
        assert lines.readline() == b"+OK\r\n"
        written[key] = key


def devices_told(server):
    """The /status page as text."""
    with urllib.request.urlopen(f"http://{server.places['admin']}/status", timeout=20) as reply:
        return json.dumps(json.loads(reply.read()))


def demo(binary, directory, stanzas, written, is_refused):
    prepare = refuse_io_uring if is_refused else None
    words = ["demo", "--catalogue", directory + ".catalogue", "--memory", "64M"]
    with Server(binary, words, directory, prepare=prepare) as server:
        check(server, stanzas, written)
        log, status = server.log(), devices_told(server)
        server.stop()
    fallen_back = [line for line in log.splitlines() if "device chosen" in line and 'device="portable"' in line]
    if is_refused:
        assert len(fallen_back) >= 3, f"each back-end must log the fallback:\n{log}"
        assert all("io_uring" in line and "not permitted" in line for line in fallen_back), log
        print(fallen_back[0])
    elif fallen_back:
        print(f"io_uring is not available on this machine: {fallen_back[0]}")
    kinds = ("portable", "io_uring") if fallen_back else ("io_uring", "portable")
    assert f'"{kinds[0]}"' in status and f'"{kinds[1]}"' not in status, f"expected only {kinds[0]}: {status}"


def serve(binary, directory):
    """Checks that a single node logs the fallback too, and that an explicit `--device uring` is an error."""
    with Server(binary, ["serve"], directory, prepare=refuse_io_uring) as server:
        check(server, {}, {})
        assert '"portable"' in devices_told(server), devices_told(server)
        server.stop()
    command = [binary, "serve", "--dir", directory, "--device", "uring", "--resp", "127.0.0.1:0"]
    asked = subprocess.run(command, preexec_fn=refuse_io_uring, capture_output=True, text=True, timeout=60)
    told = asked.stdout + asked.stderr
    assert asked.returncode != 0 and "io_uring" in told and "not permitted" in told and "portable" in told, f"{asked.returncode}: {told}"
    return told.strip().splitlines()[-1]


def main():
    binary, directory = sys.argv[1:]
    os.makedirs(directory, exist_ok=True)
    data, written = directory + "/demo", {}
    stanzas = catalogue(data + ".catalogue")
    for is_refused in (True, False, True):
        demo(binary, data, stanzas, written, is_refused)
    print(serve(binary, directory + "/serve"))
    print(f"io_uring denied: {len(stanzas)} packages and {len(written)} writes survived two changes of device")


main()
