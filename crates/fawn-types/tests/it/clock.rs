//! Tests of the expiry clock: steps and drifts of the wall clock, starts in 1970, suspends, restarts.
use fawn_types::time::PATIENCE_MS;
use fawn_types::{ExpiryClock, MonoMs, Now, SteadyTime, TimeMs};

const HOUR_MS: u64 = 3_600_000;
/// The wall clock when a test begins.
const WALL_MS: u64 = 1_700_000_000_000;
const START: Now = Now { mono: MonoMs(5_000), wall: TimeMs(WALL_MS) };

/// Both clocks, `mono_ms` later, the wall clock off by `off_ms`.
fn later(mono_ms: u64, off_ms: i64) -> Now {
    let Now { mono, wall } = START.plus_ms(mono_ms);
    Now { mono, wall: TimeMs(wall.0.saturating_add_signed(off_ms)) }
}

#[test]
fn with_a_right_wall_clock_it_is_the_wall_clock() {
    let mut clock = ExpiryClock::first(START);
    for ms in (0..600_000).step_by(7) {
        // The two clocks are read one after the other, and rounded.
        let now = later(ms, i64::from(ms % 3 == 0));
        let time = clock.advance(now);
        assert!(time.0.abs_diff(now.wall.0) <= 1, "{time:?} at {now:?}");
    }
}

#[test]
fn a_step_back_costs_no_time_and_is_made_up_for_one_percent_at_a_time() {
    let mut clock = ExpiryClock::first(START);
    let back = -(HOUR_MS as i64);
    let mut last = clock.advance(later(1_000, 0));
    for second in 2..1_000 {
        let time = clock.advance(later(second * 1_000, back));
        assert_eq!(time.ms_since(last), 990, "second {second}");
        last = time;
    }
    // 100 hours after the step the lead of an hour is used up.
    let at_end = clock.advance(later(101 * HOUR_MS, back));
    assert_eq!(at_end, later(101 * HOUR_MS, back).wall);
    assert_eq!(clock.advance(later(102 * HOUR_MS, back)), later(102 * HOUR_MS, back).wall);
}

#[test]
fn short_steps_lose_no_fraction_while_it_leads() {
    let mut clock = ExpiryClock::first(START);
    for ms in 1..=10_000 {
        clock.advance(later(ms, -(HOUR_MS as i64)));
    }
    assert_eq!(clock.get().0, WALL_MS + 9_900);
}

#[test]
fn a_wall_clock_ahead_counts_once_it_has_stood() {
    let mut clock = ExpiryClock::first(START);
    let ahead = HOUR_MS as i64;
    for ms in (0..PATIENCE_MS).step_by(500) {
        assert_eq!(clock.advance(later(ms, ahead)), later(ms, 0).wall);
    }
    assert_eq!(clock.advance(later(PATIENCE_MS, ahead)), later(PATIENCE_MS, ahead).wall);
    assert_eq!(clock.advance(later(PATIENCE_MS + 10, ahead)), later(PATIENCE_MS + 10, ahead).wall);
}

#[test]
fn a_wall_clock_ahead_for_less_changes_nothing() {
    let mut clock = ExpiryClock::first(START);
    for round in 0..10 {
        let begin = round * PATIENCE_MS;
        clock.advance(later(begin, HOUR_MS as i64));
        assert_eq!(clock.advance(later(begin + PATIENCE_MS - 1, 0)), later(begin + PATIENCE_MS - 1, 0).wall);
    }
    // However it flaps between: only the least of it has stood for the whole time.
    let begin = 10 * PATIENCE_MS;
    for ms in (0..=PATIENCE_MS).step_by(100) {
        let off = if ms % 700 == 0 { 5 } else { HOUR_MS as i64 };
        clock.advance(later(begin + ms, off));
    }
    assert_eq!(clock.get(), later(11 * PATIENCE_MS, 5).wall);
}

#[test]
fn a_jump_while_another_lead_stands_waits_as_long() {
    let mut clock = ExpiryClock::first(START);
    clock.advance(later(0, 20));
    clock.advance(later(PATIENCE_MS - 1, 20));
    assert_eq!(clock.advance(later(PATIENCE_MS, HOUR_MS as i64)), later(PATIENCE_MS, 20).wall);
    assert_eq!(clock.advance(later(2 * PATIENCE_MS - 1, HOUR_MS as i64)), later(2 * PATIENCE_MS - 1, 20).wall);
    clock.advance(later(2 * PATIENCE_MS, HOUR_MS as i64));
    clock.advance(later(3 * PATIENCE_MS, HOUR_MS as i64));
    assert_eq!(clock.get(), later(3 * PATIENCE_MS, HOUR_MS as i64).wall);
}

