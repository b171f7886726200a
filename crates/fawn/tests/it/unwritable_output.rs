//! Standard output or standard error that is closed or full: the command's work is done all the same, without a panic.
use crate::harness::{Server, connect, exchange, fawn, run};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// Outputs that accept nothing: a pipe without a reader, and a full device.
fn unwritable() -> [Stdio; 2] {
    let (_, pipe) = std::io::pipe().expect("a pipe");
    [pipe.into(), File::options().write(true).open("/dev/full").expect("the device").into()]
}

/// Exit code and messages of a command whose standard output is not writable.
fn run_with_stdout(args: &[&str], stdout: Stdio) -> (i32, String) {
    let output = fawn().args(args).stdout(stdout).stderr(Stdio::piped()).output().expect("the binary runs");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Exit code of a command with neither output.
fn run_without_outputs(command: &mut Command) -> Option<i32> {
    let [stdout, stderr] = unwritable();
    command.stdout(stdout).stderr(stderr).status().expect("the binary runs").code()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn copies_and_checks_are_completed_without_their_output() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &[]);
    exchange(&mut connect(server.resp), b"SET key value\r\n", b"+OK\r\n");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    for (name, stdout) in ["closed", "full"].into_iter().zip(unwritable()) {
        let backup = dir.path().join(name);
        let (code, error) = run_with_stdout(&["backup", text(&data), text(&backup)], stdout);
        assert!(code == 1 && error.contains("standard output: "), "{name}: {code} {error}");
        assert!(!dir.path().join(format!("{name}.partial")).exists(), "{name}");
        assert_eq!(run(&["check", text(&backup)]).0, 0, "the copy is complete: {name}");
    }
    for args in [&["check", text(&data)][..], &["config", "check"]] {
        for stdout in unwritable() {
            let (code, error) = run_with_stdout(args, stdout);
            assert!(code == 1 && error.contains("standard output: "), "{args:?}: {code} {error}");
        }
    }
    assert_eq!(run_without_outputs(fawn().args(["dump", text(&data), "-o", text(&dir.path().join("dump"))])), Some(0));
    std::fs::remove_file(data.join("manifest")).expect("removed");
    assert_eq!(run_without_outputs(fawn().args(["check", text(&data)])), Some(3), "the code has the verdict");
    let repaired = dir.path().join("repaired");
    let args = ["check", text(&data), "--repair", "--yes", "--to", text(&repaired)];
    assert_eq!(run_without_outputs(fawn().args(args)), Some(1));
    assert_eq!(run(&["check", text(&repaired)]).0, 0, "the repaired copy is complete");
}

#[test]
fn a_load_goes_on_without_its_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &[]);
    let at = server.resp.to_string();
    let rows = dir.path().join("rows");
    std::fs::write(&rows, "nope\n{\"id\":1}\n").expect("written");
    let args = ["load", "--format", "jsonl", "--key", "id", text(&rows), "--server", &at];
    assert_eq!(run_without_outputs(fawn().args(args)), Some(5));
    assert_eq!(run(&["get", "1", "--server", &at]).1, "{\"id\":1}");
    assert_eq!(run_without_outputs(fawn().args(["del", "1", "--server", &at])), Some(1));
    assert_eq!(run_without_outputs(fawn().args(["del", "1", "--server", &at])), Some(6), "it is removed");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_server_whose_log_cannot_be_written_serves() {
    for stderr in unwritable() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = Server::start_with_log(dir.path(), stderr);
        exchange(&mut connect(server.resp), b"SET key value\r\n", b"+OK\r\n");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait(), Some(0));
    }
}
