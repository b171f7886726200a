//! Loads of several FAWN-DS stores at once: semi-random writes [FAWN09 §4.1.1].
use super::FawnDs;
use super::session::{BenchSession, TURN_WRITES};
use crate::store::{DataShape, KEY_BYTES, LoadParts};
use crate::{BenchError, Row, machine};
use fawn_ds::internals::Options;
use fawn_flash::Device;
use fawn_types::Durability;
use std::time::Instant;

/// Number of segments that a store of limited capacity has at least.
const SEGMENTS_MIN: u64 = 256;
/// Smallest segments of these loads, bytes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Smallest memory budget of one of several stores, bytes.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

/// A power of two, so that `capacity_bytes` has enough segments for cleaning to choose from, if that is possible.
pub(super) fn segment_bytes_of(capacity_bytes: u64, segment_bytes_max: u32) -> u32 {
    let wanted = (capacity_bytes / SEGMENTS_MIN).max(SEGMENT_BYTES_MIN);
    let power = 1 << wanted.ilog2();
    segment_bytes_max.min(u32::try_from(power).unwrap_or(u32::MAX))
}

impl<D: Device> FawnDs<D> {
    /// Fills several stores in this thread, a batch of writes in each in turn, or one after the other. The row is of all
    /// together.
    pub(super) fn fill_stores(&mut self, shape: &DataShape, parts: LoadParts) -> Result<Row, BenchError> {
        let count = u64::from(parts.count);
        let shape = DataShape {
            keys: shape.keys.div_ceil(count),
            memory_bytes: (shape.memory_bytes / count).max(MEMORY_BYTES_MIN),
            ..*shape
        };
        // About as long as the store's data: larger ones would allocate far more than they hold, and with smaller ones
        // the creation of segments would be measured.
        let segment_bytes = segment_bytes_of(shape.user_bytes() * SEGMENTS_MIN, self.segment_bytes);
        let options = Options { segment_bytes, ..self.options(&shape, Durability::Memory) };
        self.sessions.clear();
        let dir = self.dir.renew()?.to_owned();
        for at in 0..parts.count {
            let path = dir.join(format!("store-{at:03}"));
            std::fs::create_dir(&path).map_err(|error| BenchError::failed(path.display().to_string(), error))?;
            let device = (self.open_device)(&path)?;
            let mut session = BenchSession::open(device, options.clone(), shape, 1)?;
            session.patience = self.patience;
            self.sessions.push(session);
        }
        let before: u64 = self.sessions.iter().map(BenchSession::written_bytes).sum();
        let (at, cpu) = (Instant::now(), machine::own_cpu());
        if parts.in_sequence {
            for session in &mut self.sessions {
                fill_in_turns(std::slice::from_mut(session), shape.keys)?;
            }
        } else {
            fill_in_turns(&mut self.sessions, shape.keys)?;
        }
        let (keys, elapsed) = (shape.keys * count, at.elapsed());
        let row = Row::new("store", "fawn-ds", "").timed(keys, elapsed, Some(machine::own_cpu() - cpu));
        let mut row = row.with("keys", keys).with("value_bytes", shape.value_bytes).with("durability", "memory");
        row = row.with("memory_bytes", shape.memory_bytes * count).with("segment_bytes", segment_bytes);
        row = row.measuring("seconds", elapsed.as_secs_f64());
        let written = self.sessions.iter().map(BenchSession::written_bytes).sum::<u64>() - before;
        let user_bytes = keys * (KEY_BYTES + shape.value_bytes) as u64;
        row.device_bytes_written_per_user_byte = Some(written as f64 / user_bytes as f64);
        Ok(row)
    }
}

/// Puts every key into every store, [`TURN_WRITES`] into one before the next, and waits until all are in the files.
fn fill_in_turns<D: Device>(sessions: &mut [BenchSession<D>], keys: u64) -> Result<(), BenchError> {
    for first in (0..keys).step_by(TURN_WRITES as usize) {
        for session in &mut *sessions {
            session.put_first(first, (first + TURN_WRITES).min(keys))?;
            session.turn(false)?;
        }
    }
    for session in &mut *sessions {
        session.acknowledge_all()?;
        session.write_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_powers_of_two_within_their_bounds() {
        assert_eq!(segment_bytes_of(1, 64 << 20), 64 << 10);
        assert_eq!(segment_bytes_of(300 << 20, 64 << 20), 1 << 20);
        assert_eq!(segment_bytes_of(64 << 30, 64 << 20), 64 << 20);
    }
}
