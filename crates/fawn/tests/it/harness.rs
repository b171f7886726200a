//! Test harness: starts a real `fawn serve`, talks to it in raw bytes, waits for conditions without sleeping.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Deadline of every wait: a test fails rather than hangs, also on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// The binary, isolated from the environment's settings.
pub(crate) fn fawn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fawn"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FAWN_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the binary to its end; returns exit code, standard output, standard error.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    outcome(fawn().args(args).output().expect("the binary runs"))
}

/// Like [`run`], with `input` on standard input.
pub(crate) fn run_with_input(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = fawn();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    child.stdin.take().expect("piped").write_all(input).expect("it reads its input");
    outcome(child.wait_with_output().expect("it ends"))
}

/// Like [`run`], for a server that must not start: one that does is ended, and the test fails.
pub(crate) fn run_refused(args: &[&str]) -> (i32, String) {
    let mut command = fawn();
    command.args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Reaped(command.spawn().expect("the binary runs"));
    // Short enough for an unread pipe.
    let status = eventually("a server that was to be refused", || child.0.try_wait().expect("it is ours"));
    let mut error = String::new();
    child.0.stderr.take().expect("piped").read_to_string(&mut error).expect("text");
    (status.code().unwrap_or(-1), error)
}

fn outcome(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// Repeats `probe` until it returns a value.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A running server on free ports with its own directory.
pub(crate) struct Server {
    child: Reaped,
    ready_file: PathBuf,
    pub(crate) resp: SocketAddr,
    pub(crate) memcached: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Removed when the server is dropped; tests that restart keep theirs.
    _dir: Option<tempfile::TempDir>,
}

impl Server {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = Self::start_in(dir.path(), flags);
        server._dir = Some(dir);
        server
    }

    /// Starts on a given directory.
    pub(crate) fn start_in(dir: &Path, flags: &[&str]) -> Self {
        Self::await_ready(dir, Self::spawn("serve", dir, flags))
    }

    /// Starts `fawn demo` on a given directory; its output goes to the files `out` and `err` there.
    pub(crate) fn demo_in(dir: &Path, flags: &[&str]) -> Self {
        Self::await_ready(dir, Self::spawn("demo", dir, flags))
    }

    /// Starts on a given directory, with `log` as standard error.
    pub(crate) fn start_with_log(dir: &Path, log: Stdio) -> Self {
        let mut command = Self::command("serve", dir, &[]);
        Self::await_ready(dir, Reaped(command.stderr(log).spawn().expect("the binary runs")))
    }

    /// Starts a server without waiting for it.
    pub(crate) fn spawn(word: &str, dir: &Path, flags: &[&str]) -> Reaped {
        Reaped(Self::command(word, dir, flags).spawn().expect("the binary runs"))
    }

    fn command(word: &str, dir: &Path, flags: &[&str]) -> Command {
        let any = "127.0.0.1:0";
        let mut command = fawn();
        command.args([word, "--resp", any, "--memcached", any, "--admin", any]);
        if !flags.contains(&"--memory") {
            command.args(["--memory", "64M"]);
        }
        command.arg("--dir").arg(dir.join("data")).arg("--ready-file").arg(dir.join("ready")).args(flags);
        let file = |name| std::fs::File::create(dir.join(name)).expect("a file");
        command.stdout(file("out")).stderr(file("err"));
        command
    }

    fn await_ready(dir: &Path, mut child: Reaped) -> Self {
        let ready_file = dir.join("ready");
        let ready = eventually("the ready file", || {
            assert_eq!(child.0.try_wait().expect("it is ours"), None, "the server ended before it was ready");
            let ready = std::fs::read(&ready_file).ok()?;
            let ready: serde_json::Value = serde_json::from_slice(&ready).expect("the ready file is JSON, whole");
            // Until the start removes it, the file of a killed server may exist.
            (ready["pid"] == child.0.id()).then_some(ready)
        });
        let place = |name: &str| ready[name].as_str().and_then(|text| text.parse().ok()).expect("an address");
        let (resp, memcached, admin) = (place("resp"), place("memcached"), place("admin"));
        Self { child, ready_file, resp, memcached, admin, _dir: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(crate) fn ready_file(&self) -> &Path {
        &self.ready_file
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// Waits for the server's end; returns the exit code unless a signal ended it.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        eventually("the server's end", || self.child.0.try_wait().expect("it is ours")).code()
    }

    /// A metric's value, summed over shards.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = http(self.admin, "GET", "/metrics").1;
        let values =
            page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{shard=\"")?.split_once("} "));
        values.map(|(_, value)| value.parse::<u64>().expect("a number")).sum()
    }
}

/// A process that ends with its test.
pub(crate) struct Reaped(pub(crate) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection with a bound on every wait.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

/// Sends `request` and expects exactly `reply`.
pub(crate) fn exchange(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).expect("it reads");
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).expect("it answers");
    assert_eq!(got.escape_ascii().to_string(), reply.escape_ascii().to_string());
}

/// Reads up to the end of the stream.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("it closes in an orderly way");
    all
}

/// One HTTP exchange: status and body.
pub(crate) fn http(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = connect(address);
    let request = format!("{method} {path} HTTP/1.1\r\nHost: fawn\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let text = String::from_utf8(read_to_end(&mut stream)).expect("text");
    let status = text.get(9..12).and_then(|code| code.parse().ok()).expect("a status line");
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}
