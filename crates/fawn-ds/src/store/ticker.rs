//! The thread that runs a store's timers while no caller does.
use super::leader::EngineQueue;
use super::op::{Op, Response, TickReport};
use super::{Error, Result};
use crate::log::flush::MEMORY_FLUSH_MS;
use fawn_flash::{DeviceError, IoOperation};
use fawn_types::Durability;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a store that was written to is looked after.
const TICK: Duration = Duration::from_millis(250);
/// The same, if writes return before they are flushed.
const UNFLUSHED_TICK: Duration = Duration::from_millis(MEMORY_FLUSH_MS / 2);
/// How often it is looked after while it confirms what its opening deferred.
const CONFIRMING_TICK: Duration = Duration::from_micros(200);
/// How often at most, while a file is scrubbed or a segment cleaned, segments are sorted or runs merged, or a due flush or sync waits
/// for a write. While no read or write of
/// these completes, each interval is twice as long as the one before, up to the usual tick: one may hang.
const UPKEEP_TICK: Duration = Duration::from_millis(4);
/// How often a store that rests is looked after at least, if it has upkeep to do: its clock may run ahead of this thread's.
const UPKEEP_TICK_MAX: Duration = Duration::from_secs(60);
/// After so many ticks without a write or work in flight the thread sleeps until the next write, or until its upkeep is due.
const CALM_TICKS: u32 = 8;

pub(super) fn spawn(shared: &Arc<EngineQueue>, durability: Durability) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("fawn-ds".to_owned()).spawn(move || run(&shared, durability));
    thread.map_err(|error| {
        let (operation, name) = (IoOperation::Metadata("start a thread"), "timer".to_owned());
        Error::from(DeviceError::Io { operation, name, offset: 0, detail: error.to_string() })
    })
}

fn run(shared: &EngineQueue, durability: Durability) {
    let mut calm = Calm::new(durability);
    loop {
        let Some(has_written) = shared.wait_for_tick(calm.interval(), calm.is_calm()) else { return };
        match shared.call(Op::Tick) {
            Ok(Response::Ticked(report)) => calm.note(has_written, report),
            Ok(other) => other.unexpected(),
            // Closed or failed: no timer matters any more.
            Err(_) => return,
        }
    }
}

/// Successive ticks without a write or work in flight.
pub(super) struct Calm {
    /// Interval while something was written lately.
    tick: Duration,
    ticks: u32,
    /// Ticks without a completion.
    stalled: u32,
    report: TickReport,
}

impl Calm {
    pub(super) fn new(durability: Durability) -> Self {
        let tick = if durability == Durability::Memory { UNFLUSHED_TICK } else { TICK };
        Self { tick, ticks: 0, stalled: 0, report: TickReport::default() }
    }

    /// Whether the next write ends the wait for a tick.
    const fn is_calm(&self) -> bool {
        self.ticks >= CALM_TICKS
    }

    /// Time until the next tick; `None`: it waits for a write.
    pub(super) fn interval(&self) -> Option<Duration> {
        let TickReport { upkeep_in_ms, log_due_in_ms, has_upkeep, .. } = self.report;
        let log_timer = log_due_in_ms.filter(|&in_ms| in_ms > 0);
        let timer = [upkeep_in_ms, log_timer].into_iter().flatten().min().map(Duration::from_millis);
        let timer = timer.map(|timer| timer.clamp(UPKEEP_TICK, UPKEEP_TICK_MAX));
        // Between ticks nothing takes in completions, unless there are other operations. A sync that is due waits for them too.
        let has_step = has_upkeep || log_due_in_ms == Some(0);
        let step = has_step.then(|| (UPKEEP_TICK * (1 << self.stalled.min(16))).min(TICK));
        let upkeep = [timer, step].into_iter().flatten().min();
        if self.is_calm() {
            return upkeep;
        }
        let tick = if self.report.is_confirming { CONFIRMING_TICK } else { self.tick };
        Some(upkeep.map_or(tick, |upkeep| upkeep.min(tick)))
    }

