//! Writes of a run: single records, atomic batches, clears, and refusals of them.
use crate::driver::{FaultDriver, ITERATIONS_MAX, SECRET, key_name};
use crate::model::ModelOp;
use fawn_ds::internals::{EngineError, RecordKind, RecordRef, View};
use fawn_types::{KeyHash, RangeId, Version};

fn record_of(op: &ModelOp, version: Version) -> RecordRef<'_> {
    match op {
        ModelOp::Put(key, (value, expires)) => {
            RecordRef { expires_at_ms: *expires, ..RecordRef::put(version, key, value) }
        }
        ModelOp::Delete(key) => RecordRef::bare(RecordKind::Tombstone, version, key),
        ModelOp::Clear => RecordRef::bare(RecordKind::Clear, version, &[]),
    }
}

impl FaultDriver {
    fn random_op(&mut self, key: Vec<u8>) -> ModelOp {
        if self.rng.chance(1, 4) {
            return ModelOp::Delete(key);
        }
        let len = match self.rng.below(30) {
            0 => self.rng.below(9000),
            1..=5 => self.rng.below(2000),
            _ => self.rng.below(200),
        };
        let stamp = self.rng.next();
        let value: Vec<u8> = (0..len).map(|at| (stamp >> (at % 57)) as u8).collect();
        let time = self.engine().expiry_time().0;
        let expires = if self.rng.chance(1, 6) { time + 1 + self.rng.below(20_000) } else { 0 };
        ModelOp::Put(key, (value, expires))
    }

    /// Appends a write or an atomic batch; every tenth only if its key is absent.
    pub(crate) fn write(&mut self) {
        let key = self.random_key();
        let Some(id) = self.range_of(&key) else { return };
        let count = if self.rng.chance(1, 8) { 2 + self.rng.below(5) } else { 1 };
        let mut ops = vec![self.random_op(key)];
        for _ in 1..count {
            let key = self.random_key();
            if self.range_of(&key) == Some(id) {
                ops.push(self.random_op(key));
            }
        }
        if let ([ModelOp::Put(key, _)], true) = (&ops[..], self.rng.chance(1, 10)) {
            let key = key.clone();
            if !matches!(self.look_up(&key, View::Latest), Some(None)) {
                return;
            }
        }
        if let Err(error) = self.append(id, ops) {
            self.refused(&error);
        }
    }

    /// Appends operations as one batch; waits while the engine is overloaded.
    fn append(&mut self, id: RangeId, ops: Vec<ModelOp>) -> Result<(), EngineError> {
        for _ in 0..ITERATIONS_MAX {
            self.begin_epoch(id)?;
            match self.try_append(id, &ops) {
                Err(EngineError::Overloaded) => {
                    // A disk that hangs for ever keeps a store overloaded.
                    self.disk.release_hung();
                    self.turn();
                    self.now = self.now.plus_ms(1);
                }
                Err(error) => return Err(error),
                Ok(versions) => {
                    self.tally.writes += ops.len() as u64;
                    self.tally.batches += u64::from(ops.len() > 1);
                    if let Some(range) = self.ranges.get_mut(&id) {
                        range.append(versions.into_iter().zip(ops).collect());
                    }
                    self.note_held();
                    return Ok(());
                }
            }
        }
        panic!("overloaded for ever: {:?}", self.engine);
    }

    fn try_append(&mut self, id: RangeId, ops: &[ModelOp]) -> Result<Vec<Version>, EngineError> {
        let range = &self.ranges[&id];
        let epoch = range.epoch.unwrap_or_default();
        let versions: Vec<Version> =
            (1..=ops.len() as u64).filter_map(|ahead| Version::new(epoch, range.seq + ahead)).collect();
        let records = ops.iter().zip(&versions).map(|(op, &version)| record_of(op, version));
        let batch: Vec<_> = records.map(|record| (KeyHash::of(&SECRET, record.key), record)).collect();
        match &batch[..] {
            [(_, record)] if record.kind == RecordKind::Clear => self.engine().clear(id, record.version)?,
            [(hash, record)] => self.engine().append(id, *hash, record)?,
            _ => self.engine().append_batch(id, &batch)?,
        }
        Ok(versions)
    }

    /// A refusal must have a fault as its reason; a full store may also have reached its capacity.
    pub(crate) fn refused(&mut self, error: &EngineError) {
        match error {
            EngineError::StoreFull => self.tally.full += 1,
            EngineError::Poisoned { .. } | EngineError::Device(_) | EngineError::TooCorrupt { .. } => {
                assert!(self.faults.any, "refused without a fault: {error}");
            }
            error => panic!("refused: {error}"),
        }
    }

    pub(crate) fn clear(&mut self) {
        let at = self.rng.below(self.ranges.len() as u64) as usize;
        let Some(&id) = self.ranges.keys().nth(at) else { return };
        match self.append(id, vec![ModelOp::Clear]) {
            Ok(()) => self.tally.clears += 1,
            Err(error) => self.refused(&error),
        }
    }

    /// Without faults, a store that was full takes writes again.
    pub(crate) fn write_without_faults(&mut self) {
        let key = key_name(self.rng.below(self.keys));
        let Some(id) = self.range_of(&key) else { return };
        let op = ModelOp::Put(key, (vec![7; 100], 0));
        let mut was_full = false;
        for _ in 0..ITERATIONS_MAX {
            match self.append(id, vec![op.clone()]) {
                Ok(()) => {
                    self.tally.resumed += u64::from(was_full);
                    return;
                }
                Err(EngineError::StoreFull) => was_full = true,
                Err(error) => panic!("a write without a fault: {error}"),
            }
            self.turn();
            self.now = self.now.plus_ms(20);
        }
        panic!("full for ever: {:?} {:?}", self.engine().log_report(), self.engine);
    }
}
