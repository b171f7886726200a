"""A FAWN server for one test: started on free loopback ports, awaited by its ready file, stopped by its process ID."""

import json
import os
import socket
import subprocess
import time

START_LIMIT_S = 120
STOP_LIMIT_S = 60


class Server:
    """Runs `BINARY WORDS… --dir DIRECTORY`; `before` prefixes the command, `prepare` runs in the new process."""

    def __init__(self, binary, words, directory, before=(), prepare=None, start_limit_s=START_LIMIT_S):
        ready, self.log_path = directory + ".ready", directory + ".log"
        for stale in (ready, self.log_path):
            if os.path.exists(stale):
                os.unlink(stale)
        command = [*before, binary, *words, "--dir", directory, "--ready-file", ready]
        for listener in ("--resp", "--memcached", "--admin"):
            command += [listener, "127.0.0.1:0"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=prepare)
        deadline = time.monotonic() + start_limit_s
        while not os.path.exists(ready):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"the server did not start: {self.process.wait()}\n{self.log()[-3000:]}")
            time.sleep(0.01)
        with open(ready) as file:
            self.places = json.load(file)

    def log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def connect(self, protocol="resp"):
        host, port = self.places[protocol].rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def stop(self):
        """Stops the server gracefully, as a service manager does; the exit code must be 0."""
        self.process.terminate()
        assert self.process.wait(STOP_LIMIT_S) == 0, f"exit code {self.process.returncode}\n{self.log()[-3000:]}"

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        # Kills only our own process; after `stop` it has already ended.
        self.process.kill()
        self.process.wait()


def resp(*words):
    """A RESP request."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
