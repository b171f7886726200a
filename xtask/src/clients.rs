//! Gate steps with real clients: libmemcached's own suite, redis-benchmark, redis-py, pymemcache.
use crate::server::TestServer;
use crate::{peers, steps, tree};
use std::path::PathBuf;
use std::process::Command;

/// A fresh directory under `target/` for a step.
pub(crate) fn scratch(name: &str) -> Result<PathBuf, String> {
    let dir = tree::root().join("target/scratch").join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Runs all client sessions against the demo.
pub(crate) fn run(server: &TestServer) -> Result<(), String> {
    sessions(server, &["ping", "set", "get", "incr", "mset"])?;
    python("admin.py", &[&server.admin, "3"])
}

/// Runs the sessions that any server must pass, and redis-benchmark's `tests` (its MSET would write keys of several
/// shards).
pub(crate) fn sessions(server: &TestServer, tests: &[&str]) -> Result<(), String> {
    memccapable(&server.memcached)?;
    redis_benchmark(&server.resp, tests)?;
    python("redis_session.py", &[&server.resp, "2"])?;
    python("redis_session.py", &[&server.resp, "3"])?;
    python("memcache_session.py", &[&server.memcached])
}

/// The catalogue that `fawn demo` loads on this machine, as a file; the built-in one if the machine has none.
pub(crate) fn catalogue() -> Result<PathBuf, String> {
    let dumped = Command::new("apt-cache").arg("dumpavail").output().map(|output| output.stdout).unwrap_or_default();
    if dumped.is_empty() {
        return Ok(tree::root().join("crates/fawn/data/catalogue.deb822"));
    }
    let path = scratch("catalogue")?.join("dumpavail");
    std::fs::write(&path, dumped).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Reads every package back through both protocols.
pub(crate) fn read_catalogue(server: &TestServer, catalogue: &std::path::Path) -> Result<(), String> {
    python("catalogue.py", &[&server.resp, &server.memcached, &catalogue.to_string_lossy()])
}

/// Runs a script of `tests/clients`.
pub(crate) fn python(script: &str, args: &[&str]) -> Result<(), String> {
    let script = format!("tests/clients/{script}");
    steps::run(&peers::python().to_string_lossy(), &[&[script.as_str()], args].concat())
}

fn memccapable(address: &str) -> Result<(), String> {
    let (host, port) = address.rsplit_once(':').ok_or("no port")?;
    let text = output("memccapable", &["-a", "-h", host, "-p", port])?;
    let passed = text.lines().filter(|line| line.contains("[pass]")).count();
    println!("memccapable: {passed} ASCII tests pass");
    if text.contains("All tests passed") && passed >= 27 { Ok(()) } else { Err(format!("memccapable:\n{text}")) }
}

fn redis_benchmark(address: &str, tests: &[&str]) -> Result<(), String> {
    let (host, port) = address.rsplit_once(':').ok_or("no port")?;
    for pipeline in ["1", "16"] {
        let names = tests.join(",");
        let args = ["-h", host, "-p", port, "-t", &names, "-n", "20000", "-P", pipeline, "-r", "1000", "--csv"];
        let text = output("redis-benchmark", &args)?;
        let rows = text.lines().filter(|line| line.starts_with('"') && !line.contains("\"test\"")).count();
        println!("redis-benchmark -P {pipeline}: {rows} tests ran");
        // PING is sent in two forms.
        if rows != tests.len() + 1 || text.to_ascii_lowercase().contains("error") {
            return Err(format!("redis-benchmark -P {pipeline}:\n{text}"));
        }
    }
    Ok(())
}

fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text) } else { Err(format!("{program} ended with {}:\n{text}", output.status)) }
}
