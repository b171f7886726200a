//! Test cluster: replicas with fake logs and disks, a manager, a network of encoded frames, and the oracle.
use crate::member;
use fawn_chain::boots::BootsMessage;
use fawn_chain::manager::{FileConsensus, Manager, ManagerOptions, ManagerOutput};
use fawn_chain::map::{ClusterMap, NodeEntry, decode_map, decode_state, encode_map, encode_state};
use fawn_chain::message::{Body, Frame, Header, TransferCursor, decode_frame, encode_frame};
use fawn_chain::replica::{Alarm, FrameVerdict, LogProgress, Replayed, ReplicaOutput};
use fawn_chain::{Closed, PersistedState, Replica, ReplicaConfig, ReplicaOptions, RingOptions, invariants};
use fawn_types::{BootId, Durability, Epoch, HashSecret, MemberId, NodeId, Now, RangeId, Version};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const MANAGER: u32 = 0;
pub(crate) const RANGE: RangeId = RangeId(1);

/// Bugs that a node could have; the oracle must detect each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    None,
    /// Reports records as synced that it only appended.
    AckBeforeSync,
    /// Reports a promise before it is on disk, and loses it in a crash.
    PromiseNotPersisted,
    /// Appends a frame's records although the replica found a gap before them.
    GapIgnored,
    /// Treats a copy as complete after its first chunk.
    TransferCountedEarly,
}

/// The boot ID of the `start`-th process start in the cluster.
pub(crate) fn boot_id(start: u64) -> BootId {
    let start = u32::try_from(start).expect("few starts");
    BootId::new(start, start.wrapping_mul(0x9e37_79b9))
}

/// Records in one chunk of a copy.
const COPY_RECORDS: usize = 3;

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<(Version, u64)>,
    pub(crate) flushed: usize,
    pub(crate) synced: usize,
    /// A copy in progress: its base and the records copied so far. `records` holds the streamed records above the base.
    pub(crate) copy: Option<(Version, BTreeMap<Version, u64>)>,
    /// Base of the last finished copy: the log holds the content up to it, but no history.
    floor: Version,
}

impl Log {
    fn at(&self, count: usize) -> Version {
        let base = self.copy.as_ref().map_or(self.floor, |(base, _)| *base);
        count.checked_sub(1).map_or(base, |index| self.records[index].0.max(base))
    }

    /// Drops a copy in progress, as a crash does. Nothing of the range is left then.
    fn void_transfer(&mut self) {
        if self.copy.take().is_some() {
            *self = Self::default();
        }
    }

    /// Finishes the copy: the copied records, followed by the streamed ones.
    fn finish_transfer(&mut self) {
        let Some((base, copied)) = self.copy.take() else { return };
        self.floor = base;
        let streamed = std::mem::replace(&mut self.records, copied.into_iter().collect());
        self.records.extend(streamed);
        (self.flushed, self.synced) = (self.records.len(), self.records.len());
    }

    pub(crate) fn last(&self) -> Version {
        self.at(self.records.len())
    }

    fn truncate(&mut self, after: Version) {
        self.records.retain(|(version, _)| *version <= after);
        self.flushed = self.flushed.min(self.records.len());
        self.synced = self.synced.min(self.records.len());
    }
}

#[derive(Default)]
pub(crate) struct TestMachine {
    pub(crate) replica: Option<Replica>,
    pub(crate) log: Log,
    pub(crate) disk: Vec<u8>,
    pub(crate) boot: u64,
    pub(crate) committed: Version,
    promised_aloud: Epoch,
    hello_at: u64,
    /// The disk is full: the log rejects records and chunks from peers.
    pub(crate) is_full: bool,
    /// Records of the log are corrupt, so it cannot be replayed to peers.
    pub(crate) is_unreadable: bool,
    /// The disk completes no sync of the log, but it still persists promises.
    pub(crate) is_hung: bool,
    /// Its heartbeats report a write in flight since then.
    pub(crate) slow_since: Option<u64>,
}

