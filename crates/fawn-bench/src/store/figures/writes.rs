//! Loads: in sequence against the raw device, and divided into ranges or stores.
use super::FigureRun;
use crate::device::DeviceBenchOptions;
use crate::store::{DataShape, FillEnd, LoadParts, PartUnit, Puts};
use crate::{BenchError, Row};

/// Numbers of stores of [FAWN08 Figures 7 and 8].
const INSERTION_PARTS: [u32; 3] = [1, 8, 32];
/// Value size with which seven million records of [FAWN08 §5.3] take 1.8 GB.
const INSERTION_VALUE_BYTES: usize = 241;
const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;

impl FigureRun<'_> {
    fn shape(&self, value_bytes: usize) -> DataShape {
        let memory_bytes = self.options.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        DataShape { keys: self.options.keys, value_bytes, memory_bytes }
    }

    /// Bulk load against raw sequential writes; then random puts into the loaded store against raw random writes.
    pub(super) fn bulk(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let shape = self.shape(options.load_value_bytes);
        let file_bytes = shape.user_bytes().max(1 << 20).next_multiple_of(1 << 20);
        for pair in 0..options.pairs {
            self.each("bulk load", pair, |contender| contender.fill(&shape, FillEnd::Written).map(Some))?;
            let row = self.raw.sequential_write(&shape)?;
            self.emit(row, "bulk load", pair)?;
            self.contenders.iter_mut().try_for_each(|contender| contender.verify())?;
            let puts = Puts { writers: 1, run: options.run, seed: self.seed(pair) };
            self.each("random puts", pair, |contender| contender.overwrites(&puts).map(Some))?;
            let raw = DeviceBenchOptions { file_bytes, depth: 1, run: options.run, seed: puts.seed };
            let row = self.raw.random_writes(&raw)?;
            self.emit(row, "random puts", pair)?;
        }
        self.discard()
    }

    /// Inserts the same data into more and more ranges of one store, and into more and more stores.
    pub(super) fn semi_random_writes(&mut self) -> Result<(), BenchError> {
        let counts: Vec<u32> =
            (0..=8).map(|power| 1 << power).filter(|count| *count <= self.options.parts_max).collect();
        for (unit, name) in [(PartUnit::Range, "ranges"), (PartUnit::Store, "stores")] {
            for &count in &counts {
                let parts = LoadParts { count, unit, in_sequence: false };
                self.fills(self.options.load_value_bytes, parts, &format!("{count} {name}"))?;
            }
        }
        Ok(())
    }

    /// Fills stores one after the other and reports the time.
    pub(super) fn insertion_times(&mut self) -> Result<(), BenchError> {
        for count in INSERTION_PARTS {
            let parts = LoadParts { count, unit: PartUnit::Store, in_sequence: true };
            self.fills(INSERTION_VALUE_BYTES, parts, &format!("{count} stores in sequence"))?;
        }
        Ok(())
    }

    fn fills(&mut self, value_bytes: usize, parts: LoadParts, point: &str) -> Result<(), BenchError> {
        let shape = self.shape(value_bytes);
        if shape.keys < u64::from(parts.count) {
            let detail = format!("{} keys for {} parts; give more --keys or less --parts-max", shape.keys, parts.count);
            return Err(self.refuse(detail));
        }
        let unit = if parts.unit == PartUnit::Range { "range" } else { "store" };
        for pair in 0..self.options.pairs {
            self.each(point, pair, |contender| {
                let row = contender.fill_parts(&shape, parts)?;
                if row.is_some() {
                    contender.verify()?;
                }
                contender.discard()?;
                Ok(row.map(|row: Row| row.with("parts", parts.count).with("part_unit", unit)))
            })?;
        }
        Ok(())
    }
}
