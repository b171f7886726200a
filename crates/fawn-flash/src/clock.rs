//! The machine's clocks, read together: monotonic time for timers, wall-clock time for expiry.
use fawn_types::{MonoMs, Now, TimeMs};
use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// The monotonic clock that also counts time during which the machine is suspended.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MONOTONIC: ClockId = ClockId::Boottime;
/// On other systems the monotonic clock counts suspended time under this name.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const MONOTONIC: ClockId = ClockId::Monotonic;

/// Reads both clocks.
#[must_use]
pub fn now() -> Now {
    let mono = clock_gettime(MONOTONIC);
    let (seconds, nanos) = (u64::try_from(mono.tv_sec).unwrap_or(0), u64::try_from(mono.tv_nsec).unwrap_or(0));
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        mono: MonoMs(seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000)),
        wall: TimeMs(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
    }
}
