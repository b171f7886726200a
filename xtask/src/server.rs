//! Server process for the gate's clients: started in its own directory, ready once its ready file exists.
use crate::tree;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(300);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// The release binary.
pub(crate) fn binary() -> PathBuf {
    tree::root().join("target/release/fawn")
}

/// A running `fawn`.
pub(crate) struct TestServer {
    child: Child,
    /// RESP address.
    pub(crate) resp: String,
    /// memcached address.
    pub(crate) memcached: String,
    /// Admin address.
    pub(crate) admin: String,
}

impl TestServer {
    /// Starts `fawn WORDS… --dir DIR` on free loopback ports and waits until it serves.
    pub(crate) fn start(dir: &Path, words: &[&str]) -> Result<Self, String> {
        let ready = dir.with_extension("ready");
        let _ = std::fs::remove_file(&ready);
        let mut command = Command::new(binary());
        command.args(words).arg("--dir").arg(dir).arg("--ready-file").arg(&ready);
        for listener in ["--resp", "--memcached", "--admin"] {
            command.args([listener, "127.0.0.1:0"]);
        }
        println!("$ {command:?}");
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", binary().display()))?;
        let places = await_ready(&mut child, &ready).inspect_err(|_| {
            let _ = child.kill();
        })?;
        let place = |name: &str| places[name].as_str().map(str::to_owned).ok_or(format!("{places} has no `{name}`"));
        Ok(Self { resp: place("resp")?, memcached: place("memcached")?, admin: place("admin")?, child })
    }

    /// Sends SIGTERM, as a service manager does, and waits. Fails unless the server exits with success.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let pid = self.child.id().to_string();
        crate::steps::run("kill", &["-TERM", &pid])?;
        let deadline = Instant::now() + STOP_LIMIT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server ended with {status} after SIGTERM")),
                Ok(None) => std::thread::park_timeout(POLL),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the server did not end within 30 s of SIGTERM".to_owned())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // After `stop` the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn await_ready(child: &mut Child, ready: &Path) -> Result<serde_json::Value, String> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Ok(text) = std::fs::read_to_string(ready) {
            return serde_json::from_str(&text).map_err(|error| format!("{}: {error}", ready.display()));
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("the server ended during its start with {status}"));
        }
        if Instant::now() > deadline {
            return Err("the server was not ready within 300 s".to_owned());
        }
        std::thread::park_timeout(POLL);
    }
}
