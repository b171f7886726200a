//! Rate and latency of gets while a store cleans [FAWN09 §4.2, Figures 14 and 15].
//!
//! A variant is a background operation with its store. Split and merge of ranges will be further variants.
use super::{FigureRun, fill_within};
use crate::store::mix::{ArrivalPattern, Mix};
use crate::store::{Contender, DataShape, SpaceLimit};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};

/// Share of puts, percent: they keep the cleaning supplied.
const PUT_PERCENT: u32 = 20;
/// Loads of the paper: low, and high; percent of the peak.
const LOAD_PERCENTS: [u32; 2] = [30, 90];
/// Ratio of data to memory: the paper's store of 512 MB on a node with 256 MB.
const DATA_PER_MEMORY: u64 = 2;
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// The background operation of a variant.
#[derive(Clone, Copy)]
struct Maintenance {
    name: &'static str,
    space: SpaceLimit,
}

const VARIANTS: [Maintenance; 2] = [
    Maintenance { name: "none", space: SpaceLimit { capacity_bytes: None, cleans: false, sorts: false } },
    Maintenance { name: "cleaning", space: SpaceLimit { capacity_bytes: None, cleans: true, sorts: false } },
];

impl FigureRun<'_> {
    /// Gets with 20 % overwrites: at the peak in a closed loop, then at shares of that peak in an open loop. Shares are of
    /// the peak without maintenance, so that a share is the same load in every variant.
    pub(super) fn cleaning_under_load(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let shape = DataShape { keys: options.keys, value_bytes: options.value_bytes, memory_bytes: 0 };
        let memory_bytes = options.memory_bytes.unwrap_or(shape.user_bytes() / DATA_PER_MEMORY).max(MEMORY_BYTES_MIN);
        let shape = DataShape { memory_bytes, ..shape };
        let mix = Mix {
            put_percent: PUT_PERCENT,
            delete_percent: 0,
            keys: KeyDistribution::uniform(shape.keys),
            arrival: ArrivalPattern::InFlight(options.depth),
            run: options.run,
            operations_max: u64::MAX,
            seed: 0,
        };
        for at in 0..self.contenders.len() {
            for pair in 0..options.pairs {
                let mix = Mix { seed: self.seed(pair), ..mix.clone() };
                let mut peak = None;
                for variant in VARIANTS {
                    if !fill_within(&mut *self.contenders[at], &shape, variant.space)? {
                        crate::print_note(format_args!("{}: cannot turn cleaning off", self.contenders[at].name()));
                        break;
                    }
                    overwrite_once(&mut *self.contenders[at], &mix)?;
                    let row = self.load(at, variant, &mix, "peak", pair)?;
                    let peak = *peak.get_or_insert(row);
                    for percent in LOAD_PERCENTS {
                        let arrival = ArrivalPattern::PerSecond(peak * f64::from(percent) / 100.0);
                        let mix = Mix { arrival, ..mix.clone() };
                        self.load(at, variant, &mix, &format!("{percent} %"), pair)?;
                    }
                    self.contenders[at].verify()?;
                }
                self.contenders[at].discard()?;
            }
        }
        Ok(())
    }

    /// Runs the mix and emits its row; returns the rate.
    fn load(&mut self, at: usize, variant: Maintenance, mix: &Mix, load: &str, pair: usize) -> Result<f64, BenchError> {
        let Some(row) = self.contenders[at].mixed(mix)? else { return Err(self.refuse("the store cannot run a mix")) };
        let row: Row = row.with("maintenance", variant.name).with("load", load).with("put_percent", mix.put_percent);
        let rate = row.ops_per_s;
        self.emit(row, &format!("{load} load, maintenance: {}", variant.name), pair)?;
        Ok(rate)
    }
}

/// Overwrites as many records as there are keys, so that every segment has something to clean.
fn overwrite_once(contender: &mut dyn Contender, mix: &Mix) -> Result<(), BenchError> {
    let arrival = ArrivalPattern::InFlight(64);
    let churn = Mix { put_percent: 100, arrival, run: super::steady::CHURN_MAX, ..mix.clone() };
    contender.mixed(&Mix { operations_max: mix.keys.keys(), ..churn }).map(drop)
}
