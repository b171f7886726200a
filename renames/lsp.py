"""A small client of rust-analyzer: starts it on a checkout, waits until it has indexed, asks for renames."""
import json, os, subprocess, threading, queue, time, urllib.parse


class Lsp:
    def __init__(self, root):
        self.root = os.path.realpath(root)
        env = dict(os.environ)
        env.setdefault("RUSTUP_TOOLCHAIN", "")
        if not env["RUSTUP_TOOLCHAIN"]:
            del env["RUSTUP_TOOLCHAIN"]
        self.proc = subprocess.Popen(["nice", "rust-analyzer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, cwd=self.root, env=env)
        self.next_id = 0
        self.replies = {}
        self.cond = threading.Condition()
        self.quiescent = False
        threading.Thread(target=self._reader, daemon=True).start()
        caps = {"workspace": {"workspaceEdit": {"documentChanges": True, "resourceOperations": ["create", "rename", "delete"]},
                              "didChangeWatchedFiles": {"dynamicRegistration": True}, "configuration": True},
                "experimental": {"serverStatusNotification": True},
                "window": {"workDoneProgress": True},
                "general": {"positionEncodings": ["utf-8"]}}
        options = {"checkOnSave": False, "cargo": {"buildScripts": {"enable": False}, "features": "all", "targetDir": True},
                   "procMacro": {"enable": False}, "cachePriming": {"enable": True, "numThreads": 2},
                   "files": {"watcher": "client"}, "lru": {"capacity": 2048}}
        self.options = options
        self.request("initialize", {"processId": os.getpid(), "rootUri": self.uri(self.root), "capabilities": caps,
                                    "initializationOptions": options,
                                    "workspaceFolders": [{"uri": self.uri(self.root), "name": "fawn"}]})
        self.notify("initialized", {})

    def uri(self, path):
        return "file://" + urllib.parse.quote(path)

    def path(self, uri):
        return urllib.parse.unquote(uri[len("file://"):])

    def _send(self, message):
        body = json.dumps(message).encode()
        with self.cond:
            self.proc.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self.proc.stdin.flush()

    def _reader(self):
        out = self.proc.stdout
        while True:
            length = None
            while True:
                line = out.readline()
                if not line:
                    return
                line = line.strip()
                if not line:
                    break
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            message = json.loads(out.read(length))
            if "method" in message and "id" in message:
                result = None
                if message["method"] == "workspace/configuration":
                    result = [self.options for _ in message["params"]["items"]]
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": result})
            elif "method" in message:
                if message["method"] == "experimental/serverStatus":
                    with self.cond:
                        self.quiescent = message["params"]["quiescent"]
                        self.status = message["params"]
                        self.cond.notify_all()
            else:
                with self.cond:
                    self.replies[message["id"]] = message
                    self.cond.notify_all()

    def request(self, method, params, timeout=600):
        with self.cond:
            self.next_id += 1
            number = self.next_id
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        with self.cond:
            if not self.cond.wait_for(lambda: number in self.replies, timeout):
                raise TimeoutError(method)
            message = self.replies.pop(number)
        if "error" in message:
            raise RuntimeError(message["error"].get("message"))
        return message["result"]

    def notify(self, method, params):
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def wait_quiescent(self, timeout=900):
        with self.cond:
            if not self.cond.wait_for(lambda: self.quiescent, timeout):
                raise TimeoutError("rust-analyzer did not become quiescent")

    def changed(self, paths, moved=()):
        changes = [{"uri": self.uri(p), "type": 2} for p in paths]
        for old, new in moved:
            changes += [{"uri": self.uri(old), "type": 3}, {"uri": self.uri(new), "type": 1}]
        if changes:
            self.notify("workspace/didChangeWatchedFiles", {"changes": changes})

    def rename(self, path, line, col, new):
        for attempt in range(20):
            try:
                return self.request("textDocument/rename", {"textDocument": {"uri": self.uri(path)},
                                                            "position": {"line": line, "character": col}, "newName": new})
            except RuntimeError as error:
                if "content modified" in str(error):
                    time.sleep(0.5)
                    continue
                raise

    def close(self):
        try:
            self.request("shutdown", None, 30)
            self.notify("exit", None)
            self.proc.wait(20)
        except Exception:
            self.proc.kill()
