//! Default memory budget: a quarter of what this process may use.
use super::Size;

/// Assumed memory where the system reports none.
const FALLBACK_BYTES: u64 = 1 << 30;
const BUDGET_BYTES_MIN: u64 = 64 << 20;

/// A quarter of the machine's memory, or of the container's limit if that is lower; whole MiB.
pub(crate) fn default_budget() -> Size {
    let available = available().map_or(FALLBACK_BYTES, |available| available.0);
    Size((available / 4).max(BUDGET_BYTES_MIN) >> 20 << 20)
}

/// The machine's memory, or the container's limit if that is lower; `None`: the system reports neither.
pub(super) fn available() -> Option<Size> {
    [machine_bytes(), container_bytes()].into_iter().flatten().min().map(Size)
}

#[cfg(target_os = "linux")]
fn machine_bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    // An unsigned long: 32 bits wide on 32-bit machines.
    let units = info.totalram as u64;
    units.checked_mul(u64::from(info.mem_unit.max(1)))
}

#[cfg(not(target_os = "linux"))]
fn machine_bytes() -> Option<u64> {
    None
}

/// Limit of this process's control group (version 2), if there is one: `max` or a number of bytes.
fn container_bytes() -> Option<u64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}
