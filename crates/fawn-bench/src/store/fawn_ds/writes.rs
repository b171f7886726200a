//! Write workloads on FAWN-DS.
use super::session::{BenchSession, RANGE, TURN_WRITES};
use crate::store::{FillEnd, Puts};
use crate::{BenchError, Row, row};
use fawn_flash::Device;
use fawn_types::Version;
use fawn_types::random::SplitMix64;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of operations between two readings of the clock.
const CLOCK_EVERY: u64 = 256;

impl<D: Device> BenchSession<D> {
    /// Puts every key once. `key_into` scatters neighbours, so the store receives them in random order. Keys are
    /// prefetched in groups, as a session does with requests that it has already read.
    pub(super) fn fill(&mut self, end: FillEnd) -> Result<Row, BenchError> {
        let (mark, keys) = (self.mark(), self.shape.keys);
        for first in (0..keys).step_by(TURN_WRITES as usize) {
            self.put_first(first, (first + TURN_WRITES).min(keys))?;
            self.turn(false)?;
        }
        self.acknowledge_all()?;
        if end == FillEnd::Written {
            self.write_all()?;
        }
        let row = self.row(&mark, keys).with("end", format!("{end:?}"));
        let mut row = row.measuring("seconds", mark.elapsed().as_secs_f64());
        if end == FillEnd::Acknowledged {
            // After the measurement of time, so that the number of bytes is complete.
            self.write_all()?;
        }
        row.device_bytes_written_per_user_byte = Some(self.written_per_user_byte(&mark, keys));
        Ok(row)
    }

    /// Puts random keys of the filled store with one writer. The time includes the confirmation of old versions.
    pub(super) fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        let (mark, mut random) = (self.mark(), SplitMix64::new(puts.seed));
        let deadline = Instant::now() + puts.run;
        let mut operations = 0;
        while operations % CLOCK_EVERY != 0 || Instant::now() < deadline {
            self.put_in_turns(random.below(self.shape.keys))?;
            operations += 1;
        }
        self.acknowledge_all()?;
        let mut row = self.row(&mark, operations).with("threads", 1);
        row.device_reads_per_op = Some(self.reads_per_op(&mark, operations));
        self.write_all()?;
        row.device_bytes_written_per_user_byte = Some(self.written_per_user_byte(&mark, operations));
        Ok(row)
    }

    /// Puts by `writers` that each wait for their acknowledgement; the engine's loop commits them in groups.
    pub(super) fn durable_puts(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        let (mark, mut random) = (self.mark(), SplitMix64::new(puts.seed));
        let deadline = Instant::now() + puts.run;
        let mut waiting: VecDeque<(Version, Instant)> = VecDeque::with_capacity(puts.writers);
        let (mut nanos, mut operations) = (row::histogram(), 0);
        loop {
            let sent = Instant::now();
            while sent < deadline && waiting.len() < puts.writers {
                waiting.push_back((self.put_next_round(random.below(self.shape.keys))?, sent));
            }
            if waiting.is_empty() {
                break;
            }
            self.turn(true)?;
            let (synced, acked) = (self.engine.progress(RANGE).committed, Instant::now());
            while let Some((_, sent)) = waiting.pop_front_if(|(version, _)| *version <= synced) {
                nanos.saturating_record(acked.duration_since(sent).as_nanos() as u64);
                operations += 1;
            }
        }
        let mut row = self.row(&mark, operations).latencies(&nanos).with("writers", puts.writers);
        row.device_bytes_written_per_user_byte = Some(self.written_per_user_byte(&mark, operations));
        // The store has too few keys for a meaningful number per key.
        row.dram_bytes_per_key = None;
        Ok(row.with("note", "writers are operations in flight in one event loop"))
    }
}
