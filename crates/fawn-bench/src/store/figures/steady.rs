//! Overwrites of a nearly full store for an hour: latency, stops, write amplification, cleaning debt and memory.
use super::{FigureRun, fill_within};
use crate::pairs::median_of;
use crate::store::fawn_ds::record_bytes_of;
use crate::store::mix::{ArrivalPattern, Mix};
use crate::store::peak_load::PeakLoad;
use crate::store::{DataShape, SpaceLimit};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};
use std::time::Duration;

/// Share of the capacity that is live, percent.
const LIVE_PERCENT: u64 = 80;
/// Shares of the peak, percent.
const LOAD_PERCENTS: [u32; 2] = [20, 90];
/// The capacity is written so many times before a measurement, so that cleaning is in its steady state.
const CHURN_CAPACITIES: u64 = 3;
/// Times that the capacity must be written by a measurement for it to show a steady state.
const CAPACITIES_MIN: f64 = 6.0;
/// A run without cleaning ends once its open loops have written the capacity so many times: its files grow by all that it writes.
const CAPACITIES_UNCLEANED: u64 = 2;
/// Time after which a churn ends in any case.
pub(super) const CHURN_MAX: Duration = Duration::from_secs(3600);
/// Writes in flight at the peak.
const PEAK_DEPTH: usize = 256;
/// Smallest capacity with enough segments to clean.
const CAPACITY_BYTES_MIN: u64 = 8 << 20;
const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// A store of one run, and its share of the capacity.
#[derive(Clone, Copy)]
struct SteadyStore {
    shape: DataShape,
    capacity_bytes: u64,
}

/// A measurement, with and without cleaning.
#[derive(Clone, Copy)]
struct SteadyRun {
    store: SteadyStore,
    exponent: f64,
    percent: u32,
    pair: usize,
}

impl SteadyStore {
    fn puts_per_capacity(&self) -> u64 {
        self.capacity_bytes / record_bytes_of(self.shape.value_bytes)
    }
}

impl FigureRun<'_> {
    /// Uniform and Zipf overwrites at shares of the peak. The runs with and without cleaning of one share follow each other:
    /// a shared machine changes its speed within minutes.
    pub(super) fn steady_overwrites(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let record_bytes = record_bytes_of(options.value_bytes);
        let capacity_bytes = options.keys * record_bytes * 100 / LIVE_PERCENT;
        if capacity_bytes < CAPACITY_BYTES_MIN {
            let needed = CAPACITY_BYTES_MIN * LIVE_PERCENT / 100 / record_bytes + 1;
            return Err(self.refuse(format!(
                "a capacity of {capacity_bytes} bytes for {} keys, expected at least {CAPACITY_BYTES_MIN}; give --keys \
                 {needed} or more",
                options.keys
            )));
        }
        let memory_bytes = options.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        let shape = DataShape { keys: options.keys, value_bytes: options.value_bytes, memory_bytes };
        let store = SteadyStore { shape, capacity_bytes };
        for exponent in [0.0, 0.99] {
            let keys = KeyDistribution::zipf(options.keys, exponent);
            for at in 0..self.contenders.len() {
                for pair in 0..options.pairs {
                    for percent in LOAD_PERCENTS {
                        let run = SteadyRun { store, exponent, percent, pair };
                        let Some(peak) = self.overwrites(at, run, &keys, None)? else { break };
                        self.overwrites(at, run, &keys, Some(peak))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills a store and measures it: with cleaning, or without at the load of this peak. Returns its peak; `None` if the store
    /// has no limit of its space.
    fn overwrites(
        &mut self,
        at: usize,
        run: SteadyRun,
        keys: &KeyDistribution,
        peak_with_cleaning: Option<f64>,
    ) -> Result<Option<f64>, BenchError> {
        let (SteadyRun { store, exponent, percent, pair }, cleans) = (run, peak_with_cleaning.is_none());
        let space = SpaceLimit { capacity_bytes: Some(store.capacity_bytes), cleans, sorts: false };
        if !fill_within(&mut *self.contenders[at], &store.shape, space)? {
            crate::print_note(format_args!("{}: no limit of its space", self.contenders[at].name()));
            return Ok(None);
        }
        let churn = Mix {
            put_percent: 100,
            delete_percent: 0,
            keys: keys.clone(),
            arrival: ArrivalPattern::InFlight(PEAK_DEPTH),
            run: CHURN_MAX,
            operations_max: store.puts_per_capacity() * CHURN_CAPACITIES,
            seed: self.seed(pair),
        };
        if cleans {
            self.contenders[at].mixed(&churn)?;
        }
        let operations_max = if cleans { u64::MAX } else { store.puts_per_capacity() * CAPACITIES_UNCLEANED };
        let mix = Mix { run: self.options.run, operations_max, ..churn };
        let load = PeakLoad { mix, peak_depth: PEAK_DEPTH, percent, peak_max: peak_with_cleaning };
        let Some(row) = self.contenders[at].follow_peak(&load)? else {
            return Err(self.refuse("the store has no load that follows the peak"));
        };
        let peak = median_peak(&row);
        let row = judged(row, cleans, store).with("zipf", exponent).with("cleaning", cleans);
        let row = row.with("capacity_bytes", store.capacity_bytes).with("live_percent", LIVE_PERCENT);
        let is_cleaning = if cleans { "with" } else { "without" };
        let point = format!("Zipf {exponent}, {percent} % of the peak, {is_cleaning} cleaning");
        self.emit(row.with("load", format!("{percent} %")), &point, pair)?;
        self.contenders[at].verify()?;
        self.contenders[at].discard()?;
        Ok(Some(peak))
    }
}

/// The median of a run's peaks.
fn median_peak(row: &Row) -> f64 {
    let mut peaks = row.series.get("peak_ops_per_s").cloned().unwrap_or_default();
    peaks.sort_by(f64::total_cmp);
    median_of(&peaks)
}

/// Adds how often the capacity was written, and a note if that was too seldom.
fn judged(row: Row, cleans: bool, store: SteadyStore) -> Row {
    let written = row.measured.get("record_bytes").copied().unwrap_or_default() / store.capacity_bytes as f64;
    let row = row.measuring("capacities_written", written);
    if !cleans || written >= CAPACITIES_MIN {
        return row;
    }
    row.with(
        "note",
        format!("the capacity was written less than {CAPACITIES_MIN} times; more --seconds or fewer --keys"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_run_is_the_median_of_its_periods() {
        let mut row = Row::default();
        assert_eq!(median_peak(&row), 0.0);
        row.series.insert("peak_ops_per_s".into(), vec![900.0, 5.0, 40.0, 20.0, 30.0]);
        assert_eq!(median_peak(&row), 30.0);
    }
}