pub(crate) struct TestMessage {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct TestCluster {
    pub(crate) machines: BTreeMap<u32, TestMachine>,
    pub(crate) manager: Option<Manager<FileConsensus>>,
    manager_disk: Vec<u8>,
    old_map: Vec<u8>,
    pub(crate) net: Vec<TestMessage>,
    /// The manager's tables of boots and changes, with their receivers.
    pub(crate) boots_sent: Vec<(u32, BootsMessage)>,
    pub(crate) now: u64,
    /// Crashes are `kill -9`: flushed records survive.
    pub(crate) kills_only: bool,
    /// Links that lose every frame.
    pub(crate) cut: BTreeSet<(u32, u32)>,
    /// Maximum writes of one epoch.
    pub(crate) epoch_records_max: u64,
    /// Number of committed records that a log can still replay.
    pub(crate) retained_max: usize,
    /// The tail sends no chunk of a copy, as if it could not read its records.
    pub(crate) is_rotten: bool,
    pub(crate) copies: usize,
    pub(crate) durability: Durability,
    boots: u64,
    bug: Bug,
    /// The payload written under each version.
    written: BTreeMap<Version, u64>,
    pub(crate) acked: BTreeSet<Version>,
    pub(crate) events: Vec<String>,
    next_payload: u64,
}

impl TestCluster {
    pub(crate) fn new(nodes: u32, durability: Durability, bug: Bug) -> Self {
        let entry = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 1, domain: 0, address: format!("node-{id}") };
        let ring = RingOptions { replication: nodes as u8, virtual_ids: 1 };
        let chain: Vec<MemberId> = (1..=nodes).map(member).collect();
        // A secret whose ring gives the first range the chain 1, 2, 3, which keeps scripts readable. Only that range is
        // used.
        let named = |byte| {
            let secret = HashSecret([byte; 16]);
            let map = ClusterMap::new(secret, durability, ring, (1..=nodes).map(entry).collect());
            map.ranges[0].serving().map(|member| member.id).eq(chain.iter().copied()).then_some(map)
        };
        let mut map = (0..=255).find_map(named).expect("one of 256 secrets places nodes in order");
        map.ranges.truncate(1);
        let mut cluster = Self {
            machines: (1..=nodes).map(|id| (id, TestMachine::default())).collect(),
            manager: None,
            manager_disk: encode_map(&map),
            old_map: Vec::new(),
            net: Vec::new(),
            boots_sent: Vec::new(),
            now: 1_000,
            kills_only: false,
            cut: BTreeSet::new(),
            epoch_records_max: Version::SEQ_SOFT_MAX,
            retained_max: usize::MAX,
            is_rotten: false,
            copies: 0,
            durability,
            boots: 0,
            bug,
            written: BTreeMap::new(),
            acked: BTreeSet::new(),
            events: Vec::new(),
            next_payload: 0,
        };
        cluster.start_manager();
        (1..=nodes).for_each(|id| cluster.restart(id));
        cluster
    }

    fn time(&self) -> Now {
        Now::at(self.now)
    }

    pub(crate) fn start_manager(&mut self) {
        self.boots += 1;
        let map = decode_map(&self.manager_disk).expect("the manager's file is intact");
        let options = ManagerOptions { dead_after_ms: 1_000, rebooted_wait_ms: 1_500, ..ManagerOptions::default() };
        let boot = boot_id(self.boots);
        let mut manager = Manager::new(member(MANAGER), boot, options, FileConsensus::default(), map);
        manager.set_durability(self.durability);
        self.manager = Some(manager);
        self.poll_manager();
    }

    /// Saves the manager's map.
    pub(crate) fn keep_map(&mut self) {
        self.old_map.clone_from(&self.manager_disk);
    }

    /// Restarts the manager from the saved map.
    pub(crate) fn lose_maps(&mut self) {
        self.manager_disk.clone_from(&self.old_map);
        self.start_manager();
    }

