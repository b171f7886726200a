//! The course of a mix: the operations that count, and one sample per interval.
use super::session::BenchSession;
use crate::pairs::median_of;
use crate::{Row, machine, row};
use fawn_flash::Device;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Quantiles of the latency distribution in the series.
const QUANTILES: [f64; 10] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1.0];

/// The course of a run.
pub(super) struct MixSamples {
    /// Length of an interval.
    every: Duration,
    /// Whether an interval ends after that time, instead of with a phase.
    is_timed: bool,
    /// Whether operations count now.
    is_counting: bool,
    /// Start of the present interval.
    since: Instant,
    ended: u64,
    slowest_ns: u64,
    /// The last time at which an operation ended, or at which none was in flight.
    pub(super) progress_at: Instant,
    longest_stop: Duration,
    pub(super) nanos: Histogram<u64>,
    /// Of the present interval.
    interval_nanos: Histogram<u64>,
    /// Time that counts.
    counted: Duration,
    memory_bytes_max: u64,
    resident_bytes_max: u64,
    ops_per_s: Vec<f64>,
    max_us: Vec<f64>,
    /// A machine that is slow for a few intervals makes the quantile of the whole run, but not the median of these.
    p999_us: Vec<f64>,
    debt_segments: Vec<f64>,
}

impl MixSamples {
    /// Counts from `started` on, with a sample every so often.
    pub(super) fn new(every: Duration, started: Instant) -> Self {
        Self {
            every,
            is_timed: true,
            is_counting: true,
            since: started,
            ended: 0,
            slowest_ns: 0,
            progress_at: started,
            longest_stop: Duration::ZERO,
            nanos: row::histogram(),
            interval_nanos: row::histogram(),
            counted: Duration::ZERO,
            memory_bytes_max: 0,
            resident_bytes_max: 0,
            ops_per_s: Vec::new(),
            max_us: Vec::new(),
            p999_us: Vec::new(),
            debt_segments: Vec::new(),
        }
    }

    /// Begins a phase whose operations count or not, at a time when none is in flight. Intervals are the caller's from now on.
    pub(super) const fn begin_phase(&mut self, counts: bool, now: Instant) {
        (self.is_timed, self.is_counting, self.since, self.progress_at) = (false, counts, now, now);
    }

    /// Number of samples.
    pub(super) const fn len(&self) -> usize {
        self.max_us.len()
    }

    pub(super) fn count(&mut self, now: Instant, nanos: u64) {
        if self.is_counting {
            self.nanos.saturating_record(nanos);
            self.interval_nanos.saturating_record(nanos);
            (self.ended, self.slowest_ns) = (self.ended + 1, self.slowest_ns.max(nanos));
        }
        self.note_progress(now);
    }

    pub(super) fn note_progress(&mut self, now: Instant) {
        if self.is_counting {
            self.longest_stop = self.longest_stop.max(now.duration_since(self.progress_at));
        }
        self.progress_at = now;
    }

    /// Takes a sample if a timed interval has passed. A run takes at most twice its time: so the series are bounded.
    pub(super) fn take<D: Device>(&mut self, now: Instant, session: &BenchSession<D>) {
        if self.is_timed && now >= self.since + self.every {
            self.add(now, session);
        }
    }

    pub(super) fn add<D: Device>(&mut self, now: Instant, session: &BenchSession<D>) {
        let passed = now.saturating_duration_since(self.since).max(Duration::from_nanos(1));
        self.ops_per_s.push((self.ended as f64 / passed.as_secs_f64()).round());
        self.max_us.push(self.slowest_ns as f64 / 1e3);
        self.p999_us.push(self.interval_nanos.value_at_quantile(0.999) as f64 / 1e3);
        self.interval_nanos.reset();
        self.debt_segments.push(session.engine.log_report().cleaning_debt_segments as f64);
        self.memory_bytes_max = self.memory_bytes_max.max(session.engine.memory().total_bytes());
        let resident = machine::resident_bytes_of(std::process::id()).unwrap_or_default();
        self.resident_bytes_max = self.resident_bytes_max.max(resident);
        self.counted += passed;
        (self.ended, self.slowest_ns, self.since) = (0, 0, now);
    }

    /// Adds the samples to a row.
    pub(super) fn describe(&self, row: Row) -> Row {
        let mut p999_us = self.p999_us.clone();
        p999_us.sort_by(f64::total_cmp);
        let mut row = row
            .latencies(&self.nanos)
            .measuring("counted_s", self.counted.as_secs_f64())
            .measuring("longest_stop_ms", self.longest_stop.as_secs_f64() * 1e3)
            .measuring("memory_bytes_max", self.memory_bytes_max as f64)
            .measuring("rss_bytes_max", self.resident_bytes_max as f64)
            .measuring("interval_s", self.every.as_secs_f64())
            .measuring("interval_p999_us_median", median_of(&p999_us));
        row.ops_per_s = self.nanos.len() as f64 / self.counted.as_secs_f64().max(1e-9);
        row.series.insert("ops_per_s".into(), self.ops_per_s.clone());
        row.series.insert("max_us".into(), self.max_us.clone());
        row.series.insert("p999_us".into(), self.p999_us.clone());
        row.series.insert("debt_segments".into(), self.debt_segments.clone());
        row.series.insert("quantile".into(), QUANTILES.to_vec());
        let latencies = QUANTILES.iter().map(|quantile| self.nanos.value_at_quantile(*quantile) as f64 / 1e3);
        row.series.insert("latency_us_at_quantile".into(), latencies.collect());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_stops_count_in_measured_phases_alone() {
        let started = Instant::now();
        let at = |ms| started + Duration::from_millis(ms);
        let mut samples = MixSamples::new(Duration::from_secs(15), started);
        samples.begin_phase(false, at(0));
        samples.count(at(500), 500_000_000);
        samples.count(at(1000), 900_000_000);
        // Between two phases there is time that belongs to neither.
        samples.begin_phase(true, at(1003));
        samples.count(at(1010), 4_000_000);
        samples.note_progress(at(1012));
        samples.count(at(1015), 3_000_000);
        samples.begin_phase(false, at(1020));
        samples.count(at(1900), 800_000_000);
        assert_eq!((samples.nanos.len(), samples.ended, samples.slowest_ns), (2, 2, 4_000_000));
        assert_eq!((samples.longest_stop, samples.progress_at), (Duration::from_millis(7), at(1900)));
    }
}
