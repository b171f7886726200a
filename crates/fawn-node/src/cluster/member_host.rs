//! Host of chain members: the store, the members on it, their executor, and the execution of their outputs.
use super::config::{HostConfig, member_of};
use super::payload::put_result_as_reply;
use super::peer_links::PeerLinks;
use super::persist::{PersistQueue, PersistedBlob};
use super::transfer::TransferJob;
use crate::exec::{ExecContext, Executor};
use crate::replica::{Cut, HostedMember, MemberTable, RangeSlot, put_acknowledged};
use crate::status::ShardCounters;
use fawn_chain::replica::{FrameVerdict, LogProgress, ReplicaOutput};
use fawn_chain::{Body, Frame, RangeEntry, Role};
use fawn_ds::internals::{Engine, EngineError, Event, OpenResult};
use fawn_flash::Device;
use fawn_types::{MemberId, MonoMs, Now, RangeId, Version};
use slab::Slab;
use std::collections::BTreeSet;

/// Interval at which a cut is tried again, and rejected records are requested again, while the store has no space for
/// them.
pub(super) const SPACE_PAUSE_MS: u64 = 10;
/// Time between two looks at the chains' times.
const CHAIN_TIMES_MS: u64 = 1000;
/// Minimum interval at which a head asks front-ends to acknowledge results. The frame may be lost, or an operation that
/// takes its time may prevent the acknowledgement.
const ACKNOWLEDGE_MS: u64 = 500;

/// A `SendRecords` that waits for a device read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayJob {
    pub(super) range: RangeId,
    pub(super) to: MemberId,
    pub(super) after: Version,
    pub(super) through: Version,
    pub(super) bytes_max: u32,
}

/// A store, the chain members on it, and their executor.
#[derive(Debug)]
pub(crate) struct MemberHost<D: Device> {
    pub(crate) config: HostConfig,
    pub(crate) engine: Engine<D>,
    pub(crate) members: MemberTable,
    pub(crate) exec: Executor,
    pub(super) replays: Slab<ReplayJob>,
    pub(super) transfers: Slab<TransferJob>,
    pub(crate) persists: PersistQueue,
    pub(crate) counters: ShardCounters,
    /// Scratch buffer: a reply or result for the next frame or record.
    pub(crate) encoded: Vec<u8>,
    /// Scratch buffer: records for the next frame.
    pub(super) records: Vec<u8>,
    pub(crate) events: Vec<Event>,
    /// Peers that received a range's entry in this iteration. Stale requests come in bursts; one entry per burst is
    /// enough.
    pub(crate) announced_to: Vec<(MemberId, RangeId)>,
    /// Ranges whose addition waits for copies of results, of which the log says so.
    pub(super) deferred_ranges: BTreeSet<RangeId>,
    /// Members that stopped serving: their waiting requests are to be refused.
    pub(crate) stopped: Vec<RangeSlot>,
    eager_sync: bool,
    is_slow: bool,
    /// The monotonic clock and the store's expiry time.
    pub(crate) now: Now,
    /// When the engine is told the chains' times next.
    chain_times_at: MonoMs,
    /// When a standalone shard tries again to begin an epoch.
    pub(crate) epoch_retry_at: Option<MonoMs>,
}

impl<D: Device> MemberHost<D> {
    pub(crate) fn new(config: HostConfig, engine: Engine<D>) -> Self {
        let limits = config.limits;
        Self {
            config,
            engine,
            members: MemberTable::default(),
            exec: Executor::new(limits.value_bytes_max, limits.parked_max, limits.reads_in_flight_max),
            replays: Slab::new(),
            transfers: Slab::new(),
            persists: PersistQueue::default(),
            counters: ShardCounters::default(),
            encoded: Vec::new(),
            records: Vec::new(),
            events: Vec::new(),
            announced_to: Vec::new(),
            deferred_ranges: BTreeSet::new(),
            stopped: Vec::new(),
            eager_sync: false,
            is_slow: false,
            now: Now::default(),
            chain_times_at: MonoMs(0),
            epoch_retry_at: None,
        }
    }

