//! Owns a back-end's start: its members from what the store kept, their completions from the log itself.
use super::backend::{BackEnd, HostedMember};
use super::copy::TransferProgress;
use super::payload::split_acknowledged;
use super::persist::replica_key;
use fawn_chain::map::decode_state;
use fawn_chain::{Completions, DecodeError, PersistedState, Replica, ReplicaConfig};
use fawn_ds::internals::{EngineError, Event, LookupPlan, Replay, TransferredResults};
use fawn_flash::Device;
use fawn_types::{Durability, KeyRange, RangeId, Version};

/// Bytes of records looked through at a time.
const RECOVERY_BYTES: usize = 1 << 20;

/// Why a node does not start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// The store belongs to another cluster.
    #[error("the store's hash secret is not the cluster map's: it belongs to another cluster")]
    SecretDiffers,
    /// The store was opened for another use.
    #[error("the store was opened with {found}, the node needs {expected}")]
    EngineOptions {
        /// What is needed.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The store is older than the cluster map: a process that was started later used it, or another copy of it.
    #[error(
        "the store of node {} is at open {opens}, the cluster has seen open {known}: it was restored or copied; remove its \
         directory, and the others' copies are copied to it", node.0
    )]
    Restored {
        /// Its node.
        node: fawn_types::NodeId,
        /// The number of its last open.
        opens: u32,
        /// The newest number that the map knows.
        known: u32,
    },
    /// The manager keeps its map in a store.
    #[error("a node that hosts the manager needs a store to keep the map in")]
    ManagerNeedsStore,
    /// A promise or map on flash does not decode.
    #[error("{what} in the manifest: {cause}; restore the store from a copy")]
    Kept {
        /// Which.
        what: String,
        /// Why.
        cause: DecodeError,
    },
    /// The engine failed.
    #[error("{0}")]
    Engine(#[from] EngineError),
}

impl<D: Device> BackEnd<D> {
    /// Refuses an engine that was not opened for this node.
    pub(super) fn check_engine(&self) -> Result<(), NodeError> {
        let options = self.engine.options();
        if *self.engine.secret() != self.config.map.secret {
            return Err(NodeError::SecretDiffers);
        }
        if options.durability != self.config.durability {
            let expected = match self.config.durability {
                Durability::Sync => "durability sync",
                Durability::EverySecond => "durability everysec",
                Durability::Memory => "durability memory",
            };
            return Err(NodeError::EngineOptions { expected, found: format!("{:?}", options.durability) });
        }
        Ok(())
    }

    /// Members of every range that the store has, and of those that the first map gives to this node.
    pub(super) fn recover(&mut self) -> Result<(), NodeError> {
        let mut ranges: Vec<(RangeId, KeyRange)> = self.engine.ranges().collect();
        let node = self.config.node;
        let mapped = self.config.map.ranges.iter().filter(|entry| entry.member(node).is_some());
        ranges.extend(mapped.map(|entry| (entry.range, entry.keys)));
        for (range, keys) in ranges {
            if self.member_at(range).is_none() {
                self.add_member(range, keys)?;
            }
        }
        self.engine.set_retained_max(self.config.limits.retained_records_max);
        Ok(())
    }

    /// A member as its log and its promise leave it.
    pub(super) fn add_member(&mut self, range: RangeId, keys: KeyRange) -> Result<(), NodeError> {
        assert!(self.member_at(range).is_none(), "a range has one member per node");
        self.engine.add_range(range, keys)?;
        // A store that was served alone: all that it holds is committed, and from now on its chain decides.
        self.engine.end_sole_epoch(range)?;
        // All that the log's bound allows is kept: a member that comes back streams from where it was.
        self.engine.set_retain_floor(range, Version::ZERO);
        let persisted = self.kept_state(range)?;
        let completions = self.recover_completions(range)?;
        let progress = self.engine.progress(range);
        let config = ReplicaConfig {
            node: self.config.node,
            boot: self.config.boot,
            range,
            durability: self.config.durability,
            options: self.config.limits.replica,
        };
        let replica = Replica::new(config, persisted, progress.appended, progress.committed);
        self.members.push(HostedMember {
            id: range,
            replica,
            completions,
            copy: TransferProgress::default(),
            cut: None,
            broken: None,
        });
        Ok(())
    }

    fn kept_state(&self, range: RangeId) -> Result<PersistedState, NodeError> {
        let Some(bytes) = self.engine.blob(replica_key(range)) else {
            return Ok(PersistedState::default());
        };
        decode_state(bytes).map_err(|cause| NodeError::Kept { what: format!("the promise for {range:?}"), cause })
    }

    /// What became of tagged operations, from the newest records of the log: as far back as the log can be replayed;
    /// and what a copy brought of earlier ones.
    fn recover_completions(&mut self, range: RangeId) -> Result<Completions, NodeError> {
        let mut completions = Completions::new(self.config.limits.completions);
        let mut from = 0;
        loop {
            let results = self.engine.copied_results(range, from, RECOVERY_BYTES, |record| {
                let (result, first_incomplete) = split_acknowledged(record.tag, record.result);
                completions.restore(record.tag, first_incomplete, record.version, result);
            })?;
            match results {
                TransferredResults::Records { next } => from = next,
                TransferredResults::Read(plan) => self.read_now(plan)?,
                TransferredResults::Done => break,
            }
        }
        let mut after = self.engine.replay_floor(range);
        loop {
            let replay = self.engine.replay(range, after, RECOVERY_BYTES, |record| {
                let (result, first_incomplete) = split_acknowledged(record.tag, record.result);
                completions.record(record.tag, first_incomplete, record.version, result);
            })?;
            match replay {
                Replay::Records { through, .. } => after = through,
                Replay::Read(plan) => self.read_now(plan)?,
                Replay::UpToDate | Replay::Gone => break,
            }
        }
        completions.commit(self.engine.progress(range).committed, |_, _| {});
        Ok(completions)
    }

    /// Reads and waits: only while nothing else is served yet, and for digests.
    pub(super) fn read_now(&mut self, plan: LookupPlan) -> Result<(), EngineError> {
        let plan = self.wait_for(plan);
        self.engine.absorb(plan)
    }

    /// The plan with its bytes; other events are kept for the next iteration.
    pub(super) fn wait_for(&mut self, plan: LookupPlan) -> LookupPlan {
        /// Names no request: stamps and replays stay below it.
        const BLOCKING_USER: u64 = u64::MAX;
        self.engine.read(plan, BLOCKING_USER);
        loop {
            let mut found = None;
            let mut events = Vec::new();
            self.engine.wait(self.now, &mut events);
            for event in events {
                match event {
                    Event::Lookup { plan, user: BLOCKING_USER } => found = Some(plan),
                    other => self.events.push(other),
                }
            }
            if let Some(plan) = found {
                return plan;
            }
        }
    }
}
