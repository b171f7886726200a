//! Mixes of gets, puts and deletes [FAWN09 §4.1.3, Figure 10].
use super::FigureRun;
use crate::store::DataShape;
use crate::store::mix::{ArrivalPattern, Mix};
use crate::workload::KeyDistribution;
use crate::{BenchError, Row};

/// Ratio of data to memory, as in the paper's larger stores.
const DATA_PER_MEMORY: u64 = 4;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// One key in so many belongs to the small subset.
const SUBSET: u64 = 100;

impl FigureRun<'_> {
    /// The put ratio from 0 to 1 on all keys; then puts alone and deletes with puts on one key in a hundred, which leave
    /// much to clean.
    pub(super) fn put_ratios(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let shape = DataShape { keys: options.keys, value_bytes: options.value_bytes, memory_bytes: 0 };
        let memory_bytes = options.memory_bytes.unwrap_or(shape.user_bytes() / DATA_PER_MEMORY).max(MEMORY_BYTES_MIN);
        let shape = DataShape { memory_bytes, ..shape };
        self.fill_and_verify(&shape)?;
        let all = KeyDistribution::uniform(options.keys);
        for put_percent in (0..=100).step_by(10) {
            self.mix(put_percent, 0, &all, "all keys")?;
        }
        let few = KeyDistribution::uniform((options.keys / SUBSET).max(1));
        self.mix(100, 0, &few, "few keys")?;
        self.mix(50, 50, &few, "few keys")?;
        self.contenders.iter_mut().try_for_each(|contender| contender.verify())?;
        self.discard()
    }

    fn mix(
        &mut self,
        put_percent: u32,
        delete_percent: u32,
        keys: &KeyDistribution,
        of: &str,
    ) -> Result<(), BenchError> {
        let options = self.options;
        for pair in 0..options.pairs {
            let mix = Mix {
                put_percent,
                delete_percent,
                keys: keys.clone(),
                arrival: ArrivalPattern::InFlight(options.depth),
                run: options.run,
                operations_max: u64::MAX,
                seed: self.seed(pair),
            };
            let with_axes = |row: Row| {
                let row = row.with("put_percent", put_percent).with("delete_percent", delete_percent);
                row.with("mix_keys", keys.keys()).with("depth", options.depth)
            };
            let point = format!("{put_percent} % puts, {delete_percent} % deletes of {of}");
            self.each(&point, pair, |contender| Ok(contender.mixed(&mix)?.map(with_axes)))?;
        }
        Ok(())
    }
}
