"""Sends invalid and abusive input to a FAWN server, and checks that other clients are unaffected.

bad_input.py BINARY DIR WORDS…

WORDS start the server (`serve` or `demo`). Every error must follow its protocol and state a remedy. Memory growth is
measured at its peak, by the kernel's high-water mark.
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
MEMORY = 256 << 20
# Client buffers may use a sixteenth of the budget in each direction (docs/guide/operations.md). Data in transit between
# sockets, stores and front-end adds to that, and so do the stores' own buffers and caches.
GROWTH_MAX = MEMORY // 4 * 3
# Limit for the whole process, as in `fawn bench memory`.
RESIDENT_MAX = MEMORY * 11 // 10 + (32 << 20)
# The demo loads a catalogue; its content does not matter here.
CATALOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../crates/fawn/data/catalogue.deb822")


def start(binary, directory, words, extra=(), ready=True):
    """Starts a server; returns it with its addresses. With ready=False: the exit code and the output of the process."""
    path = directory + ".ready"
    if os.path.exists(path):
        os.unlink(path)
    command = [binary, *words, "--dir", directory, "--ready-file", path, *extra]
    if is_demo(words) and "--catalogue" not in extra:
        command += ["--catalogue", CATALOGUE]
    for listener in {"--resp", "--memcached", "--admin"}.difference(extra):
        command += [listener, "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not ready:
        _, words = process.communicate(timeout=60)
        return process.returncode, words
    # Drain the log, or a full pipe would block the server.
    threading.Thread(target=lambda: process.stderr.read(), daemon=True).start()
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    with open(path) as file:
        return process, json.load(file)


def is_demo(words):
    return words[0] == "demo"


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def say(address, data, half_close=True):
    """Sends `data`; returns all replies."""
    with connect(address) as connection:
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The server may close the connection while we still send; its replies are read below.
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
    refused(say(resp, b"*-7\r\n*1\r\n$4\r\nPING\r\n"), "+PONG")  # like Redis: a negative array length is skipped
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
    """A client that shuts down its sending side after the requests still receives all replies."""
    assert say(places["resp"], b"SET half v\r\n" * 50 + b"GET half\r\n") == b"+OK\r\n" * 50 + b"$1\r\nv\r\n"


def store(places, key, size):
    value = b"v" * size
    request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, size, value)
    assert say(places["resp"], request) == b"+OK\r\n"
    return len(b"$%d\r\n\r\n" % size) + size


def slow_readers(places, process, count, gets, warm=False):
    """Clients that request far more than they read. The server must not buffer all replies, stop serving others, or
    close the connections. With `warm`, the clients have read short replies before."""
    reply, short = [store(places, b"slow%d" % key, 1 << 20) for key in range(8)][0], store(places, b"short", 1)
    readers = [connect(places["resp"]) for _ in range(count)]
    if warm:
        for reader in readers:
            reader.sendall(b"GET short\r\n" * 100)
            receive(reader, 100 * short)
    watch = Growth(process)
    for reader in readers:
        reader.sendall(b"".join(b"GET slow%d\r\n" % (get % 8) for get in range(gets)))
    others(places)
    grown = watch.end(f"{count} slow readers{' that read short replies before' if warm else ''}")
    threads = [threading.Thread(target=receive_and_close, args=(reader, gets * reply)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not FAILED, FAILED[:3]
    return grown


FAILED = []


def receive_and_close(reader, size):
    try:
        with reader:
            receive(reader, size)
    except (AssertionError, OSError) as error:
        FAILED.append(f"a slow reader that eventually reads is not served: {error!r}")


def receive(connection, size):
    while size > 0:
        piece = connection.recv(min(size, 1 << 20))
        assert piece, f"closed {size} bytes before the end"
        size -= len(piece)


def others(places):
    """Other clients are still served, on new connections of both protocols."""
    for _ in range(20):
        assert say(places["resp"], b"PING\r\n") == b"+PONG\r\n"
        assert say(places["memcached"], b"version\r\n").startswith(b"VERSION")


class Growth:
    """The peak growth of the process's resident memory above its base. The base is taken only once: otherwise memory
    left over from an earlier part would hide the cost of a later one."""

    base = None

    def __init__(self, process):
        self.process = process
        with open(f"/proc/{process.pid}/clear_refs", "w") as file:
            file.write("5")
        if Growth.base is None:
            Growth.base = status_bytes(process, "VmRSS")

    def end(self, what, limit=GROWTH_MAX):
        grown = max(0, status_bytes(self.process, "VmHWM") - Growth.base)
        print(f"  {what}: {grown >> 10} KiB of {limit >> 10} KiB", flush=True)
        assert grown < limit, f"{what} used {grown >> 10} KiB, expected less than {limit >> 10} KiB"
        resident = status_bytes(self.process, "VmHWM")
        assert resident < RESIDENT_MAX, f"{what}: {resident >> 20} MiB resident under --memory {MEMORY >> 20}M"
        return grown


def endless_pipeline(places, process):
    """An endless pipeline without reading the replies is stopped by back-pressure before it consumes memory."""
    watch = Growth(process)
    with connect(places["resp"]) as connection:
        connection.settimeout(2)
        sent, chunk = 0, b"SET pipe v\r\n" * 10_000
        try:
            while sent < 400 << 20:
                sent += connection.send(chunk)
        except TimeoutError:
            pass
        others(places)
    assert sent < 400 << 20, "the server never applied back-pressure"
    watch.end(f"an endless pipeline, stopped after {sent >> 20} MiB,")
    return sent


def eager_writers(places, process):
    """Many clients write long values at once, more than fit the memory budget: they take turns, and all are served."""
    watch = Growth(process)
    value = b"w" * (1 << 20)
    writers = []
    for number in range(20):
        request = b"*3\r\n$3\r\nSET\r\n$7\r\neager%02d\r\n$%d\r\n%s\r\n" % (number, len(value), value)
        writers.append(threading.Thread(target=write_and_close, args=(connect(places["resp"]), request, 20)))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not FAILED, FAILED[:3]
    # The stores' own buffers may fill with the written data, hence the limit for the whole process.
    return watch.end("20 writers of 20 MB each", RESIDENT_MAX)


def write_and_close(connection, request, times):
    try:
        with connection:
            sender = threading.Thread(target=lambda: [connection.sendall(request) for _ in range(times)])
            sender.start()
            receive(connection, times * len(b"+OK\r\n"))
            sender.join()
    except (AssertionError, OSError) as error:
        FAILED.append(f"a writer of long values is not served: {error!r}")


def endless_requests(places, process):
    """Incomplete requests on many connections stay within the memory budget, and a request that completes is still
    admitted."""
    watch = Growth(process)
    half = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$8000000\r\n" + b"x" * 4_000_000
    connections = [connect(places["resp"]) for _ in range(12)]
    for connection in connections:
        connection.settimeout(0.2)
        try:
            connection.sendall(half)
        except OSError:
            pass  # As documented: the connection is queued, or was closed because others were queued.
    others(places)
    store(places, b"after", 4 << 20)
    grown = watch.end("12 incomplete requests of 8 MB")
    for connection in connections:
        connection.close()
    return grown


def idle_connections(places, process):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    watch = Growth(process)
    idle = [connect(places["resp"] if i % 2 else places["memcached"]) for i in range(IDLE_CONNECTIONS)]
    assert say(places["resp"], b"SET idle v\r\nGET idle\r\n") == b"+OK\r\n$1\r\nv\r\n"
    for connection in idle[::97]:
        connection.sendall(b"version\r\n" if connection.getpeername()[1] == int(places["memcached"].rsplit(":")[-1]) else b"PING\r\n")
        assert connection.recv(100)
    grown = watch.end(f"{IDLE_CONNECTIONS} idle connections", 32 << 20)
    for connection in idle:
        connection.close()
    return grown


def status_bytes(process, name):
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


def directories(binary, directory, words, process):
    code, text = start(binary, directory, words, ready=False)
    assert code not in (0, -9) and "in use" in text, f"a directory in use: {code} {text}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    code, text = start(binary, "/proc/fawn-cannot-be-here", words, ready=False)
    assert code not in (0, -9) and "/proc/fawn-cannot-be-here" in text, f"an unusable directory: {code} {text}"


def configuration(binary, directory, words):
    if is_demo(words):
        for wrong, parts in (
            (["--memory", "1M"], ["memory = 1M", "at least 64M"]),
            (["--resp", "off"], ["--resp off"]),
            (["--config", "x.toml"], ["--config", "fawn demo"]),
            (["--catalogue", "/nowhere/at/all"], ["/nowhere/at/all"]),
        ):
            code, text = start(binary, directory, words, wrong, ready=False)
            assert code not in (0, -9) and all(part in text for part in parts), f"{wrong}: {code} {text}"
    else:
        path = directory + ".toml"
        with open(path, "w") as file:
            file.write('memroy = "64M"\n')
        code, text = start(binary, directory, words, ["--config", path], ready=False)
        assert code not in (0, -9) and "memroy" in text and "memory" in text, f"an unknown key: {code} {text}"
    code, text = start(binary, directory, words, ["--durability", "perhaps"], ready=False)
    assert code not in (0, -9) and "perhaps" in text and "everysec" in text, f"an invalid value: {code} {text}"


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
    assert say(places["resp"], b"GET row1\r\nGET row2\r\n") == b"$1\r\na\r\n$1\r\nb\r\n", "valid rows must be loaded"


def main():
    binary, directory, *words = sys.argv[1:]
    process, places = start(binary, directory, words, ["--memory", f"{MEMORY >> 20}M"])
    try:
        assert say(places["resp"], b"SET witness w\r\n") == b"+OK\r\n"
        idle = idle_connections(places, process)
        protocols(places)
        half_closed(places)
        slow = slow_readers(places, process, 20, 40)
        slow = max(slow, slow_readers(places, process, 200, 4))
        slow = max(slow, slow_readers(places, process, 20, 40, warm=True))
        pipeline = endless_pipeline(places, process)
        endless_requests(places, process)
        eager_writers(places, process)
        assert say(places["resp"], b"GET witness\r\n") == b"$1\r\nw\r\n", "the witness key has changed"
        directories(binary, directory, words, process)
        configuration(binary, directory, words)
        loading(binary, directory, words)
    finally:
        process.kill()
        process.wait()
    print(
        f"bad input to {words[0]}: all rejected; slow readers used {slow >> 20} MiB at most, an endless pipeline was "
        f"stopped after {pipeline >> 20} MiB, {IDLE_CONNECTIONS} idle connections used {idle >> 10} KiB"
    )


main()
