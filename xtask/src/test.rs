//! The gate: its steps, their order, and the command of each.
use crate::server::TestServer;
use crate::steps::{self, Step, Steps};
use crate::{clients, peers, server, tidy};

/// Runs the steps that a change needs most often: lint rules, format, lints, all tests of the crates.
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
    // Without the examples: clippy compiles them, and linking them takes a minute.
    let targets = ["--lib", "--bins", "--tests"];
    let test = |words: &[&str]| steps::run("cargo", &[&["test", "--workspace", "--locked", "--quiet"], words].concat());
    gate.step("unit and integration tests", || test(&targets))?;
    gate.step("examples in the documentation", || test(&["--doc"]))
}

/// Runs every step, or with `only` those whose names contain it.
pub(crate) fn run(only: Option<&str>) -> Result<(), String> {
    println!("── peers");
    peers::install()?;
    let mut gate = Steps::new(only);
    lints(&mut gate)?;
    gate.step("documentation", || {
        // A broken link is an error.
        let env = [("RUSTDOCFLAGS", "--deny warnings")];
        steps::run_with("cargo", &["doc", "--workspace", "--no-deps", "--locked", "--quiet"], &env)
    })?;
    tests(&mut gate)?;
    gate.step("release build", || {
        // One command: dependencies have the same features for all of them, and are compiled once.
        let packages = ["-p", "fawn", "-p", "fawn-sim", "-p", "fawn-fuzz", "-p", "fawn-ds"];
        let targets = ["--bins", "--example", "random_faults"];
        steps::run("cargo", &[&["build", "--release", "--locked"][..], &packages, &targets].concat())
    })?;
    gate.step("simulator", simulator)?;
    gate.step("simulator's planted bugs", || steps::run("target/release/fawn-sim", &["--canaries"]))?;
    let (name, run) = script("system calls", "syscalls.py", &[]);
    gate.step(&name, run)?;
    gate.side_by_side(server_steps())?;
    gate.finish()
}

/// Steps that leave a core idle: they wait for a disk or a client, or have one thread. Long ones begin first.
fn server_steps() -> Vec<Step<'static>> {
    let seed = commit();
    let (faults_seed, fuzz_seed, written_seed) = (seed.clone(), seed.clone(), seed.clone());
    let faults = move || random_faults(&faults_seed);
    let fuzz = move || steps::run("target/release/fawn-fuzz", &["--seconds", "20", "--seed", &fuzz_seed]);
    let mut all: Vec<Step<'_>> = vec![
        ("random faults".to_owned(), Box::new(faults)),
        ("fuzz".to_owned(), Box::new(fuzz)),
        script("kill -9 of demo --shards 2", "kill.py", &["30", &seed, "demo", "--shards", "2"]),
        script("restarts without a write", "restarts.py", &["200", "demo"]),
        ("memory".to_owned(), Box::new(memory)),
        ("peer stores".to_owned(), Box::new(peer_stores)),
        ("demo with real clients".to_owned(), Box::new(demo)),
        script("bad input to serve", "bad_input.py", &["serve"]),
        script("bad input to demo", "bad_input.py", &["demo"]),
        script("bad input to serve --shards 2", "bad_input.py", &["serve", "--shards", "2"]),
        ("several shards with real clients".to_owned(), Box::new(several_shards)),
        script("kill -9 of serve --shards 3", "kill.py", &["30", &seed, "serve", "--shards", "3"]),
        ("format page, long histories".to_owned(), Box::new(move || written_stores(&written_seed))),
        script("format page, serve", "written_files.py", &[&seed, "kept", "serve"]),
        script(
            "format page, kill -9 of serve --shards 2",
            "written_files.py",
            &[&seed, "killed", "serve", "--shards", "2"],
        ),
        script("format page, kill -9 of demo", "written_files.py", &[&seed, "killed", "demo"]),
        script("backups of serve", "backup.py", &["6", &seed, "serve"]),
        script("backups of serve --shards 2", "backup.py", &["4", &seed, "serve", "--shards", "2"]),
        script("io_uring refused", "refused.py", &[]),
    ];
    for words in [&["demo"][..], &["serve", "--shards", "3"]] {
        let name = format!("replies of {} compared with redis and memcached", words.join(" "));
        all.push(script(&name, "differential.py", &[&[&*seed, "8"], words].concat()));
    }
    all
}

/// A step that runs `tests/clients/SCRIPT BINARY DIR ARGS…` in a directory of its own.
fn script(name: &str, script: &'static str, args: &[&str]) -> Step<'static> {
    let dir = name.replace(' ', "-");
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let run = move || {
        let (binary, dir) = (server::binary(), clients::scratch(&dir)?.join("data"));
        let mut words = vec![binary.to_string_lossy(), dir.to_string_lossy()];
        words.extend(args.iter().map(Into::into));
        clients::python(script, &words.iter().map(|word| &**word).collect::<Vec<_>>())
    };
    (name.to_owned(), Box::new(run))
}

/// Writes stores whose histories have all that the format page has, and compares each with the independent reader of that page.
fn written_stores(seed: &str) -> Result<(), String> {
    let dir = clients::scratch("written-stores")?;
    let dir = dir.to_string_lossy();
    let env = [("FAWN_WRITTEN_STORES", &*dir)];
    steps::run_with(
        "cargo",
        &["test", "--locked", "--quiet", "-p", "fawn-ds", "--test", "it", "written_stores::"],
        &env,
    )?;
    clients::python("written_stores.py", &[&server::binary().to_string_lossy(), &dir, seed])
}

/// A quarter of the bench's keys under a quarter of its memory, with as many idle connections.
fn memory() -> Result<(), String> {
    let dir = clients::scratch("memory")?;
    let words = ["bench", "memory", "--keys", "5000000", "--memory", "128M", "--dir", &dir.to_string_lossy()];
    steps::run(&server::binary().to_string_lossy(), &words)
}

/// Builds peer stores of the benchmarks, and runs every workload on each. Peers in Rust take minutes to build: `cargo xtask
/// eval` does.
fn peer_stores() -> Result<(), String> {
    steps::run("eval/peers/build.sh", &["lmdb", "bdb", "rocksdb"])?;
    let env = [("FAWN_PEERS_MIN", "4")];
    steps::run_with("cargo", &["test", "--locked", "--quiet", "-p", "fawn-bench", "--test", "it", "peers::"], &env)
}

/// Seeds side by side: first the same ones for every commit, then a block that no earlier commit has seen. Both are bounded by
/// time, 4 minutes together; a machine too slow for 200 seeds takes longer.
fn simulator() -> Result<(), String> {
    let run = |words: &[&str]| steps::run("target/release/fawn-sim", words);
    run(&["--seeds", "300", "--seconds", "75", "--least", "60"])?;
    run(&["--seeds", "1000", "--commit", &commit(), "--seconds", "155", "--least", "140"])
}

/// Runs random operations with faults on a store, from seeds that no earlier commit has had. A run that fails is printed with
/// the command that repeats it. The least number of runs meets every state that the program counts.
fn random_faults(seed: &str) -> Result<(), String> {
    let words = ["--commit", seed, "--seconds", "120", "--least", "600"];
    steps::run("target/release/examples/random_faults", &words)
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
