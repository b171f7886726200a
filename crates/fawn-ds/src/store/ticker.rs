//! The thread that runs a store's timers while no caller does.
use super::leader::EngineQueue;
use super::op::{Op, Response};
use super::{Error, Result};
use fawn_flash::{DeviceError, IoOperation};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a store that was written to is looked after.
const TICK: Duration = Duration::from_millis(250);
/// How often it is looked after while it confirms what its opening deferred.
const CONFIRMING_TICK: Duration = Duration::from_micros(200);
/// How often at most, while a segment is scrubbed or cleaned, or segments are sorted or runs merged.
const UPKEEP_TICK: Duration = Duration::from_millis(4);
/// How often a store that rests is looked after at least, if it has upkeep to do: its clock may run ahead of this thread's.
const UPKEEP_TICK_MAX: Duration = Duration::from_secs(60);
/// After so many ticks without a write or work in flight the thread sleeps until the next write, or until its upkeep is due.
const CALM_TICKS: u32 = 8;

pub(super) fn spawn(shared: &Arc<EngineQueue>) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("fawn-ds".to_owned()).spawn(move || run(&shared));
    thread.map_err(|error| {
        let (operation, name) = (IoOperation::Metadata("start a thread"), "timer".to_owned());
        Error::from(DeviceError::Io { operation, name, offset: 0, detail: error.to_string() })
    })
}

fn run(shared: &EngineQueue) {
    let mut calm = Calm::default();
    loop {
        let Some(has_written) = shared.wait_for_tick(calm.interval(), calm.is_calm()) else { return };
        match shared.call(Op::Tick) {
            Ok(Response::Ticked { is_busy, is_confirming, upkeep_in_ms }) => {
                calm.note(has_written, is_busy, is_confirming);
                calm.upkeep_in_ms = upkeep_in_ms;
            }
            Ok(other) => other.unexpected(),
            // Closed or failed: no timer matters any more.
            Err(_) => return,
        }
    }
}

/// Successive ticks without a write or work in flight.
#[derive(Default)]
struct Calm {
    ticks: u32,
    is_confirming: bool,
    upkeep_in_ms: Option<u64>,
}

impl Calm {
    /// Whether the next write ends the wait for a tick.
    const fn is_calm(&self) -> bool {
        self.ticks >= CALM_TICKS
    }

    /// Time until the next tick; `None`: it waits for a write.
    fn interval(&self) -> Option<Duration> {
        let upkeep = self.upkeep_in_ms.map(|ms| Duration::from_millis(ms).clamp(UPKEEP_TICK, UPKEEP_TICK_MAX));
        if self.is_calm() {
            return upkeep;
        }
        let tick = if self.is_confirming { CONFIRMING_TICK } else { TICK };
        Some(upkeep.map_or(tick, |upkeep| upkeep.min(tick)))
    }

    fn note(&mut self, has_written: bool, is_busy: bool, is_confirming: bool) {
        self.is_confirming = is_confirming;
        self.ticks = if has_written || is_busy { 0 } else { self.ticks + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it ticks on after `ticks` of a kind.
    fn ticks_on(calm: &mut Calm, ticks: u32, has_written: bool, is_busy: bool) -> bool {
        (0..ticks).for_each(|_| calm.note(has_written, is_busy, false));
        calm.interval().is_some()
    }

    /// Without ticks, the last write of a store that syncs every second would stay unsynced.
    #[test]
    fn a_store_that_is_written_to_or_busy_is_ticked_until_it_rests() {
        let mut calm = Calm::default();
        for (has_written, is_busy) in [(true, false), (false, true), (true, true)] {
            assert!(ticks_on(&mut calm, 2 * CALM_TICKS, has_written, is_busy));
            assert!(ticks_on(&mut calm, CALM_TICKS - 1, false, false), "it rests for a moment only");
            assert!(!ticks_on(&mut calm, 1, false, false), "it rests");
            assert!(ticks_on(&mut calm, 1, has_written, is_busy), "again");
        }
    }

    #[test]
    fn a_store_is_ticked_for_its_upkeep() {
        let mut calm = Calm { ticks: CALM_TICKS, ..Calm::default() };
        for (upkeep_in_ms, interval) in
            [(None, None), (Some(0), Some(UPKEEP_TICK)), (Some(1000), Some(Duration::from_secs(1)))]
        {
            calm.upkeep_in_ms = upkeep_in_ms;
            assert_eq!((calm.is_calm(), calm.interval()), (true, interval));
        }
        calm.upkeep_in_ms = Some(u64::MAX);
        assert_eq!(calm.interval(), Some(UPKEEP_TICK_MAX));
        let mut busy = Calm { upkeep_in_ms: Some(0), ..Calm::default() };
        assert_eq!(busy.interval(), Some(UPKEEP_TICK), "a job is stepped, although nothing is written");
        busy.upkeep_in_ms = Some(1000);
        assert_eq!(busy.interval(), Some(TICK));
    }
}