    pub(crate) fn restart(&mut self, id: u32) {
        self.boots += 1;
        let boot = self.boots;
        let durability = self.durability;
        let options = ReplicaOptions {
            frame_bytes_max: 64,
            window_bytes_max: 160,
            epoch_records_max: self.epoch_records_max,
            ..ReplicaOptions::default()
        };
        let machine = self.machines.get_mut(&id).expect("a known machine");
        let state = if machine.disk.is_empty() {
            PersistedState::default()
        } else {
            decode_state(&machine.disk).expect("the promise is whole")
        };
        assert!(
            invariants::epochs_only_grow(machine.promised_aloud, state.promised),
            "epochs-only-grow: n{id} reported {:?}, but persisted {:?}",
            machine.promised_aloud,
            state.promised
        );
        machine.log.void_transfer();
        machine.log.flushed = machine.log.records.len();
        machine.log.synced = machine.log.records.len();
        machine.committed = machine.committed.min(machine.log.last());
        machine.boot = boot;
        machine.hello_at = 0;
        let config = ReplicaConfig { id: member(id), boot: boot_id(boot), range: RANGE, durability, options };
        machine.replica = Some(Replica::new(config, state, machine.log.last(), machine.committed));
    }

    /// Power loss: synced records survive, and `extra` unsynced ones after them.
    pub(crate) fn crash(&mut self, id: u32, extra: usize) {
        let kills_only = self.kills_only;
        let machine = self.machines.get_mut(&id).expect("a known machine");
        machine.replica = None;
        machine.log.void_transfer();
        let safe = if kills_only { machine.log.flushed } else { machine.log.synced };
        let kept = (safe + extra).min(machine.log.records.len());
        machine.log.records.truncate(kept);
        let last = machine.log.last();
        machine.log.truncate(last);
        machine.committed = machine.committed.min(last);
    }

    /// Shuts the process of `id` down gracefully: syncs everything, then persists the mark.
    pub(crate) fn close(&mut self, id: u32) {
        let machine = self.machines.get_mut(&id).expect("a known machine");
        machine.log.flushed = machine.log.records.len();
        machine.log.synced = machine.log.records.len();
        if let Some(state) = machine.replica.take().and_then(|replica| replica.close()) {
            machine.disk = encode_state(&state);
        }
        machine.log.void_transfer();
    }

    /// Puts a mark of `boot` on the disk of `id`, as if the disk had been restored from a copy. The log ends at the
    /// mark, so only the mark's boot distinguishes it from a valid one.
    pub(crate) fn plant_mark(&mut self, id: u32, boot: u64) {
        let machine = self.machines.get_mut(&id).expect("a known machine");
        let state = decode_state(&machine.disk).expect("the promise is whole");
        let closed = Some(Closed { boot: boot_id(boot), last: machine.log.last(), before: None });
        machine.disk = encode_state(&PersistedState { closed, ..state });
    }

    /// Replaces the disk of `id`, which is down, by an empty one.
    pub(crate) fn replace_disk(&mut self, id: u32) {
        let machine = self.machines.get_mut(&id).expect("a known machine");
        assert!(machine.replica.is_none(), "disks are replaced while the machine is down");
        *machine = TestMachine::default();
    }

    /// Fails the disk of `id` while its process keeps running: no record is appended, flushed or synced any more.
    pub(crate) fn fail(&mut self, id: u32) {
        let now = self.time();
        if let Some(replica) = self.machines.get_mut(&id).and_then(|machine| machine.replica.as_mut()) {
            replica.fail(now);
            self.poll(id);
        }
    }

    pub(crate) fn serving(&self, id: u32) -> bool {
        self.machines[&id].replica.as_ref().is_some_and(|replica| replica.role().is_some())
    }

