//! Execution of a peer as a process: its output lines, with the resources used by the time of each line.
use crate::{BenchError, machine};
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Resources used by a process, from the kernel's accounting. They include those of ended threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time, user and system. The resolution is the kernel's clock tick, 10 ms.
    pub cpu: Duration,
    /// Number of read system calls. With direct I/O, each call is one request to the device.
    pub read_calls: u64,
    /// Bytes that storage was read for; those that came from the system's page cache do not count.
    pub read_bytes: u64,
    /// Bytes written to storage.
    pub written_bytes: u64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// Reads the accounting of process `pid`; all zero if the process has ended.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let io = read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let field = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
        let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Self {
            cpu: cpu_of_stat(&stat).unwrap_or_default(),
            read_calls: field("syscr:"),
            read_bytes: field("read_bytes:"),
            written_bytes: field("write_bytes:"),
            resident_bytes: machine::resident_bytes_of(pid).unwrap_or_default(),
        }
    }

    /// The resources used since `before`, and the memory resident now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            resident_bytes: self.resident_bytes,
        }
    }
}

/// Sum of utime and stime in `/proc/PID/stat`: fields 12 and 13 after the command name, which may contain spaces.
fn cpu_of_stat(stat: &str) -> Option<Duration> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_nanos(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))))
}

/// A line of standard output, with its time and the resources used so far.
#[derive(Clone, Debug)]
pub struct ProcessLine {
    /// The line's text.
    pub text: String,
    /// The time at which the line arrived.
    pub at: Instant,
    /// The resources used so far.
    pub usage: ProcessUsage,
}

/// A child process that is killed on drop, so that an interrupted comparison leaves no process behind.
struct OwnedChild(Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `command` to its end, with its standard error in `log`. The first returned line is empty and marks the start.
///
/// # Errors
/// If the program is missing, cannot be started, or fails; a failure includes the end of the log.
pub fn run_lines(
    mut command: Command,
    program: &'static str,
    package: &'static str,
    log: &Path,
) -> Result<Vec<ProcessLine>, BenchError> {
    let stderr = File::create(log).map_err(|error| BenchError::failed(log.display().to_string(), error))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = OwnedChild(command.spawn().map_err(|error| BenchError::of_start(&error, program, package))?);
    let pid = child.0.id();
    let mut lines = vec![ProcessLine { text: String::new(), at: Instant::now(), usage: ProcessUsage::of(pid) }];
    let Some(stdout) = child.0.stdout.take() else { unreachable!("asked for above") };
    for text in BufReader::new(stdout).lines() {
        let text = text.map_err(|error| BenchError::failed(program, error))?;
        lines.push(ProcessLine { text, at: Instant::now(), usage: ProcessUsage::of(pid) });
    }
    let status = child.0.wait().map_err(|error| BenchError::failed(program, error))?;
    match status.code() {
        Some(0) => Ok(lines),
        // Exit code 127: `stdbuf`, `taskset` and the shell all use it for a missing program.
        Some(127) => Err(BenchError::MissingPeer { program, package }),
        _ => Err(BenchError::failed(program, format!("ended with {status}: {}", tail_of(log)))),
    }
}

pub(crate) fn tail_of(log: &Path) -> String {
    let text = read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Result<Vec<ProcessLine>, BenchError> {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_lines(command, "sh", "dash", &dir.path().join("log"))
    }

    #[test]
    fn lines_come_with_what_was_used_and_failures_with_the_log() {
        let lines = run("echo a; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo b").unwrap();
        assert_eq!(lines.iter().map(|line| &*line.text).collect::<Vec<_>>(), ["", "a", "b"]);
        assert!(lines[2].usage.cpu > lines[1].usage.cpu && lines[2].at > lines[1].at, "{lines:?}");
        let error = run("echo broken disk >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("broken disk") && error.contains('3'), "{error}");
        assert!(matches!(run("exit 127"), Err(BenchError::MissingPeer { .. })));
    }

    #[test]
    fn only_a_program_that_is_not_found_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let start = |program: &Path| run_lines(Command::new(program), "tool", "tools", &dir.path().join("log"));
        assert!(matches!(start(&dir.path().join("absent")), Err(BenchError::MissingPeer { .. })));
        // A directory exists, but cannot be executed.
        let error = start(dir.path()).unwrap_err();
        assert!(matches!(&error, BenchError::Failed { what, .. } if what == "starting tool"), "{error}");
    }

    #[test]
    fn a_command_with_spaces_and_brackets_in_its_name_does_not_shift_the_fields() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        let expected = Duration::from_nanos(200 * (1_000_000_000 / rustix::param::clock_ticks_per_second()));
        assert_eq!(cpu_of_stat(stat), Some(expected));
        assert_eq!(cpu_of_stat(""), None);
    }
}