    /// The executor at a member.
    #[inline]
    pub(crate) fn at(&mut self, slot: RangeSlot) -> ExecContext<'_, D> {
        let Self { exec, engine, members, now, .. } = self;
        ExecContext { exec, engine, member: &mut members[slot], now: *now }
    }

    /// The age of the oldest write or sync in flight, if it shows that the disk hangs. Called after completions were
    /// handled: a process that was paused finds its writes completed.
    pub(crate) fn slow_for_ms(&mut self) -> Option<u64> {
        let oldest = self.engine.oldest_write().filter(|_| self.engine.poisoned().is_none());
        let age_ms = oldest.map_or(0, |submitted_at| self.now.mono.ms_since(submitted_at));
        let is_slow = age_ms > self.config.limits.slow_after_ms;
        if is_slow != std::mem::replace(&mut self.is_slow, is_slow) {
            match is_slow {
                true => tracing::warn!(
                    shard = %self.config.id,
                    age_ms,
                    "the disk has not completed a write: clients wait, and in a cluster this shard leaves its chains"
                ),
                false => tracing::info!(shard = %self.config.id, "the disk completes writes again"),
            }
        }
        is_slow.then_some(age_ms)
    }

    /// Advances the clocks; returns the monotonic clock with expiry time. The wall clock may step; the store's expiry
    /// clock never goes back, and follows it a minute later.
    #[inline]
    pub(crate) fn note_time(&mut self, now: Now) -> Now {
        self.now = Now { mono: now.mono, wall: self.engine.advance_clock(now) };
        self.exec.jump = self.engine.next_jump(now);
        self.now
    }

    /// Begins an iteration: takes the completed device operations, in the memory of `events`.
    pub(crate) fn poll_events(&mut self, now: Now) -> Vec<Event> {
        self.announced_to.clear();
        let mut events = std::mem::take(&mut self.events);
        self.engine.poll(now, &mut events);
        events
    }

    /// Handles promises and maps that became durable; returns the revision of a map.
    pub(crate) fn reap_persists(&mut self, now: Now) -> Option<u64> {
        let mut map = None;
        while let Some(kept) = self.persists.pop_durable(&self.engine) {
            match kept {
                PersistedBlob::Replica { range, number } => {
                    if let Some(at) = self.members.find(range) {
                        self.members[at].replica.handle_persisted(now, number);
                    }
                }
                PersistedBlob::Map { revision } => map = Some(revision),
            }
        }
        self.persists.advance(&mut self.engine, now.mono);
        map
    }

    /// Begins to make a manager's map durable in this store.
    pub(crate) fn persist_map(&mut self, revision: u64, image: &[u8]) {
        self.persists.put(PersistedBlob::Map { revision }, image.to_vec());
        self.persists.advance(&mut self.engine, self.now.mono);
    }

    /// Handles a frame for one range, from a peer or from this shard.
    pub(crate) fn handle_frame(&mut self, now: Now, frame: &Frame<'_>, links: &mut PeerLinks) {
        let header = frame.header;
        if let Body::Entry(entry) | Body::Align { entry, .. } = &frame.body {
            self.join_if_member(entry);
        }
        let Some(at) = self.members.find(header.range) else { return };
        if !self.members[at].is_receiving() {
            return;
        }
        match self.members[at].replica.handle_frame(now, frame) {
            FrameVerdict::Nothing => {}
            FrameVerdict::Append { after, through } => {
                let Body::Append { records, .. } = frame.body else { unreachable!("only an Append has records") };
                self.append_from_peer(at, (after, through), records);
            }
            FrameVerdict::Transfer { next } => {
                let Body::Transfer { base, keys, records, .. } = frame.body else {
                    unreachable!("only a Transfer has a chunk")
                };
                self.take_transfer(at, next, (base, keys), records);
            }
        }
        // A log cut must take effect before the next frame's records are appended.
        self.drain(at, links);
    }

    /// Adds a member with an empty copy if the entry names this shard and it has no copy yet.
    fn join_if_member(&mut self, entry: &RangeEntry) {
        if entry.member(self.config.id).is_none() || self.members.find(entry.range).is_some() {
            return;
        }
        if let Err(error) = self.try_add_member(entry.range, entry.keys) {
            tracing::error!(range = ?entry.range, %error, "a range could not be added to the store");
        }
    }

    /// Reports the log's progress to every member and executes their outputs.
    pub(crate) fn advance(&mut self, now: Now, links: &mut PeerLinks) {
        self.note_chain_times(now);
        let is_poisoned = self.engine.poisoned().is_some();
        let (log_flushed, is_full) = (self.engine.watermarks().flushed, self.engine.is_full());
        for at in self.members.slots() {
            if is_poisoned {
                self.members[at].transfer.begin = None;
                self.members[at].cut = None;
            } else if !(self.advance_begin(at) && self.try_cut(at)) {
                // Either may wait for space, and that for copies.
                self.copy_results(at);
                continue;
            }
            self.reap_transfer(at);
            let id = self.members[at].id;
            let fawn_ds::internals::RangeProgress { appended, flushed, synced, .. } = self.engine.progress(id);
            let member = &mut self.members[at];
            let replica = &mut member.replica;
            if is_poisoned && links.has_manager() || member.broken.is_some() {
                // The manager replaces it. Without one it is the only copy, and still serves reads.
                replica.fail(now);
            } else if self.config.durability > replica.durability() && synced < appended {
                // The store was opened in a weaker mode than the chain's. It lasts until the
                // member is restarted in that mode.
                self.eager_sync = true;
                self.engine.set_eager_sync(true);
            }
            if replica.next_timeout().is_some_and(|due| due <= now.mono) {
                replica.handle_timeout(now);
            }
            match &mut member.rejected {
                Some(rejected) if rejected.flushed != log_flushed || rejected.look_at <= now.mono && !is_full => {
                    member.rejected = None;
                    replica.handle_log_space(now);
                }
                Some(rejected) if rejected.look_at <= now.mono => rejected.look_at = now.mono.plus_ms(SPACE_PAUSE_MS),
                _ => {}
            }
            replica.handle_progress(now, LogProgress { appended, flushed, synced });
            self.drain(at, links);
            self.copy_results(at);
            self.want_acknowledgements(at, links);
        }
    }

    /// Asks front-ends to acknowledge the results that use all of the memory: one that sends no further update would
    /// keep it for ever, and the updates of all others would be refused. This needs no timer, because these come again.
    fn want_acknowledgements(&mut self, at: RangeSlot, links: &mut PeerLinks) {
        let now = self.now.mono;
        let HostedMember { id, replica, completions, acknowledge_at, .. } = &mut self.members[at];
        let is_head = matches!(replica.role(), Some(Role::Head | Role::Single));
        if !is_head || !completions.is_full() || now < *acknowledge_at {
            return;
        }
        *acknowledge_at = now.plus_ms(ACKNOWLEDGE_MS);
        let header = links.header(*id, replica.epoch());
        completions.holders().for_each(|to| links.send(to, &Frame { header, body: Body::AcknowledgementWanted }));
    }

    /// Copies the results that may be requested again where they keep log that the store has to give up.
    fn copy_results(&mut self, at: RangeSlot) {
        let HostedMember { id, completions, .. } = &self.members[at];
        if !self.engine.must_copy_results(*id) {
            return;
        }
        let open = completions.from((0, 0)).map(|(tag, done)| OpenResult::new(done.version, tag));
        let mut open: Vec<OpenResult> = open.collect();
        open.sort_unstable();
        self.engine.copy_results(*id, &open, |tag, copy| {
            if let Some((_, done)) = completions.from((tag.session, tag.seq)).next() {
                copy.extend_from_slice(&done.result);
                put_acknowledged(copy, tag, completions.first_incomplete(tag.session));
            }
        });
    }

    /// Tells the engine by which times the chains judge expiry, for cleaning.
    fn note_chain_times(&mut self, now: Now) {
        if now.mono < self.chain_times_at {
            return;
        }
        self.chain_times_at = now.mono.plus_ms(CHAIN_TIMES_MS);
        for at in self.members.slots() {
            let member = &self.members[at];
            self.engine.set_chain_time(member.id, member.replica.time());
        }
    }

    /// Ends an iteration: submits all of its appends to the device.
    pub(crate) fn submit(&mut self, now: Now) {
        if self.eager_sync {
            let marks = self.engine.watermarks();
            self.eager_sync = marks.synced < marks.appended;
            self.engine.set_eager_sync(self.eager_sync);
        }
        self.engine.submit(now);
        self.exec.trim();
    }

    pub(crate) fn next_timeout(&self) -> Option<MonoMs> {
        let members = self.members.iter().filter_map(HostedMember::next_timeout);
        members.chain(self.persists.next_timeout()).min()
    }

    /// Executes a member's outputs, in order.
    fn drain(&mut self, at: RangeSlot, links: &mut PeerLinks) {
        while self.members[at].is_receiving()
            && let Some(output) = self.members[at].replica.poll_output()
        {
            self.carry_out(at, output, links);
        }
    }

    fn carry_out(&mut self, at: RangeSlot, output: ReplicaOutput, links: &mut PeerLinks) {
        let id = self.members[at].id;
        match output {
            ReplicaOutput::Commit { through } => self.commit(at, through, links),
            ReplicaOutput::Rollback { after } => self.roll_back(at, after),
            ReplicaOutput::Persist { number, state } => {
                let state = fawn_chain::map::encode_state(&state);
                self.persists.put(PersistedBlob::Replica { range: id, number }, state);
                self.persists.advance(&mut self.engine, self.now.mono);
            }
            ReplicaOutput::Sync => {
                self.eager_sync = true;
                self.engine.set_eager_sync(true);
            }
            ReplicaOutput::Send { to, frame } => links.send(to, &frame),
            ReplicaOutput::SendManager { frame } => links.send_manager(&frame),
            ReplicaOutput::SendRecords { to, after, through, bytes_max } => {
                self.send_records(ReplayJob { range: id, to, after, through, bytes_max }, links);
            }
            ReplicaOutput::BeginTransfer { base } => self.begin_transfer(at, base),
            ReplicaOutput::FinishTransfer { base } => self.finish_transfer(at, base),
            ReplicaOutput::SendTransfer { to, base, cursor } => self.send_transfer(at, (to, base), cursor, links),
            ReplicaOutput::NowServing { epoch } => tracing::info!(range = ?id, ?epoch, "serving"),
            ReplicaOutput::Stopped => self.stopped.push(at),
            ReplicaOutput::Alarm(alarm) => {
                self.counters.alarms += 1;
                tracing::warn!(range = ?id, %alarm, "chain alarm");
            }
        }
    }

    /// Cuts the log, now or once its buffers have space.
    fn roll_back(&mut self, at: RangeSlot, after: Version) {
        let id = self.members[at].id;
        let committed = self.engine.progress(id).committed;
        if after < committed {
            // Possible only without synced acks: all other members that knew of the commit lost power.
            let why = format!("cannot cut {id:?} to {after:?}, below the committed {committed:?}: needs a full resync");
            tracing::error!("{why}");
            return self.give_up(at, why);
        }
        self.members[at].completions.rollback(after);
        self.members[at].cut = Some(Cut { after, look_at: self.now.mono });
        self.try_cut(at);
    }

    /// Makes the cut that is due. Returns whether the member may continue: nothing may be appended before the cut, and
    /// a disk that hangs or is full may delay it for long.
    fn try_cut(&mut self, at: RangeSlot) -> bool {
        let member = &mut self.members[at];
        let Some(cut) = &mut member.cut else { return true };
        if self.now.mono < cut.look_at {
            return false;
        }
        match self.engine.rollback(member.id, cut.after) {
            Err(EngineError::Overloaded | EngineError::StoreFull) => {
                cut.look_at = self.now.mono.plus_ms(SPACE_PAUSE_MS);
                return false;
            }
            Ok(()) => member.cut = None,
            Err(error) => {
                member.cut = None;
                tracing::error!(range = ?member.id, %error, "the log could not be cut");
                self.give_up(at, error.to_string());
            }
        }
        true
    }

    /// Commits all records through `through`. At a tail, also replies to their operations; a reply without a tag waits
    /// with its session.
    fn commit(&mut self, slot: RangeSlot, through: Version, links: &mut PeerLinks) {
        let Self { engine, members, encoded, .. } = self;
        let HostedMember { id, replica, completions, .. } = &mut members[slot];
        engine.set_needed_from(*id, completions.oldest_open(engine.results_copied_below(*id)));
        engine.commit(*id, through);
        let replies = matches!(replica.role(), Some(Role::Tail | Role::Single)) && replica.acknowledges();
        let header = links.header(*id, replica.epoch());
        completions.commit(through, |tag, done| {
            if !replies {
                return;
            }
            encoded.clear();
            put_result_as_reply(encoded, tag.session, done.version, &done.result);
            let body = Body::Reply { op: tag.seq, payload: encoded };
            links.send(member_of(tag.session), &Frame { header, body });
        });
    }

    fn give_up(&mut self, at: RangeSlot, why: String) {
        let now = self.now;
        let member = &mut self.members[at];
        member.broken = Some(why);
        member.replica.fail(now);
    }
}
