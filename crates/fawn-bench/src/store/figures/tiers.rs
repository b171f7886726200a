//! The log alone and the sorted tier: memory per key, reads per get, and write amplification at 70 % live.
use super::{FigureRun, fill_within, steady::CHURN_MAX};
use crate::store::fawn_ds::record_bytes_of;
use crate::store::mix::{ArrivalPattern, Mix};
use crate::store::{DataShape, Gets, SpaceLimit};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};

/// Share of the capacity that is live, percent.
const LIVE_PERCENT: u64 = 70;
/// Times that the capacity is written before a measurement, so that it shows the steady state, and during it.
const CHURN_CAPACITIES: u64 = 3;
const MEASURED_CAPACITIES: u64 = 6;
/// Writes in flight.
const PUT_DEPTH: usize = 256;
const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

/// A store of one run.
#[derive(Clone, Copy)]
struct TierStore {
    sorts: bool,
    exponent: f64,
    capacity_bytes: u64,
    puts_per_capacity: u64,
}

impl TierStore {
    fn point(&self, part: &str) -> String {
        format!("{}, Zipf {}, {part}", if self.sorts { "sorted" } else { "log" }, self.exponent)
    }

    fn describe(&self, row: Row) -> Row {
        let layout = if self.sorts { "sorted" } else { "log" };
        let row = row.with("layout", layout).with("zipf", self.exponent);
        row.with("capacity_bytes", self.capacity_bytes).with("live_percent", LIVE_PERCENT)
    }
}

impl FigureRun<'_> {
    /// Uniform and Zipf overwrites on either layout, with gets before and after.
    pub(super) fn tiers(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let record_bytes = record_bytes_of(options.value_bytes);
        let capacity_bytes = options.keys * record_bytes * 100 / LIVE_PERCENT;
        let memory_bytes = options.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        let shape = DataShape { keys: options.keys, value_bytes: options.value_bytes, memory_bytes };
        for exponent in [0.0, 0.99] {
            for sorts in [false, true] {
                let puts_per_capacity = capacity_bytes / record_bytes;
                let store = TierStore { sorts, exponent, capacity_bytes, puts_per_capacity };
                for at in 0..self.contenders.len() {
                    for pair in 0..options.pairs {
                        self.tier(at, &shape, store, pair)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn tier(&mut self, at: usize, shape: &DataShape, store: TierStore, pair: usize) -> Result<(), BenchError> {
        let space = SpaceLimit { capacity_bytes: Some(store.capacity_bytes), cleans: true, sorts: store.sorts };
        if !fill_within(&mut *self.contenders[at], shape, space)? {
            crate::print_note(format_args!("{}: no limit of its space", self.contenders[at].name()));
            return Ok(());
        }
        self.contenders[at].rest()?;
        self.tier_gets(at, store, "after the load and a rest", pair)?;
        let churn = Mix {
            put_percent: 100,
            delete_percent: 0,
            keys: KeyDistribution::zipf(shape.keys, store.exponent),
            arrival: ArrivalPattern::InFlight(PUT_DEPTH),
            run: CHURN_MAX,
            operations_max: store.puts_per_capacity * CHURN_CAPACITIES,
            seed: self.seed(pair),
        };
        self.contenders[at].mixed(&churn)?;
        let operations_max = store.puts_per_capacity * MEASURED_CAPACITIES;
        let measured = Mix { operations_max, seed: churn.seed.wrapping_add(1 << 32), ..churn };
        let Some(row) = self.contenders[at].mixed(&measured)? else {
            return Err(self.refuse("the store cannot run a mix"));
        };
        self.emit(store.describe(row), &store.point("overwrites"), pair)?;
        self.tier_gets(at, store, "after overwrites", pair)?;
        self.contenders[at].rest()?;
        self.tier_gets(at, store, "after overwrites and a rest", pair)?;
        self.contenders[at].verify()?;
        self.contenders[at].discard()
    }

    /// Gets of keys that are there and of others.
    fn tier_gets(&mut self, at: usize, store: TierStore, when: &str, pair: usize) -> Result<(), BenchError> {
        for present in [true, false] {
            let (options, seed) = (self.options, self.seed(pair));
            let gets = Gets { depth: options.depth, run: options.run, present, warm: false, seed };
            let row = self.contenders[at].gets(&gets)?.with("present", present);
            let what = if present { "gets" } else { "gets of absent keys" };
            self.emit(store.describe(row), &store.point(&format!("{what} {when}")), pair)?;
        }
        Ok(())
    }
}
