//! One member of one chain: a state machine over versions, watermarks, epochs and peers; no payload enters.
//!
//! In each iteration, pass events to `handle_*`, then poll outputs until `None`. Call `handle_progress` once per
//! iteration, after its records were appended: acks, watermarks and forwarding are then computed once for all of them.
mod ack;
mod chain_time;
mod failed;
mod handshake;
mod head;
mod link;
mod middle;
mod output;
mod read;
mod repair;
mod single;
mod tail;
mod transfer_in;
mod transfer_out;

pub use chain_time::ReadTime;
pub use output::{Alarm, Closed, FrameVerdict, LogProgress, PersistedState, Rejection, Replayed, ReplicaOutput};

use crate::invariants;
use crate::map::RangeEntry;
use crate::message::{Body, Frame, Header};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use chain_time::ChainTime;
use fawn_types::{BootId, Durability, Epoch, MemberId, MonoMs, Now, RangeId, TimeMs, Version};
use link::ReplicaLink;
use transfer_in::TransferIn;
use transfer_out::TransferOut;

/// Limits and intervals of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaOptions {
    /// Maximum unacknowledged bytes per link.
    pub window_bytes_max: u32,
    /// Maximum bytes of records in one frame (one record may be longer).
    pub frame_bytes_max: u32,
    /// Maximum uncommitted writes; beyond it the head replies "overloaded".
    pub pending_max: u64,
    /// Time without progress after which a link sends again.
    pub retransmit_ms: u64,
    /// Interval at which an idle head sends chain time.
    pub heartbeat_ms: u64,
    /// A successor that has not acknowledged for this long is reported to the manager. Must exceed a pass of the
    /// cleaner, a full queue, or one retransmission.
    pub suspect_ms: u64,
    /// Maximum writes of one epoch; the head requests a new epoch when a sixteenth is left.
    pub epoch_records_max: u64,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            window_bytes_max: 4 << 20,
            frame_bytes_max: 256 << 10,
            pending_max: 64 << 10,
            retransmit_ms: 100,
            heartbeat_ms: 50,
            suspect_ms: 1_000,
            epoch_records_max: Version::SEQ_SOFT_MAX,
        }
    }
}

/// Identity, durability mode and limits of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaConfig {
    /// The shard's ID.
    pub id: MemberId,
    /// The current start of its process.
    pub boot: BootId,
    /// The range.
    pub range: RangeId,
    /// The durability mode until a range entry is known; then the entry's mode applies.
    pub durability: Durability,
    /// Limits and intervals.
    pub options: ReplicaOptions,
}

/// Role of a serving member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Assigns versions.
    Head,
    /// Forwards records to its successor.
    Middle,
    /// Commits, replies, and serves reads.
    Tail,
    /// Head and tail of a chain of one.
    Single,
}

/// State of a replica in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaPhase {
    /// This boot has no role yet; it waits for the manager.
    Idle,
    /// Has promised an epoch; reports once the promise is durable.
    Prepared { durable: bool },
    /// The log is being made equal to that of `donor`, which ends at `base`.
    Aligning { donor: MemberId, base: Version },
    /// Equality was reported to the manager; waits for `Active`.
    Equal { base: Version },
    /// A serving member of the active chain.
    Serving { role: Role },
    /// Receives committed records from the tail.
    Syncing,
}

