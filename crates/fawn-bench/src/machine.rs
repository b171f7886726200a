//! Description of the machine for a result, and readings of CPU time and resident memory.
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::time::Duration;

/// The machine's description: CPU, cores, memory, kernel, and the file system of `dir`.
#[must_use]
pub fn describe(dir: &std::path::Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut fact = |name: &str, value: String| facts.insert(name.to_owned(), value);
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    fact("cpu", model.trim_start_matches([' ', '\t', ':']).to_owned());
    fact("cores", std::thread::available_parallelism().map_or_else(|_| "unknown".into(), |cores| cores.to_string()));
    fact("commit", commit());
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    fact("memory", memory.lines().next().unwrap_or("unknown").replace("MemTotal:", "").trim().to_owned());
    fact("kernel", read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned());
    fact("file_system", file_system_of(dir));
    facts
}

/// The measured commit, if git knows it; with `-dirty` if files differ from the commit.
fn commit() -> String {
    let output = std::process::Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "unknown".to_owned(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

fn file_system_of(dir: &std::path::Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((fields.next()?.to_owned(), fields.next()?.to_owned(), fields.next()?.to_owned()))
    });
    let longest = fields.filter(|(_, point, _)| dir.starts_with(point)).max_by_key(|(_, point, _)| point.len());
    longest.map_or_else(|| "unknown".to_owned(), |(device, _, kind)| format!("{kind} on {device}"))
}

/// CPU time of this process so far, user and system.
#[must_use]
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// CPU time of process `pid` so far: scheduler statistics in nanoseconds, summed over its threads.
#[must_use]
pub fn cpu_of(pid: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanos = threads.flatten().filter_map(|thread| {
        let text = read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanos.sum()))
}

/// Resident memory of process `pid`, bytes.
#[must_use]
pub fn resident_bytes_of(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmRSS:")
}

/// Peak of the resident memory of process `pid`, bytes.
#[must_use]
pub fn resident_bytes_max_of(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_there_and_grow() {
        let before = own_cpu();
        let sum = (0..2_000_000_u64).fold(0_u64, |sum, i| sum.wrapping_mul(31).wrapping_add(std::hint::black_box(i)));
        assert!(own_cpu() > before, "{sum}");
        assert!(cpu_of(std::process::id()).unwrap() > Duration::ZERO);
        assert!(resident_bytes_of(std::process::id()).unwrap() > 1 << 16);
        assert!(describe(std::path::Path::new("."))["kernel"].contains('.'));
    }
}
