//! Recovery of a shard in a cluster: chain members from their persisted state, completions from a replay of the log.
use super::member_host::MemberHost;
use super::persist::replica_of;
use crate::replica::{HostedMember, split_acknowledged};
use fawn_chain::{ClusterMap, Completions, DecodeError};
use fawn_ds::internals::{EngineError, Event, LookupPlan, Replay, TransferredResults};
use fawn_flash::Device;
use fawn_types::{KeyRange, MemberId, RangeId, TimeMs, Version};

/// Bytes of records replayed per step.
const RECOVERY_BYTES: usize = 1 << 20;

/// Reason that a shard of a cluster did not start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// The store belongs to another cluster.
    #[error("the store's hash secret is not the cluster map's: it belongs to another cluster")]
    SecretDiffers,
    /// The store was opened with unsuitable options.
    #[error("the store was opened with {found}, the cluster needs {expected}")]
    EngineOptions {
        /// The required option.
        expected: String,
        /// The option that the store was opened with.
        found: String,
    },
    /// The store is older than the cluster map: a process that was started later used it, or another copy of it.
    #[error(
        "the store of shard {id} is at open {opens}, the cluster has seen open {known}: it was restored or copied; remove its \
         directory, and the others' copies are copied to it"
    )]
    Restored {
        /// Its shard.
        id: MemberId,
        /// The number of its last open.
        opens: u32,
        /// The newest number that the map knows.
        known: u32,
    },
    /// The store records another shard of the cluster.
    #[error("the store is of shard {found}, not of shard {expected}: put the directories back in their places")]
    OtherMember {
        /// The shard that was to be started.
        expected: MemberId,
        /// The shard that the store records.
        found: MemberId,
    },
    /// The cluster was created with another number of shards per node.
    #[error("the cluster was created with shards = {found} per node: start it with {found}, not with {expected}")]
    ShardCount {
        /// As requested.
        expected: u16,
        /// As created.
        found: u16,
    },
    /// The first start was interrupted before a map existed, and had another number of shards per node.
    #[error(
        "the cluster's creation was interrupted, with another number of shards per node than {expected}: start it with that \
         number, or remove its directories, which have no acknowledged data"
    )]
    OtherRanges {
        /// As requested.
        expected: u16,
    },
    /// A cluster without a store.
    #[error("a cluster needs at least one store")]
    NoStore,
    /// A persisted promise or map does not decode.
    #[error(
        "{what} in the manifest: {cause}; restore the store from a backup, or open it with the version that wrote it"
    )]
    Kept {
        /// The promise or map, in words.
        what: String,
        /// The decoding error.
        cause: DecodeError,
    },
    /// The engine failed.
    #[error("{0}")]
    Engine(#[from] EngineError),
}

impl<D: Device> MemberHost<D> {
    /// Checks that the engine was opened with this shard's options.
    pub(crate) fn check_engine(&self, map: &ClusterMap) -> Result<(), NodeError> {
        let options = self.engine.options();
        if *self.engine.secret() != map.secret {
            return Err(NodeError::SecretDiffers);
        }
        if options.durability != self.config.durability {
            let expected = format!("durability {}", self.config.durability.name());
            return Err(NodeError::EngineOptions { expected, found: format!("{:?}", options.durability) });
        }
        Ok(())
    }

    /// Adds a member for every range in the store, and for every range that the initial map assigns to this shard.
    pub(crate) fn recover(&mut self, map: &ClusterMap) -> Result<(), NodeError> {
        let stored: Vec<(RangeId, KeyRange)> = self.engine.ranges().collect();
        for &(range, _) in &stored {
            // The reads below let cleaning go on, and without a chain's time it would judge expiry by the store's own clock.
            self.engine.set_chain_time(range, TimeMs(0));
        }
        for (range, _) in stored {
            if self.members.find(range).is_none() {
                self.add_member(range)?;
            }
        }
        let id = self.config.id;
        for entry in map.ranges.iter().filter(|entry| entry.member(id).is_some()) {
            if self.members.find(entry.range).is_none() {
                self.try_add_member(entry.range, entry.keys)?;
            }
        }
        self.engine.set_retained_max(self.config.limits.retained_records_max);
        Ok(())
    }

    /// Adds a member for a range that may be new in the store, unless results of other ranges have to be copied first. The manager
    /// repeats the range's entry until the member takes part, and each one tries again.
    pub(super) fn try_add_member(&mut self, range: RangeId, keys: KeyRange) -> Result<(), NodeError> {
        match self.engine.add_range(range, keys) {
            Err(EngineError::Overloaded) => {
                if self.deferred_ranges.insert(range) {
                    tracing::warn!(?range, "a new range waits until results of other ranges are copied");
                }
                Ok(())
            }
            added => {
                added?;
                self.deferred_ranges.remove(&range);
                self.add_member(range)
            }
        }
    }

    /// Adds a member for a range in the store, with the state of its log and its promise.
    fn add_member(&mut self, range: RangeId) -> Result<(), NodeError> {
        assert!(self.members.find(range).is_none(), "a range has one member per shard");
        // A store that was served alone: all that it holds is committed, and from now on its chain decides.
        self.engine.end_sole_epoch(range)?;
        // Retain as much as the limit allows: a member that returns continues from the end of its log.
        self.engine.set_retain_floor(range, Version::ZERO);
        let replica = replica_of(&self.engine, range, &self.config)
            .map_err(|cause| NodeError::Kept { what: format!("the promise for {range:?}"), cause })?;
        self.engine.set_chain_time(range, replica.time());
        let mut completions = self.recover_completions(range)?;
        self.engine.set_needed_from(range, completions.oldest_open(Version::ZERO));
        self.members.push(HostedMember::new(replica, completions));
        Ok(())
    }

