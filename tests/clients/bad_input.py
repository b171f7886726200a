"""Sends a FAWN server what no client should, and looks that the others notice nothing: bad_input.py BINARY DIR WORDS…

WORDS start the server (`serve`, `demo`). Every refusal must be worded in its protocol's manner and say what to do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

IDLE_CONNECTIONS = 10_000


def start(binary, directory, words, extra=(), ready=True):
    """The running server and its places; with ready=False the finished process and what it printed."""
    path = directory + ".ready"
    if os.path.exists(path):
        os.unlink(path)
    command = [binary, *words, "--dir", directory, "--ready-file", path, *extra]
    for listener in ("--resp", "--memcached", "--admin"):
        command += [listener, "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not ready:
        _, words = process.communicate(timeout=60)
        return process.returncode, words
    # Logs are drained, or a full pipe would stop the server.
    threading.Thread(target=lambda: process.stderr.read(), daemon=True).start()
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert process.poll() is None and time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.01)
    with open(path) as file:
        return process, json.load(file)


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def say(address, data, half_close=True):
    """Everything the server answers to `data`."""
    with connect(address) as connection:
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it may close on us while we still send: what it answered is read below
        heard = b""
        try:
            while piece := connection.recv(65536):
                heard += piece
        except ConnectionResetError:
            pass
        return heard


def refused(heard, *parts):
    text = heard.decode(errors="replace")
    assert all(part in text for part in parts), f"{parts} expected, heard {text[:300]!r}"


def protocols(places):
    resp, memcached = places["resp"], places["memcached"]
    big = 9 << 20
    key = b"k" * 70_000
    refused(say(resp, b"*2\r\n$3\r\nGET\r\n$70000\r\n" + key + b"\r\n*1\r\n$4\r\nPING\r\n"), "-ERR", "key")
    refused(say(resp, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % big + b"x" * big + b"\r\n"), "-ERR")
    refused(say(resp, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$-5\r\n"), "-ERR Protocol error", "bulk length")
    refused(say(resp, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$99999999999999999999\r\n"), "-ERR Protocol error")
    refused(say(resp, b"*-7\r\n*1\r\n$4\r\nPING\r\n"), "+PONG")  # redis skips a negative multibulk count
    refused(say(resp, b"*99999999\r\n"), "-ERR Protocol error", "multibulk length")
    refused(say(resp, b"*1\r\nPING\r\n"), "-ERR Protocol error", "expected '$'")
    refused(say(resp, b"\x00\x01\x02\xff\r\n"), "-ERR unknown command")
    refused(say(resp, b"a" * 100_000), "-ERR Protocol error", "inline")
    refused(say(memcached, b"set " + b"k" * 251 + b" 0 0 1\r\nx\r\nversion\r\n"), "CLIENT_ERROR", "VERSION")
    refused(say(memcached, b"set k 0 0 %d\r\n" % big + b"x" * big + b"\r\nversion\r\n"), "SERVER_ERROR", "VERSION")
    refused(say(memcached, b"set k 0 0 -1\r\nversion\r\n"), "CLIENT_ERROR")
    refused(say(memcached, b"set k 0 0 3\r\ntoo long\r\nversion\r\n"), "CLIENT_ERROR bad data chunk")
    refused(say(memcached, b"nonsense\r\nversion\r\n"), "ERROR", "VERSION")
    refused(say(memcached, b"get " + b"k" * 300 + b"\r\nversion\r\n"), "CLIENT_ERROR", "VERSION")
    refused(say(memcached, b"g" * 200_000), "ERROR")


def half_closed(places):
    """A client that shuts its side after asking still hears every answer."""
    assert say(places["resp"], b"SET half v\r\n" * 50 + b"GET half\r\n") == b"+OK\r\n" * 50 + b"$1\r\nv\r\n"


def slow_reader(places, process):
    """Asks for far more than it reads: the server must neither buffer it all nor stop serving others."""
    value = b"v" * (1 << 20)
    assert say(places["resp"], b"*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$%d\r\n" % len(value) + value + b"\r\n") == b"+OK\r\n"
    before = resident_bytes(process)
    readers = []
    for _ in range(20):
        reader = connect(places["resp"])
        reader.setblocking(False)
        asked = b"GET slow\r\n" * 2000  # 2 GB of answers each
        try:
            reader.send(asked)
        except BlockingIOError:
            pass
        readers.append(reader)
    for _ in range(50):
        assert say(places["resp"], b"PING\r\n") == b"+PONG\r\n"
    grown = resident_bytes(process) - before
    assert grown < 512 << 20, f"20 slow readers cost {grown >> 20} MiB"
    for reader in readers:
        reader.close()
    return grown


def endless_pipeline(places, process):
    """A pipeline that goes on for ever, its answers never read, is stopped by back-pressure, not by memory."""
    before = resident_bytes(process)
    with connect(places["resp"]) as connection:
        connection.settimeout(2)
        sent, chunk = 0, b"SET pipe v\r\n" * 10_000
        try:
            while sent < 400 << 20:
                sent += connection.send(chunk)
        except TimeoutError:
            pass
        assert say(places["resp"], b"PING\r\n") == b"+PONG\r\n"
    grown = resident_bytes(process) - before
    assert grown < 256 << 20, f"an endless pipeline cost {grown >> 20} MiB after {sent >> 20} MiB"
    return sent


def idle_connections(places, process):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    before = resident_bytes(process)
    idle = [connect(places["resp"] if i % 2 else places["memcached"]) for i in range(IDLE_CONNECTIONS)]
    assert say(places["resp"], b"SET idle v\r\nGET idle\r\n") == b"+OK\r\n$1\r\nv\r\n"
    for connection in idle[::97]:
        connection.sendall(b"version\r\n" if connection.getpeername()[1] == int(places["memcached"].rsplit(":")[-1]) else b"PING\r\n")
        assert connection.recv(100)
    grown = resident_bytes(process) - before
    for connection in idle:
        connection.close()
    assert grown < 32 << 20, f"{IDLE_CONNECTIONS} idle connections cost {grown >> 10} KiB"
    return grown


def resident_bytes(process):
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def directories(binary, directory, words, process):
    code, text = start(binary, directory, words, ready=False)
    assert code not in (0, -9) and "in use" in text, f"a directory in use: {code} {text}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    code, text = start(binary, "/proc/fawn-cannot-be-here", words, ready=False)
    assert code not in (0, -9) and "/proc/fawn-cannot-be-here" in text, f"an impossible directory: {code} {text}"


def configuration(binary, directory, words):
    path = directory + ".toml"
    with open(path, "w") as file:
        file.write('memroy = "64M"\n')
    code, text = start(binary, directory, words, ["--config", path], ready=False)
    assert code not in (0, -9) and "memroy" in text and "memory" in text, f"an unknown key: {code} {text}"
    code, text = start(binary, directory, words, ["--durability", "perhaps"], ready=False)
    assert code not in (0, -9) and "perhaps" in text and "everysec" in text, f"a wrong value: {code} {text}"


def loading(binary, directory, words):
    process, places = start(binary, directory, words)
    try:
        load_bad_rows(binary, directory, places)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def load_bad_rows(binary, directory, places):
    path = directory + ".jsonl"
    with open(path, "w") as file:
        file.write('{"key": "row1", "value": "a"}\n{broken\n{"value": "no key"}\n{"key": "row2", "value": "b"}\n')
    load = [binary, "load", "--format", "jsonl", "--key", "key", "--value", "value", "--server", places["resp"], path]
    done = subprocess.run(load, capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and ":2" in text.replace("line ", ":") and ":3" in text.replace("line ", ":"), f"{done.returncode} {text}"
    assert say(places["resp"], b"GET row1\r\nGET row2\r\n") == b"$1\r\na\r\n$1\r\nb\r\n", "good rows are loaded"


def main():
    binary, directory, *words = sys.argv[1:]
    process, places = start(binary, directory, words, ["--memory", "256M"])
    try:
        assert say(places["resp"], b"SET witness w\r\n") == b"+OK\r\n"
        protocols(places)
        half_closed(places)
        slow, pipeline = slow_reader(places, process), endless_pipeline(places, process)
        idle = idle_connections(places, process)
        assert say(places["resp"], b"GET witness\r\n") == b"$1\r\nw\r\n", "the witness noticed something"
        directories(binary, directory, words, process)
        configuration(binary, directory, words)
        loading(binary, directory, words)
    finally:
        process.kill()
        process.wait()
    print(
        f"bad input: refused as it should be; 20 slow readers cost {slow >> 20} MiB, an endless pipeline was stopped "
        f"after {pipeline >> 20} MiB, {IDLE_CONNECTIONS} idle connections cost {idle >> 10} KiB"
    )


main()