/// A board without a clock chip: each start is in 1970 until the network says better.
#[test]
fn a_start_in_1970_goes_on_where_it_was() {
    let persisted = TimeMs(WALL_MS);
    let boot = Now::at(3_000); // both clocks begin at zero
    let mut clock = ExpiryClock::resume(persisted, MonoMs(900_000), boot);
    assert_eq!(clock.get(), persisted, "it never falls");
    assert_eq!(clock.advance(Now::at(13_000)).ms_since(persisted), 9_900, "it leads 1970 and runs on");
    let real = |mono| Now { mono: MonoMs(mono), wall: TimeMs(WALL_MS + 10 * HOUR_MS + mono) };
    assert!(clock.advance(real(20_000)).ms_since(persisted) < 20_000, "the network's time has not stood yet");
    assert_eq!(clock.advance(real(20_000 + PATIENCE_MS)), real(20_000 + PATIENCE_MS).wall);

    // The first start ever has nothing to go by.
    let mut first = ExpiryClock::first(boot);
    assert_eq!(first.advance(Now::at(4_000)), TimeMs(4_000));
    first.advance(real(5_000));
    assert_eq!(first.advance(real(5_000 + PATIENCE_MS)), real(5_000 + PATIENCE_MS).wall);
}

#[test]
fn a_suspend_passes_as_time_does() {
    let mut clock = ExpiryClock::first(START);
    clock.advance(later(10, 0));
    // The monotonic clock counts suspended time: one reading after nine hours is enough.
    assert_eq!(clock.advance(later(9 * HOUR_MS, 0)), later(9 * HOUR_MS, 0).wall);
    // One that does not count it leaves the wall clock ahead, which counts when it has stood.
    let woken = later(9 * HOUR_MS + 1, HOUR_MS as i64);
    assert_eq!(clock.advance(woken), later(9 * HOUR_MS + 1, 0).wall);
    let stood = woken.plus_ms(PATIENCE_MS);
    assert_eq!(clock.advance(stood), stood.wall);
}

#[test]
fn a_restart_goes_on_by_the_monotonic_clock_and_never_past_the_wall_clock() {
    let (persisted, at) = (TimeMs(WALL_MS), MonoMs(100_000));
    // The process was killed long after it persisted: the machine's clock runs on.
    let killed = Now { mono: at.plus_ms(HOUR_MS), wall: persisted.plus_ms(HOUR_MS) };
    assert_eq!(ExpiryClock::resume(persisted, at, killed).get(), killed.wall);
    // The machine was rebooted: no more than its clock shows can be missing for sure, and it shows less than before.
    let rebooted = Now { mono: MonoMs(30_000), wall: persisted.plus_ms(HOUR_MS) };
    assert_eq!(ExpiryClock::resume(persisted, at, rebooted).get(), persisted);
    // The disk was moved to a machine that has run for a year.
    let moved = Now { mono: MonoMs(365 * 24 * HOUR_MS), wall: persisted.plus_ms(5_000) };
    assert_eq!(ExpiryClock::resume(persisted, at, moved).get(), moved.wall);
    // The wall clock was set back meanwhile.
    let set_back = Now { mono: at.plus_ms(HOUR_MS), wall: TimeMs(WALL_MS - HOUR_MS) };
    assert_eq!(ExpiryClock::resume(persisted, at, set_back).get(), persisted);
}

#[test]
fn steady_time_is_raised_by_what_others_announce() {
    let mut time = SteadyTime::new(TimeMs(1_000), MonoMs(0));
    time.raise(TimeMs(5_000), MonoMs(100));
    assert_eq!(time.advance(Now { mono: MonoMs(200), wall: TimeMs(2_000) }), TimeMs(5_099), "it leads");
    time.raise(TimeMs(4_000), MonoMs(200));
    assert_eq!(time.get(), TimeMs(5_099), "it never falls");
    assert_eq!(time.advance(Now { mono: MonoMs(1_200), wall: TimeMs(90_000) }), TimeMs(6_099), "it does not jump");
    assert_eq!(time.advance(Now { mono: MonoMs(1_100), wall: TimeMs(90_000) }), TimeMs(6_099), "an older reading");
}