    /// Completions of tagged operations: from the log, as far back as it can be replayed, and earlier ones from the
    /// results of a transfer.
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

    /// Reads and blocks: only during recovery and for digests.
    pub(super) fn read_now(&mut self, plan: LookupPlan) -> Result<(), EngineError> {
        let plan = self.wait_for(plan);
        self.engine.absorb(plan)
    }

    /// Blocks until the plan's read has ended; keeps other events for the next iteration.
    pub(super) fn wait_for(&mut self, plan: LookupPlan) -> LookupPlan {
        /// A token of no request: `Reads` counts its tokens from 0.
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

#[cfg(test)]
mod tests {
    use super::super::config::{HostConfig, NodeLimits};
    use super::*;
    use crate::cluster::peer_links::PeerLinks;
    use fawn_chain::RingOptions;
    use fawn_chain::map::{NodeEntry, RangeEntry};
    use fawn_chain::message::{Body, Frame};
    use fawn_ds::internals::{Engine, Options, RecordRef};
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{BootId, Durability, Epoch, HashSecret, KeyHash, NodeId, Now, ShardId};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Level, Metadata, Subscriber};

    const RANGE: RangeId = RangeId(1);
    const NEW: RangeId = RangeId(2);
    const SECRET: HashSecret = HashSecret([7; 16]);

    /// A member that keeps more records for retries than one of two ranges may.
    fn member_with_needed_records() -> MemberHost<SimDevice> {
        let options = Options {
            segment_bytes: 64 << 10,
            memory_bytes: 1 << 20,
            durability: Durability::Sync,
            secret: Some(SECRET),
            retained_records_max: 50,
            ..Options::default()
        };
        let disk = SimDisk::new(SimOptions::instant(1));
        let (engine, _) = Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap();
        let (id, limits) = (MemberId::new(NodeId(1), ShardId(0)), NodeLimits::default());
        let config = HostConfig { id, boot: BootId::new(1, 7), durability: Durability::Sync, limits };
        let mut host = MemberHost::new(config, engine);
        host.try_add_member(RANGE, KeyRange::ALL).unwrap();
        let version = |seq| Version::new(Epoch::new(1).unwrap(), seq).unwrap();
        host.engine.set_needed_from(RANGE, Some(version(1)));
        for seq in 1..=700_u64 {
            let key = seq.to_be_bytes();
            let record = RecordRef::put(version(seq), &key, b"value");
            host.engine.append(RANGE, KeyHash::of(&SECRET, &key), &record).unwrap();
            turn(&mut host);
        }
        host
    }

    fn turn(host: &mut MemberHost<SimDevice>) {
        host.now = host.now.plus_ms(200);
        host.engine.submit(host.now);
        host.engine.wait(host.now, &mut Vec::new());
        let synced = host.engine.progress(RANGE).synced;
        host.engine.commit(RANGE, synced);
    }

    /// The store starts all the same. The manager repeats the entry, and the store takes the range once the results are copied.
    #[test]
    fn a_new_range_is_added_once_it_gives_up_no_result() {
        let mut host = member_with_needed_records();
        let node = NodeEntry { node: NodeId(1), shards: 1, weight: 1, domain: 0, address: "node".to_owned() };
        let ring = RingOptions { replication: 1, virtual_ids: 1 };
        let mut map = ClusterMap::new(SECRET, Durability::Sync, ring, vec![node]);
        let entry = RangeEntry::new(NEW, KeyRange::ALL, &[host.config.id]);
        map.ranges = vec![entry.clone()];
        host.recover(&map).unwrap();
        assert!(host.members.find(NEW).is_none());
        let HostConfig { id, boot, .. } = host.config;
        let mut links = PeerLinks::new(id, boot, None, 1 << 20);
        let frame = Frame { header: links.header(NEW, entry.epoch), body: Body::Entry(entry) };
        host.handle_frame(host.now, &frame, &mut links);
        assert!(host.members.find(NEW).is_none(), "nothing was copied yet");
        let repetitions = (0..50).position(|_| {
            turn(&mut host);
            host.advance(host.now, &mut links);
            host.handle_frame(host.now, &frame, &mut links);
            host.members.find(NEW).is_some()
        });
        assert!(repetitions.is_some(), "the range is not added: {:?}", host.engine);
    }

    /// Counts the warnings of this module.
    #[derive(Clone, Default)]
    struct WarningCount(Arc<AtomicUsize>);

    impl Subscriber for WarningCount {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN && metadata.target().starts_with("fawn_node::cluster::recover")
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The manager repeats its entry every few moments, for as long as the results are not copied.
    #[test]
    fn a_range_that_waits_is_logged_once() {
        let (mut host, warnings) = (member_with_needed_records(), WarningCount::default());
        tracing::subscriber::with_default(warnings.clone(), || {
            for _ in 0..10 {
                host.try_add_member(NEW, KeyRange::ALL).unwrap();
                assert!(host.members.find(NEW).is_none(), "nothing was copied");
            }
        });
        assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
    }
}
