//! Peers that tests run against: installs missing packages if it may, or reports exactly which to install.
use crate::steps::run_with;
use crate::tree;
use std::path::PathBuf;
use std::process::Command;

/// A program that a test runs, or the path of a header that it compiles with, and its Debian package.
struct TestPeer {
    program: &'static str,
    package: &'static str,
}

const PEERS: [TestPeer; 11] = [
    TestPeer { program: "redis-server", package: "redis-server" },
    TestPeer { program: "redis-benchmark", package: "redis-tools" },
    TestPeer { program: "memcached", package: "memcached" },
    TestPeer { program: "memccapable", package: "libmemcached-tools" },
    TestPeer { program: "strace", package: "strace" },
    TestPeer { program: "python3", package: "python3" },
    TestPeer { program: "git", package: "git" },
    TestPeer { program: "gcc", package: "gcc" },
    TestPeer { program: "/usr/include/lmdb.h", package: "liblmdb-dev" },
    TestPeer { program: "/usr/include/db.h", package: "libdb5.3-dev" },
    TestPeer { program: "/usr/include/rocksdb/c.h", package: "librocksdb-dev" },
];

/// Python packages of the client sessions. Versions are exact: a new release must not fail the gate.
const PYTHON_PACKAGES: [&str; 3] = ["redis==5.2.1", "pymemcache==4.0.0", "xxhash==4.1.0"];

/// Installs missing peers.
pub(crate) fn install() -> Result<(), String> {
    let missing: Vec<&TestPeer> = PEERS.iter().filter(|peer| !on_path(peer.program)).collect();
    if missing.is_empty() {
        println!("all peers are installed");
    } else {
        let packages: Vec<&str> = missing.iter().map(|peer| peer.package).collect();
        apt_install(&packages)?;
    }
    python_environment()
}

/// The interpreter of the tests' Python environment.
pub(crate) fn python() -> PathBuf {
    tree::root().join("target/python/bin/python3")
}

fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn apt_install(packages: &[&str]) -> Result<(), String> {
    let advice = format!("install these packages and run again: apt-get install {}", packages.join(" "));
    if !on_path("apt-get") || !is_root() {
        return Err(advice);
    }
    let quiet = [("DEBIAN_FRONTEND", "noninteractive")];
    run_with("apt-get", &["update", "-qq"], &quiet).map_err(|error| format!("{error}; {advice}"))?;
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(packages);
    run_with("apt-get", &args, &quiet).map_err(|error| format!("{error}; {advice}"))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

fn python_environment() -> Result<(), String> {
    let dir = tree::root().join("target/python");
    let stamp = dir.join("packages");
    let wanted = PYTHON_PACKAGES.join(" ");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let dir_text = dir.to_string_lossy().into_owned();
    run_with("python3", &["-m", "venv", "--clear", &dir_text], &[])
        .map_err(|error| format!("{error}; install python3-venv and run again"))?;
    let python = python().to_string_lossy().into_owned();
    let mut args = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    args.extend(PYTHON_PACKAGES);
    run_with(&python, &args, &[])?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}