    pub(super) fn note(&mut self, has_written: bool, report: TickReport) {
        self.ticks = if has_written || report.is_busy { 0 } else { self.ticks + 1 };
        // A step that is due at once waits for no completion.
        // Nor does a flush or sync that has become due: the ticks before were for something else.
        let is_log_due_now = report.log_due_in_ms == Some(0) && self.report.log_due_in_ms != Some(0);
        let is_stalled = report.completed == self.report.completed && report.upkeep_in_ms != Some(0) && !is_log_due_now;
        self.stalled = if is_stalled { self.stalled + 1 } else { 0 };
        self.report = report;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it ticks on after `ticks` of a kind.
    fn ticks_on(calm: &mut Calm, ticks: u32, has_written: bool, is_busy: bool) -> bool {
        (0..ticks).for_each(|_| calm.note(has_written, TickReport { is_busy, ..TickReport::default() }));
        calm.interval().is_some()
    }

    /// Without ticks, the last write of a store that syncs every second would stay unsynced.
    #[test]
    fn a_store_that_is_written_to_or_busy_is_ticked_until_it_rests() {
        let mut calm = Calm::new(Durability::Sync);
        for (has_written, is_busy) in [(true, false), (false, true), (true, true)] {
            assert!(ticks_on(&mut calm, 2 * CALM_TICKS, has_written, is_busy));
            assert!(ticks_on(&mut calm, CALM_TICKS - 1, false, false), "it rests for a moment only");
            assert!(!ticks_on(&mut calm, 1, false, false), "it rests");
            assert!(ticks_on(&mut calm, 1, has_written, is_busy), "again");
        }
    }

    #[test]
    fn a_store_is_ticked_for_its_upkeep() {
        let interval = |ticks, upkeep_in_ms| {
            let report = TickReport { upkeep_in_ms, ..TickReport::default() };
            let calm = Calm { ticks, report, ..Calm::new(Durability::Sync) };
            assert_eq!(calm.is_calm(), ticks == CALM_TICKS);
            calm.interval()
        };
        assert_eq!(interval(CALM_TICKS, None), None);
        assert_eq!(interval(CALM_TICKS, Some(0)), Some(UPKEEP_TICK));
        assert_eq!(interval(CALM_TICKS, Some(1_000)), Some(Duration::from_secs(1)));
        assert_eq!(interval(CALM_TICKS, Some(u64::MAX)), Some(UPKEEP_TICK_MAX));
        assert_eq!(interval(0, Some(0)), Some(UPKEEP_TICK), "a job is stepped, although nothing is written");
        assert_eq!(interval(0, Some(1_000)), Some(TICK));
    }

    /// The guide promises that a killed process takes the last 50 ms in `memory`, and a power loss the last second in `everysec`.
    #[test]
    fn a_store_is_ticked_when_its_log_is_due() {
        let interval = |durability, log_due_in_ms| {
            let report = TickReport { log_due_in_ms, is_busy: true, ..TickReport::default() };
            let mut calm = Calm::new(durability);
            calm.note(true, report);
            calm.interval().map(|interval| interval.as_millis())
        };
        assert_eq!(interval(Durability::Memory, None), Some(25), "the next write may wait for a flush");
        assert_eq!(interval(Durability::Memory, Some(10)), Some(10));
        assert_eq!(interval(Durability::EverySecond, Some(100)), Some(100));
        assert_eq!(interval(Durability::EverySecond, Some(900)), Some(250));
        assert_eq!(interval(Durability::EverySecond, Some(0)), Some(4), "the sync waits for a write");
    }

    /// A read that hangs once had an idle store ticked 250 times a second.
    #[test]
    fn ticks_become_rare_while_nothing_completes() {
        let mut calm = Calm::new(Durability::Sync);
        let mut note = |completed, upkeep_in_ms| {
            calm.note(
                false,
                TickReport { is_busy: true, has_upkeep: true, completed, upkeep_in_ms, ..TickReport::default() },
            );
            calm.interval().map(|interval| interval.as_millis())
        };
        assert_eq!(note(1, None), Some(4));
        let stalled: Vec<_> = (0..40).map(|_| note(1, None)).collect();
        assert_eq!(stalled[..7], [8, 16, 32, 64, 128, 250, 250].map(Some));
        assert_eq!(stalled[39], Some(250));
        assert!((0..8).all(|_| note(1, Some(0)) == Some(4)), "steps that wait for nothing");
        assert_eq!(note(1, None), Some(8), "a read behind them");
        assert_eq!(note(2, None), Some(4), "it has ended");
        assert_eq!(note(2, None), Some(8));
    }
}
