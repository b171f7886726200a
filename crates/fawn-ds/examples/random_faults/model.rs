//! The model of a range: its content after each version that a crash may leave as the newest one, and which lookups it allows.
use fawn_types::{Epoch, KeyRange, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A value with its expiry time, 0 without one.
pub(crate) type ModelValue = (Vec<u8>, u64);
pub(crate) type ModelContent = BTreeMap<Vec<u8>, ModelValue>;

#[derive(Clone, Debug)]
pub(crate) enum ModelOp {
    Put(Vec<u8>, ModelValue),
    Delete(Vec<u8>),
    Clear,
}

impl ModelOp {
    fn apply(&self, content: &mut ModelContent) {
        match self {
            Self::Put(key, value) => drop(content.insert(key.clone(), value.clone())),
            Self::Delete(key) => drop(content.remove(key)),
            Self::Clear => content.clear(),
        }
    }
}

/// A range as it should be.
#[derive(Clone)]
pub(crate) struct FaultedRange {
    pub(crate) keys: KeyRange,
    /// `None` while no epoch could be begun: the range takes no writes.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) seq: u64,
    /// Content after the last committed version, and after the last appended one.
    pub(crate) committed: ModelContent,
    pub(crate) latest: ModelContent,
    /// Content after the newest version that no loss can undo.
    durable: ModelContent,
    pub(crate) durable_version: Version,
    /// Operations behind `durable`, and how many of them are committed.
    log: VecDeque<(Version, ModelOp)>,
    committed_count: usize,
    /// Ends of batches, of which a crash leaves all or nothing.
    ends: BTreeSet<Version>,
}

impl FaultedRange {
    /// A range whose content, up to this version, no loss can undo.
    pub(crate) fn new(keys: KeyRange, content: ModelContent, version: Version) -> Self {
        Self {
            keys,
            epoch: None,
            seq: 0,
            committed: content.clone(),
            latest: content.clone(),
            durable: content,
            durable_version: version,
            log: VecDeque::new(),
            committed_count: 0,
            ends: BTreeSet::new(),
        }
    }

    /// Appends a batch.
    pub(crate) fn append(&mut self, ops: Vec<(Version, ModelOp)>) {
        self.seq += ops.len() as u64;
        self.ends.extend(ops.last().map(|(version, _)| *version));
        for (version, op) in ops {
            op.apply(&mut self.latest);
            self.log.push_back((version, op));
        }
    }

    pub(crate) fn commit(&mut self, through: Version) {
        while let Some((_, op)) = self.log.get(self.committed_count).filter(|(version, _)| *version <= through) {
            op.apply(&mut self.committed);
            self.committed_count += 1;
        }
    }

    /// No loss undoes these versions any more.
    pub(crate) fn settle(&mut self, through: Version) {
        while let Some((version, op)) = self.log.pop_front_if(|(version, _)| *version <= through) {
            op.apply(&mut self.durable);
            self.durable_version = version;
            self.committed_count = self.committed_count.saturating_sub(1);
            self.ends.remove(&version);
        }
    }

    /// A loss left everything through `newest`, which must be the end of a batch and at least `least`.
    pub(crate) fn lose_behind(&mut self, newest: Version, least: Version) -> Result<(), String> {
        if newest < least {
            return Err(format!("recovered through {newest:?}, but {least:?} was acknowledged"));
        }
        if newest != self.durable_version && !self.ends.contains(&newest) {
            let (durable, last) = (self.durable_version, self.log.back().map(|(version, _)| *version));
            return Err(format!("recovered through {newest:?}, which ends no batch: {durable:?} to {last:?}"));
        }
        self.log.retain(|(version, _)| *version <= newest);
        self.ends.retain(|version| *version <= newest);
        self.latest.clone_from(&self.durable);
        self.log.iter().for_each(|(_, op)| op.apply(&mut self.latest));
        // An opening commits all that it finds, and syncs it.
        self.committed.clone_from(&self.latest);
        self.committed_count = self.log.len();
        self.settle(newest);
        Ok(())
    }
}

/// Whether a lookup at `time` may have found this, where a record may have been removed as expired until `removed_until`.
pub(crate) fn allows(expected: Option<&ModelValue>, found: Option<&[u8]>, time: u64, removed_until: u64) -> bool {
    match (expected, found) {
        (None, found) => found.is_none(),
        (Some((_, expires)), None) => *expires != 0 && *expires <= removed_until.max(time),
        (Some((value, expires)), Some(found)) => value == found && (*expires == 0 || time < *expires),
    }
}