/// One member of one chain.
#[derive(Clone, Debug)]
pub struct Replica {
    config: ReplicaConfig,
    phase: ReplicaPhase,
    promised: Epoch,
    entry: Option<RangeEntry>,
    /// The end of the log: assigned at the head, accepted elsewhere.
    last: Version,
    /// The version that the head assigns next; `None` unless this member may assign.
    next: Option<Version>,
    /// Up to here versions are assigned without further checks.
    assign_max: Version,
    own: LogProgress,
    committed: Version,
    /// Durability mode of the last epoch that the log agrees with. A newer entry may be of a chain that lost this log's
    /// commits in that mode, and has another mode by now.
    log_durability: Durability,
    /// Least watermark of all members above; unused at a head.
    upstream: Version,
    /// When the predecessor last sent a watermark in this phase. Needed because a watermark of zero is also valid.
    upstream_at: Option<MonoMs>,
    /// When the next report of a syncing member that has caught up is due, in whatever epoch.
    report_at: MonoMs,
    time: ChainTime,
    /// The full resync in progress, in any phase: until it is finished, this member holds no copy.
    transfer: Option<TransferIn>,
    transfer_out: Option<TransferOut>,
    predecessor: Option<MemberId>,
    links: Vec<ReplicaLink>,
    /// A `Commit` is due through `committed`.
    commit_due: bool,
    /// An `Ack` to the predecessor is due.
    ack_due: bool,
    /// The last gap that was reported: its start, and when it may be reported again.
    gap_asked: Option<(Version, MonoMs)>,
    /// Time of the next timer action of an idle or waiting replica.
    wake_at: Option<MonoMs>,
    /// This boot can no longer store anything.
    has_failed: bool,
    /// The chain has too few members for writes.
    is_short: bool,
    /// The promise found at this boot's start.
    found: Epoch,
    /// Members that answered a probe of the promised epoch.
    reach: Vec<MemberId>,
    /// When a new epoch was last requested.
    epoch_asked_at: Option<MonoMs>,
    /// The clean-shutdown mark of the previous boot, if the log still ends where that boot left it.
    mark: Option<Closed>,
    persist_number: u64,
    outputs: VecDeque<ReplicaOutput>,
    now: Now,
}

impl Replica {
    /// A replica after recovery: its promise, the end of its log, which recovery has synced, and the last version known
    /// to be committed.
    ///
    /// It serves nothing until the handshake gives it a new epoch, so a restarted head cannot assign a version twice.
    #[must_use]
    pub fn new(config: ReplicaConfig, persisted: PersistedState, last: Version, committed: Version) -> Self {
        assert!(committed <= last, "committed {committed:?} beyond the log's end {last:?}");
        let log_durability = match &persisted.entry {
            None => config.durability,
            // Its records show that the epoch began here. A member begins to serve before that state is durable.
            Some(entry) if entry.epoch == last.epoch() => entry.durability,
            Some(_) => persisted.log_durability,
        };
        Self {
            config,
            phase: ReplicaPhase::Idle,
            promised: persisted.promised,
            time: ChainTime::new(persisted.entry.as_ref().map_or(TimeMs(0), |entry| entry.time)),
            entry: persisted.entry,
            last,
            next: None,
            assign_max: Version::ZERO,
            own: LogProgress { appended: last, flushed: last, synced: last },
            committed,
            log_durability,
            upstream: Version::ZERO,
            upstream_at: None,
            report_at: MonoMs(0),
            transfer: None,
            transfer_out: None,
            predecessor: None,
            links: Vec::new(),
            commit_due: false,
            ack_due: false,
            gap_asked: None,
            wake_at: Some(MonoMs(0)),
            has_failed: false,
            is_short: false,
            found: persisted.promised,
            reach: Vec::new(),
            epoch_asked_at: None,
            // A log that does not end at the mark was changed after the shutdown, so the mark does not certify it.
            mark: persisted.closed.filter(|closed| closed.last == last),
            persist_number: 0,
            outputs: VecDeque::new(),
            now: Now::default(),
        }
    }

    /// The state to persist at a clean shutdown, once all of the log is synced and the replica takes no more events.
    /// `None` if nothing can be certified, or nothing changed: a boot that promised nothing keeps the state it found.
    #[must_use]
    pub fn close(&self) -> Option<PersistedState> {
        if self.has_failed || self.transfer.is_some() || self.persist_number == 0 {
            return None;
        }
        let closed = Closed { boot: self.config.boot, last: self.last, before: self.continues() };
        Some(self.persisted(Some(closed)))
    }

    fn persisted(&self, closed: Option<Closed>) -> PersistedState {
        let Self { promised, log_durability, .. } = *self;
        PersistedState { promised, entry: self.entry.clone(), log_durability, closed }
    }

    /// The boot that this one continues without loss, until this boot takes a role of its own. A mark may certify two
    /// boots, because its writer could not know whether it was activated already. The entry names the one that was.
    fn continues(&self) -> Option<BootId> {
        let Closed { boot, before, .. } = self.mark?;
        let last_active = self.entry.as_ref().and_then(|entry| entry.last_active.as_ref());
        let served = last_active.and_then(|last| last.members.iter().find(|member| member.id == self.config.id));
        let is_before = before.is_some() && before == served.map(|member| member.boot);
        if is_before { before } else { Some(boot) }
    }