    pub(crate) fn phase(&self, id: u32) -> &'static str {
        self.machines[&id].replica.as_ref().map_or("down", Replica::phase_name)
    }

    pub(crate) fn head(&self) -> Option<u32> {
        let heads = self.machines.keys().copied().filter(|id| matches!(self.phase(*id), "head" | "single"));
        heads.max_by_key(|id| self.machines[id].replica.as_ref().map(Replica::epoch))
    }

    /// Submits one write at `id`. `None` if it is no head, or rejects the write.
    pub(crate) fn put(&mut self, id: u32) -> Option<Version> {
        let now = self.time();
        let replica = self.machines.get_mut(&id)?.replica.as_mut()?;
        let version = replica.assign(now).ok()?;
        self.next_payload += 1;
        let payload = self.next_payload;
        self.append(id, version, payload);
        Some(version)
    }

    fn append(&mut self, id: u32, version: Version, payload: u64) {
        let held = *self.written.entry(version).or_insert(payload);
        assert!(held == payload, "a version was assigned twice: {version:?} at n{id}");
        let log = &mut self.machines.get_mut(&id).expect("a known machine").log;
        let begins = log.records.is_empty() && log.copy.is_none();
        let follows = begins || invariants::follows(log.last(), version);
        assert!(follows, "dense: n{id} appends {version:?} after {:?}", log.last());
        log.records.push((version, payload));
    }

    /// One iteration of `id`: flushes, syncs if `sync`, reports progress to the replica, executes its outputs.
    pub(crate) fn turn(&mut self, id: u32, sync: bool) {
        let now = self.time();
        let bug = self.bug;
        let machine = self.machines.get_mut(&id).expect("a known machine");
        let Some(replica) = machine.replica.as_mut() else { return };
        let log = &mut machine.log;
        if replica.has_failed() {
            return self.poll(id);
        }
        log.flushed = log.records.len();
        if sync && !machine.is_hung {
            log.synced = log.records.len();
        }
        let synced = if bug == Bug::AckBeforeSync { log.records.len() } else { log.synced };
        let progress = LogProgress { appended: log.last(), flushed: log.at(log.flushed), synced: log.at(synced) };
        replica.handle_progress(now, progress);
        self.poll(id);
    }

    pub(crate) fn poll(&mut self, id: u32) {
        while let Some(output) = self.machines.get_mut(&id).and_then(|m| m.replica.as_mut()?.poll_output()) {
            self.carry_out(id, output);
        }
        self.check(id);
    }

    fn carry_out(&mut self, id: u32, output: ReplicaOutput) {
        let now = self.time();
        match output {
            ReplicaOutput::Commit { through } => self.commit(id, through),
            ReplicaOutput::Rollback { after } => {
                self.machines.get_mut(&id).expect("known").log.truncate(after);
                self.events.push(format!("n{id} cuts its log after {after:?}"));
            }
            ReplicaOutput::Persist { number, state } => {
                let machine = self.machines.get_mut(&id).expect("known");
                if self.bug != Bug::PromiseNotPersisted {
                    machine.disk = encode_state(&state);
                }
                machine.replica.as_mut().expect("polled").handle_persisted(now, number);
            }
            ReplicaOutput::Sync => {
                let machine = self.machines.get_mut(&id).expect("known");
                if machine.is_hung {
                    return;
                }
                machine.log.flushed = machine.log.records.len();
                machine.log.synced = machine.log.records.len();
                let last = machine.log.last();
                let progress = LogProgress { appended: last, flushed: last, synced: last };
                machine.replica.as_mut().expect("polled").handle_progress(now, progress);
            }
            ReplicaOutput::Send { to, frame } => self.transmit(id, to.node().0, &frame),
            ReplicaOutput::SendManager { frame } => {
                if let Body::Report(_) = frame.body {
                    self.check_report(id, frame.header.epoch);
                }
                self.transmit(id, MANAGER, &frame);
            }
            ReplicaOutput::SendRecords { to, after, through, bytes_max } => {
                self.send_records(id, to, (after, through), bytes_max);
            }
            ReplicaOutput::BeginTransfer { base } => {
                let machine = self.machines.get_mut(&id).expect("known");
                machine.log = Log { copy: Some((base, BTreeMap::new())), ..Log::default() };
                machine.committed = base;
                self.copies += 1;
                self.events.push(format!("n{id} discards its log, begins a copy based on {base:?}"));
            }
            ReplicaOutput::FinishTransfer { base } => {
                let machine = self.machines.get_mut(&id).expect("known");
                machine.log.finish_transfer();
                machine.replica.as_mut().expect("polled").handle_transfer_finished(now, base);
                self.events.push(format!("n{id} has copied {} records", machine.log.records.len()));
            }
            ReplicaOutput::SendTransfer { to, base, cursor } => self.send_transfer(id, to, base, cursor),
            ReplicaOutput::NowServing { epoch } => {
                self.check_serves(id);
                self.events.push(format!("n{id} serves in {epoch:?} as {}", self.phase(id)));
            }
            ReplicaOutput::Stopped => self.events.push(format!("n{id} stops")),
            ReplicaOutput::Alarm(alarm) => {
                assert!(!matches!(alarm, Alarm::CutBelowCommitted { .. }), "committed-survives: n{id}: {alarm}");
                self.events.push(format!("n{id} alarm: {alarm}"));
            }
        }
    }

    fn send_records(&mut self, id: u32, to: MemberId, (after, through): (Version, Version), bytes_max: u32) {
        let (now, retained_max) = (self.time(), self.retained_max);
        let machine = self.machines.get_mut(&id).expect("known");
        let mut bytes: Vec<u8> = Vec::new();
        let mut last = after;
        let committed = machine.log.records.iter().filter(|(version, _)| *version <= machine.committed).count();
        let oldest = machine.log.at(committed.saturating_sub(retained_max)).max(machine.log.floor);
        if after < oldest || machine.is_unreadable {
            let replica = machine.replica.as_mut().expect("polled");
            assert!(replica.handle_replayed(now, to, after, Replayed::Gone).is_none());
            return;
        }
        for (version, payload) in &machine.log.records {
            let room = bytes.is_empty() || bytes.len() + 16 <= bytes_max as usize;
            if *version > after && *version <= through && room {
                bytes.extend_from_slice(&version.as_u64().to_le_bytes());
                bytes.extend_from_slice(&payload.to_le_bytes());
                last = *version;
            }
        }
        let replayed = Replayed::Records { last, bytes: bytes.len() as u32 };
        let frame = machine.replica.as_mut().expect("polled").handle_replayed(now, to, after, replayed);
        if let Some(Frame { header, body: Body::Append { after, last, upstream, time, assigned, .. } }) = frame {
            let body = Body::Append { after, last, upstream, time, assigned, records: &bytes };
            self.transmit(id, to.node().0, &Frame { header, body });
        }
    }

    /// Sends a chunk of the content at `base`: here, all records up to it in version order.
    fn send_transfer(&mut self, id: u32, to: MemberId, base: Version, cursor: TransferCursor) {
        if self.is_rotten {
            return;
        }
        let machine = &self.machines[&id];
        let first = match cursor {
            TransferCursor::Results { .. } => 0,
            TransferCursor::Keys { place, .. } => place,
            TransferCursor::End => return,
        };
        let rest = machine.log.records.iter().filter(|(version, _)| version.as_u64() >= first && *version <= base);
        let mut records: Vec<u8> = Vec::new();
        let mut next = TransferCursor::End;
        for (at, (version, payload)) in rest.enumerate() {
            if at == COPY_RECORDS {
                next = TransferCursor::Keys { pass: 0, place: version.as_u64() };
                break;
            }
            records.extend_from_slice(&version.as_u64().to_le_bytes());
            records.extend_from_slice(&payload.to_le_bytes());
        }
        if self.bug == Bug::TransferCountedEarly {
            next = TransferCursor::End;
        }
        let (read_version, keys) = (machine.committed, machine.log.records.len() as u64);
        let now = self.time();
        let replica = self.machines.get_mut(&id).and_then(|machine| machine.replica.as_mut());
        let Some(header) = replica.and_then(|replica| replica.handle_transfer_read(now, to, base, cursor)) else {
            return;
        };
        let body = Body::Transfer { base, cursor, next, read_version, keys, records: &records };
        self.transmit(id, to.node().0, &Frame { header, body });
    }

    fn transmit(&mut self, from: u32, to: u32, frame: &Frame<'_>) {
        if self.cut.contains(&(from, to)) {
            return;
        }
        if let Body::Boots(boots) = &frame.body {
            // The replicas of these machines take no updates of front-ends.
            return self.boots_sent.push((to, boots.clone()));
        }
        let mut bytes = Vec::new();
        encode_frame(frame, &mut bytes);
        self.net.push(TestMessage { from, to, bytes });
    }

    /// Commits through `through`. At the tail, this is when the client receives its reply.
    fn commit(&mut self, id: u32, through: Version) {
        let tail = matches!(self.phase(id), "tail" | "single");
        let machine = self.machines.get_mut(&id).expect("known");
        assert!(through <= machine.log.last(), "n{id} commits {through:?} beyond its log");
        machine.committed = through;
        if tail {
            self.acked.extend(machine.log.records.iter().map(|(version, _)| *version).filter(|v| *v <= through));
        }
    }

    /// **an acked value survives**: a member that begins to serve holds everything that was ever acked.
    fn check_serves(&self, id: u32) {
        let log: BTreeSet<Version> = self.machines[&id].log.records.iter().map(|(version, _)| *version).collect();
        let lost: Vec<_> = self.acked.difference(&log).collect();
        assert!(lost.is_empty(), "acked and lost at n{id}: {lost:?}");
    }

    /// **epochs-only-grow**: no promise is reported before it is on disk.
    fn check_report(&mut self, id: u32, epoch: Epoch) {
        let machine = self.machines.get_mut(&id).expect("known");
        machine.promised_aloud = epoch;
        let kept = decode_state(&machine.disk).map_or(Epoch::default(), |state| state.promised);
        let holds = self.bug == Bug::PromiseNotPersisted || kept >= epoch;
        assert!(holds, "epochs-only-grow: n{id} reports {epoch:?}, but persisted {kept:?}");
    }

    fn check(&self, id: u32) {
        let machine = &self.machines[&id];
        if let Some(replica) = &machine.replica {
            assert!(
                replica.last() == machine.log.last(),
                "n{id}: the replica's last version is not the end of the log"
            );
            assert!(replica.committed() <= replica.last());
        }
    }

    /// Removes one message from the network and delivers it.
    pub(crate) fn deliver(&mut self, index: usize) {
        let message = self.net.remove(index);
        self.hand_over(&message);
    }

    pub(crate) fn hand_over(&mut self, message: &TestMessage) {
        let now = self.time();
        let frame = decode_frame(&message.bytes).expect("frames arrive whole");
        if message.to == MANAGER {
            if let Some(manager) = &mut self.manager {
                manager.handle_frame(now, &frame);
                self.poll_manager();
            }
            return;
        }
        let bug = self.bug;
        let Some(replica) = self.machines.get_mut(&message.to).and_then(|m| m.replica.as_mut()) else { return };
        let mut verdict = replica.handle_frame(now, &frame);
        if let (FrameVerdict::Transfer { next }, Body::Transfer { read_version, records, .. }) = (verdict, &frame.body)
        {
            return self.take_transfer(message.to, next, *read_version, records);
        }
        let Body::Append { last, records, .. } = frame.body else { return self.poll(message.to) };
        if bug == Bug::GapIgnored && verdict == FrameVerdict::Nothing && last > replica.last() {
            verdict = FrameVerdict::Append { after: replica.last(), through: last };
        }
        let FrameVerdict::Append { after, through } = verdict else { return self.poll(message.to) };
        let machine = self.machines.get_mut(&message.to).expect("known");
        if let (true, Some(replica)) = (machine.is_full, machine.replica.as_mut()) {
            replica.retract(after);
            return self.poll(message.to);
        }
        for record in records.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
            let version = Version::from_u64(word(0));
            if version > after && version <= through {
                self.append(message.to, version, word(8));
            }
        }
        // Appended, but not yet flushed: the next iteration reports the progress.
        self.poll(message.to);
    }

    fn take_transfer(&mut self, id: u32, next: TransferCursor, read_version: Version, records: &[u8]) {
        let now = self.time();
        let machine = self.machines.get_mut(&id).expect("known");
        if machine.is_full {
            return self.poll(id);
        }
        assert!(
            machine.log.last() <= read_version,
            "n{id} accepts a chunk read at {read_version:?}, but its log ends at {:?}",
            machine.log.last()
        );
        let Some((base, copied)) = machine.log.copy.as_mut() else {
            panic!("n{id} accepts a chunk without a copy in progress")
        };
        for record in records.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
            assert!(word(0) <= base.as_u64());
            copied.insert(Version::from_u64(word(0)), word(8));
        }
        machine.replica.as_mut().expect("it took a frame").handle_transferred(now, next);
        self.poll(id);
    }

    pub(crate) fn poll_manager(&mut self) {
        let now = self.time();
        while let Some(output) = self.manager.as_mut().and_then(Manager::poll_output) {
            match output {
                ManagerOutput::Persist { revision, image } => {
                    self.manager_disk = image;
                    if let Some(manager) = &mut self.manager {
                        manager.handle_persisted(now, revision);
                    }
                }
                ManagerOutput::Send { to, frame } => self.transmit(MANAGER, to.node().0, &frame),
                ManagerOutput::BootRefused { member, boot } => {
                    self.events.push(format!("n{} is refused: boot {:#x}", member.node().0, boot.0));
                }
                ManagerOutput::Dropping { member, reason, .. } => {
                    self.events.push(format!("n{} is to be dropped: {reason:?}", member.node().0));
                }
                ManagerOutput::PossibleLoss { epoch, base, .. } => {
                    self.events.push(format!("acked writes may be missing in {epoch:?} from {base:?}"));
                }
                ManagerOutput::Activated { epoch, base, .. } => {
                    self.events.push(format!("active {epoch:?} from {base:?}"));
                }
            }
        }
    }

    /// Advances the time: fires the timers that are due and sends heartbeats.
    pub(crate) fn advance(&mut self, ms: u64) {
        self.now += ms;
        let now = self.time();
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            let machine = self.machines.get_mut(&id).expect("known");
            let Some(replica) = machine.replica.as_mut() else { continue };
            if replica.next_timeout().is_some_and(|at| at <= now.mono) {
                replica.handle_timeout(now);
            }
            if machine.hello_at <= self.now {
                machine.hello_at = self.now + 200;
                let header = Header {
                    from: member(id),
                    boot: boot_id(machine.boot),
                    range: RangeId(0),
                    epoch: Epoch::default(),
                };
                let slow = |since: u64| Body::Slow { oldest_ms: self.now - since };
                let body = machine.slow_since.map_or(Body::Hello, slow);
                self.transmit(id, MANAGER, &Frame { header, body });
            }
            self.poll(id);
        }
        if let Some(manager) = &mut self.manager {
            manager.handle_timeout(now);
            self.poll_manager();
        }
    }

    /// For `ms`, delivers all messages in order, with iterations and time steps between them.
    pub(crate) fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            for _ in 0..20 {
                while !self.net.is_empty() {
                    self.deliver(0);
                }
                self.machines.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.turn(id, true));
                if self.net.is_empty() {
                    break;
                }
            }
            self.advance(10);
        }
    }

    /// Whether all machines serve and hold the same log, all of it committed.
    pub(crate) fn healed(&self) -> bool {
        let mut logs = self.machines.values().map(|machine| (&machine.log.records, machine.committed));
        let first = logs.next();
        self.machines.keys().all(|id| self.serving(*id))
            && first.is_some_and(|first| first.1 == first.0.last().map_or(Version::ZERO, |r| r.0))
            && logs.all(|log| Some(log) == first)
    }
}
