//! Overwrites of a nearly full store for an hour: latency, stops, write amplification, cleaning debt and memory.
use super::{FigureRun, fill_within};
use crate::store::fawn_ds::record_bytes_of;
use crate::store::mix::{ArrivalPattern, Mix};
use crate::store::{Contender, DataShape, SpaceLimit};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};
use std::time::Duration;

/// Share of the capacity that is live, percent.
const LIVE_PERCENT: u64 = 80;
/// Shares of the peak, percent.
const LOAD_PERCENTS: [u32; 2] = [20, 90];
/// The capacity is written so many times before the first measurement, so that cleaning is in its steady state; the last
/// time is that measurement's peak.
const CHURN_CAPACITIES: u64 = 3;
/// Times that the capacity must be written by a measurement for it to show a steady state.
const CAPACITIES_MIN: f64 = 6.0;
/// A run without cleaning ends once it has written the capacity so many times: its files grow by all that it writes.
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

impl SteadyStore {
    fn puts_per_capacity(&self) -> u64 {
        self.capacity_bytes / record_bytes_of(self.shape.value_bytes)
    }
}

impl FigureRun<'_> {
    /// Uniform and Zipf overwrites, each at shares of the peak that was measured right before. A share of an earlier peak
    /// can exceed what a shared machine does a quarter of an hour later, and then measures a queue.
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
                    self.overwrites(at, store, &keys, exponent, pair)?;
                }
            }
        }
        Ok(())
    }

    fn overwrites(
        &mut self,
        at: usize,
        store: SteadyStore,
        keys: &KeyDistribution,
        exponent: f64,
        pair: usize,
    ) -> Result<(), BenchError> {
        let mix = Mix {
            put_percent: 100,
            delete_percent: 0,
            keys: keys.clone(),
            arrival: ArrivalPattern::InFlight(PEAK_DEPTH),
            run: CHURN_MAX,
            operations_max: store.puts_per_capacity(),
            seed: self.seed(pair),
        };
        let mut rates = [0.0; LOAD_PERCENTS.len()];
        for cleans in [true, false] {
            let space = SpaceLimit { capacity_bytes: Some(store.capacity_bytes), cleans, sorts: false };
            if !fill_within(&mut *self.contenders[at], &store.shape, space)? {
                eprintln!("{}: no limit of its space", self.contenders[at].name());
                return Ok(());
            }
            let describe = |row: Row| {
                let row = row.with("zipf", exponent).with("cleaning", cleans);
                row.with("capacity_bytes", store.capacity_bytes).with("live_percent", LIVE_PERCENT)
            };
            if cleans {
                for time in 1..CHURN_CAPACITIES {
                    peak(&mut *self.contenders[at], &mix, time)?;
                }
            }
            for (percent, rate) in LOAD_PERCENTS.into_iter().zip(&mut rates) {
                if cleans {
                    let row = peak(&mut *self.contenders[at], &mix, CHURN_CAPACITIES + u64::from(percent))?;
                    *rate = row.ops_per_s * f64::from(percent) / 100.0;
                    let before = format!("Zipf {exponent}, peak before {percent} %");
                    self.emit(describe(row).with("load", "peak"), &before, pair)?;
                }
                let rate = *rate;
                let row = self.contenders[at].mixed(&self.measured(&mix, rate, cleans, store))?;
                let row = row.map(|row| judged(describe(row).with("load", format!("{percent} %")), cleans, store));
                let Some(row) = row else { return Err(self.refuse("the store cannot run a mix")) };
                let is_cleaning = if cleans { "with" } else { "without" };
                self.emit(row, &format!("Zipf {exponent}, {percent} % of the peak, {is_cleaning} cleaning"), pair)?;
            }
            self.contenders[at].verify()?;
        }
        self.contenders[at].discard()
    }

    /// The measured run.
    fn measured(&self, mix: &Mix, rate: f64, cleans: bool, store: SteadyStore) -> Mix {
        let operations_max = if cleans { u64::MAX } else { store.puts_per_capacity() * CAPACITIES_UNCLEANED };
        Mix { arrival: ArrivalPattern::PerSecond(rate), run: self.options.run, operations_max, ..mix.clone() }
    }
}

/// Writes the capacity once, with as many writes in flight as the peak has.
fn peak(contender: &mut dyn Contender, mix: &Mix, time: u64) -> Result<Row, BenchError> {
    let row = contender.mixed(&Mix { seed: mix.seed.wrapping_add(time << 32), ..mix.clone() })?;
    row.ok_or_else(|| BenchError::failed("overwrite-steady", "the store cannot run a mix"))
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