    /// The current epoch: active, or promised.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.promised
    }

    /// The role; `None` unless this member serves.
    #[must_use]
    pub const fn role(&self) -> Option<Role> {
        match self.phase {
            ReplicaPhase::Serving { role } => Some(role),
            _ => None,
        }
    }

    /// Whether it serves in a chain with enough members for writes. In a shorter chain, versions committed by an
    /// activation are in doubt: reads return them, because they may have been acknowledged before, but no new
    /// acknowledgement is sent for them.
    #[must_use]
    pub const fn acknowledges(&self) -> bool {
        self.role().is_some() && !self.is_short
    }

    /// The range.
    #[must_use]
    pub const fn range(&self) -> RangeId {
        self.config.range
    }

    /// The last version of its log.
    #[must_use]
    pub const fn last(&self) -> Version {
        self.last
    }

    /// The last version that it knows to be committed.
    #[must_use]
    pub const fn committed(&self) -> Version {
        self.committed
    }

    /// The newest entry it knows.
    #[must_use]
    pub const fn entry(&self) -> Option<&RangeEntry> {
        self.entry.as_ref()
    }

    /// Chain time, by which expiry is evaluated.
    #[must_use]
    pub const fn time(&self) -> TimeMs {
        self.time.get()
    }

    /// Chain time when the member began to serve in its epoch: earlier than before the epoch if the members that knew
    /// it had ended.
    #[must_use]
    pub const fn time_began(&self) -> TimeMs {
        self.time.began()
    }

    /// The phase in one word, for status pages and scripts.
    #[must_use]
    pub const fn phase_name(&self) -> &'static str {
        match self.phase {
            _ if self.has_failed => "failed",
            ReplicaPhase::Idle => "idle",
            ReplicaPhase::Prepared { .. } => "prepared",
            ReplicaPhase::Aligning { .. } => "aligning",
            ReplicaPhase::Equal { .. } => "equal",
            ReplicaPhase::Serving { role: Role::Head } => "head",
            ReplicaPhase::Serving { role: Role::Middle } => "middle",
            ReplicaPhase::Serving { role: Role::Tail } => "tail",
            ReplicaPhase::Serving { role: Role::Single } => "single",
            ReplicaPhase::Syncing if self.transfer.is_some() => "copying",
            ReplicaPhase::Syncing => "syncing",
        }
    }

    /// Peers may still request records above this version, so the log must keep them.
    #[must_use]
    pub fn retain_floor(&self) -> Version {
        self.links.iter().map(|link| link.received).fold(self.committed, Version::min)
    }

    /// Handles progress of this member's own log. O(1); for a chain of one this is the whole commit path.
    pub fn handle_progress(&mut self, now: Now, progress: LogProgress) {
        let LogProgress { appended, flushed, synced } = progress;
        assert!(invariants::watermarks_ordered(synced, flushed, appended), "{progress:?}");
        if self.has_failed {
            return; // After a failed write, the log's own watermarks are not trusted.
        }
        self.now = now;
        // After a rollback, the host may still report watermarks of records that were cut off.
        self.own = LogProgress {
            appended: appended.min(self.last),
            flushed: flushed.min(self.last),
            synced: synced.min(self.last),
        };
        match self.phase {
            ReplicaPhase::Serving { role: Role::Single | Role::Tail } | ReplicaPhase::Syncing => self.try_commit(),
            ReplicaPhase::Aligning { .. } => self.try_equal(),
            _ => {}
        }
    }

    /// A peer's or the manager's frame about this range.
    pub fn handle_frame(&mut self, now: Now, frame: &Frame<'_>) -> FrameVerdict {
        assert!(frame.header.range == self.config.range, "frames are routed by range");
        self.now = now;
        if self.has_failed {
            self.handle_frame_failed(frame);
            return FrameVerdict::Nothing;
        }
        match &frame.body {
            Body::Entry(entry) => self.handle_entry(now, entry),
            Body::EntryWanted => self.send_entry(frame.header.from),
            // Answered in any epoch: a probe only tests whether frames arrive.
            Body::Probe => self.send(frame.header.from, Body::ProbeReply { epoch: frame.header.epoch }),
            Body::ProbeReply { epoch } => self.handle_probe_reply(frame.header.from, *epoch),
            Body::Align { entry, donor, base, cut } => self.handle_align(entry, *donor, *base, *cut),
            _ if !self.admits(&frame.header) => {}
            Body::Append { after, last, upstream, time, assigned, records: _ } => {
                return self.handle_append(frame.header.from, *after, *last, (*upstream, *time, *assigned));
            }
            Body::Watermark { sent, upstream, time, assigned } => {
                self.handle_watermark(frame.header.from, *sent, (*upstream, *time, *assigned));
            }
            Body::Ack { received, committed } => self.handle_ack(frame.header.from, *received, *committed),
            Body::ReplayWanted { after } => self.handle_replay_wanted(frame.header.from, *after),
            Body::Gone { after } => self.handle_gone(frame.header.from, *after),
            Body::TransferWanted { base, cursor } => self.handle_transfer_wanted(frame.header.from, *base, *cursor),
            Body::Transfer { base, cursor, next, read_version, .. } => {
                return self.handle_transfer(frame.header.from, *base, (*cursor, *next), *read_version);
            }
            _ => {} // Addressed to a manager or a front-end.
        }
        FrameVerdict::Nothing
    }

    /// Whether a chain frame is of this epoch and of its sender's current boot. If not, exchanges entries with the
    /// sender.
    fn admits(&mut self, header: &Header) -> bool {
        if header.epoch < self.promised {
            self.send_entry(header.from);
            return false;
        }
        if header.epoch > self.promised {
            // This side is older: it requests the entry of the newer epoch.
            self.send(header.from, Body::EntryWanted);
            return false;
        }
        let member = self.entry.as_ref().and_then(|entry| entry.member(header.from));
        let known = member.is_some_and(|member| member.boot == header.boot);
        if !known {
            // Either a late frame of a former boot, or the entry that added the sender was lost.
            self.send(header.from, Body::EntryWanted);
        }
        known
    }

    /// The next effect. Poll until `None` after each batch of events.
    pub fn poll_output(&mut self) -> Option<ReplicaOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if self.commit_due {
            self.commit_due = false;
            return Some(ReplicaOutput::Commit { through: self.committed });
        }
        if self.has_failed {
            return None;
        }
        if self.ack_due {
            self.ack_due = false;
            return self.ack();
        }
        self.poll_links()
    }

    /// The time of the next `handle_timeout`.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoMs> {
        let links = self.links.iter().filter_map(|link| self.link_deadline(link));
        let suspicions = self.links.iter().filter_map(|link| self.suspicion_at(link));
        links.chain(suspicions).chain(self.wake_at).min()
    }

    /// Handles the passage of time: retransmits, reports suspects, sends chain time, requests a missing entry.
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        self.retransmit();
        self.suspect();
        if self.wake_at.is_some_and(|at| at <= now.mono) {
            self.wake();
        }
    }

    fn member_node(&self, from: MemberId) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.member(from).is_some())
    }

    /// This member's watermark of the durability mode.
    fn own_mark(&self) -> Version {
        match self.durability() {
            Durability::Sync => self.own.synced,
            Durability::EverySecond => self.own.flushed,
            Durability::Memory => self.own.appended,
        }
    }

    /// The durability mode of its epoch.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.entry.as_ref().map_or(self.config.durability, |entry| entry.durability)
    }

    fn header(&self) -> Header {
        let ReplicaConfig { id, boot, range, .. } = self.config;
        Header { from: id, boot, range, epoch: self.promised }
    }

    fn frame(&self, body: Body<'static>) -> Frame<'static> {
        Frame { header: self.header(), body }
    }

    fn send(&mut self, to: MemberId, body: Body<'static>) {
        let frame = self.frame(body);
        self.outputs.push_back(ReplicaOutput::Send { to, frame });
    }

    fn send_manager(&mut self, body: Body<'static>) {
        let frame = self.frame(body);
        self.outputs.push_back(ReplicaOutput::SendManager { frame });
    }

    fn send_entry(&mut self, to: MemberId) {
        if let Some(entry) = self.entry.clone() {
            self.send(to, Body::Entry(entry));
        }
    }

    /// Cuts off the log's records above `after`, none of which was committed.
    fn rollback(&mut self, after: Version) {
        assert!(after < self.last, "a cut removes something");
        self.last = after;
        self.own.appended = self.own.appended.min(after);
        self.own.flushed = self.own.flushed.min(after);
        self.own.synced = self.own.synced.min(after);
        self.committed = self.committed.min(after);
        self.outputs.push_back(ReplicaOutput::Rollback { after });
    }
}
