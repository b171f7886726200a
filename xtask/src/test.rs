//! The gate: its steps, their order, and the command of each.
use crate::server::TestServer;
use crate::steps::{self, Steps};
use crate::{clients, peers, server, tidy};

/// Runs the steps that a change needs most often: lint rules, format, lints, unit and model tests.
pub(crate) fn quick() -> Result<(), String> {
    let mut gate = Steps::new(None);
    lints(&mut gate)?;
    tests(&mut gate)?;
    gate.finish()
}

fn lints(gate: &mut Steps<'_>) -> Result<(), String> {
    gate.step("tidy", tidy::run)?;
    gate.step("format", || steps::run("cargo", &["fmt", "--all", "--check"]))?;
    gate.step("clippy", || {
        steps::run("cargo", &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])
    })
}

fn tests(gate: &mut Steps<'_>) -> Result<(), String> {
    gate.step("unit and integration tests", || steps::run("cargo", &["test", "--workspace", "--locked", "--quiet"]))
}

/// Runs every step, or with `only` those whose names contain it.
pub(crate) fn run(only: Option<&str>) -> Result<(), String> {
    let mut gate = Steps::new(only);
    gate.step("peers", peers::install)?;
    lints(&mut gate)?;
    gate.step("documentation", || {
        // A broken link is an error.
        let env = [("RUSTDOCFLAGS", "--deny warnings")];
        steps::run_with("cargo", &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &env)
    })?;
    tests(&mut gate)?;
    gate.step("release build", || steps::run("cargo", &["build", "--release", "--workspace", "--locked"]))?;
    gate.step("fuzz", || steps::run("target/release/fawn-fuzz", &["--seconds", "20", "--seed", &commit()]))?;
    gate.step("simulator", simulator)?;
    gate.step("simulator's planted bugs", || steps::run("target/release/fawn-sim", &["--canaries"]))?;
    gate.step("memory", || {
        let dir = clients::scratch("memory")?;
        steps::run("target/release/fawn", &["bench", "memory", "--dir", &dir.to_string_lossy()])
    })?;
    gate.step("demo with real clients", demo)?;
    gate.step("several shards with real clients", several_shards)?;
    for words in [&["demo"][..], &["serve", "--shards", "3"]] {
        gate.step(&format!("replies of {} compared with redis and memcached", words.join(" ")), || {
            let dir = clients::scratch("differential")?.join("data");
            let (binary, dir, seed) = (server::binary(), dir.to_string_lossy(), commit());
            clients::python("differential.py", &[&[&*binary.to_string_lossy(), &dir, &seed, "8"], words].concat())
        })?;
    }
    for words in [&["serve"][..], &["demo"], &["serve", "--shards", "2"]] {
        gate.step(&format!("bad input to {}", words.join(" ")), || {
            let dir = clients::scratch("bad")?.join("data");
            let (binary, dir) = (server::binary(), dir.to_string_lossy().into_owned());
            clients::python("bad_input.py", &[&[&*binary.to_string_lossy(), &dir], words].concat())
        })?;
    }
    gate.step("system calls", || {
        let dir = clients::scratch("syscalls")?;
        clients::python("syscalls.py", &[&server::binary().to_string_lossy(), &dir.to_string_lossy()])
    })?;
    gate.step("io_uring refused", || {
        let dir = clients::scratch("refused")?;
        clients::python("refused.py", &[&server::binary().to_string_lossy(), &dir.to_string_lossy()])
    })?;
    for words in [&["demo", "--shards", "2"][..], &["serve", "--shards", "3"]] {
        gate.step(&format!("kill -9 of {}", words.join(" ")), || {
            let dir = clients::scratch("kill")?.join("data");
            let (binary, dir, seed) = (server::binary(), dir.to_string_lossy(), commit());
            clients::python("kill.py", &[&[&*binary.to_string_lossy(), &dir, "30", &seed], words].concat())
        })?;
    }
    gate.step("restarts without a write", || {
        let dir = clients::scratch("restarts")?.join("data");
        let (binary, dir) = (server::binary(), dir.to_string_lossy());
        clients::python("restarts.py", &[&binary.to_string_lossy(), &dir, "200", "demo"])
    })?;
    gate.finish()
}

/// Seeds side by side: first the same ones for every commit, then a block that no earlier commit has seen. Both are bounded by
/// time, 4 minutes together; a machine too slow for 200 seeds takes longer.
fn simulator() -> Result<(), String> {
    let run = |words: &[&str]| steps::run("target/release/fawn-sim", words);
    run(&["--seeds", "300", "--seconds", "75", "--least", "60"])?;
    run(&["--seeds", "1000", "--commit", &commit(), "--seconds", "155", "--least", "140"])
}

/// Tests three replicas with the machine's catalogue: reads it back through both protocols, runs real clients, and
/// reads it again after a restart.
fn demo() -> Result<(), String> {
    let dir = clients::scratch("demo")?.join("data");
    let catalogue = clients::catalogue()?;
    let start = || TestServer::start(&dir, &["demo", "--durability", "everysec"]);
    let server = start()?;
    clients::read_catalogue(&server, &catalogue)?;
    clients::run(&server)?;
    server.stop()?;
    let server = start()?;
    clients::read_catalogue(&server, &catalogue)?;
    server.stop()
}

/// Tests one node with three shards: runs real clients before and after a restart, with and without `--shards`.
fn several_shards() -> Result<(), String> {
    let dir = clients::scratch("shards")?.join("data");
    for words in [&["serve", "--shards", "3"][..], &["serve"]] {
        let server = TestServer::start(&dir, words)?;
        clients::sessions(&server, &["ping", "set", "get", "incr"])?;
        server.stop()?;
    }
    steps::run(&server::binary().to_string_lossy(), &["check", &dir.to_string_lossy()])
}

/// The commit under test, as a seed: each change is fuzzed from another seed, reproducibly.
fn commit() -> String {
    let output = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output();
    output.map_or_else(|_| "1".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
