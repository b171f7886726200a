//! Owns one member of one chain: a state machine over versions, watermarks, epochs and peers; no payload enters.
//!
//! Feed it events with `handle_*`, then poll outputs until `None`, each turn. `handle_progress` once per turn, after the
//! turn's records were appended: acks, watermarks and forwarding are then worked out once for all of them.
mod ack;
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

pub use output::{Alarm, Closed, FrameVerdict, LogProgress, PersistedState, Rejection, Replayed, ReplicaOutput};

use crate::invariants;
use crate::map::RangeEntry;
use crate::message::{Body, Frame, Header};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, Epoch, MonoMs, NodeId, Now, RangeId, SteadyTime, TimeMs, Version};
use link::ReplicaLink;
use transfer_in::TransferIn;
use transfer_out::TransferOut;

/// Limits and intervals of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaOptions {
    /// Unacknowledged bytes per link at most.
    pub window_bytes_max: u32,
    /// Records in one frame at most (one record may be longer).
    pub frame_bytes_max: u32,
    /// Writes assigned and not committed at most; beyond it the head answers "overloaded".
    pub pending_max: u64,
    /// Silence after which a link sends again.
    pub retransmit_ms: u64,
    /// How often an idle head tells chain time.
    pub heartbeat_ms: u64,
    /// A successor that has not acknowledged for so long what was sent to it is reported to the manager. More than
    /// what a collected garbage, a full queue or a lost frame costs.
    pub suspect_ms: u64,
    /// Writes of one epoch at most; the head asks for another one when a sixteenth is left.
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

/// Who a replica is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaConfig {
    /// This machine.
    pub node: NodeId,
    /// This start of its process.
    pub boot: BootId,
    /// The range.
    pub range: RangeId,
    /// When a write counts as kept, until an entry says it.
    pub durability: Durability,
    /// Limits and intervals.
    pub options: ReplicaOptions,
}

/// A serving member's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Assigns versions.
    Head,
    /// Passes on.
    Middle,
    /// Commits, replies, is read.
    Tail,
    /// Head and tail of a chain of one.
    Single,
}

/// Where a replica stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaPhase {
    /// Knows of no part for this boot; waits for the manager.
    Idle,
    /// Promised; reports once the promise is durable.
    Prepared { durable: bool },
    /// Being made equal to `donor`'s log, which ends at `base`.
    Aligning { donor: NodeId, base: Version },
    /// Told the manager so; waits for `Active`.
    Equal { base: Version },
    /// Part of the active chain.
    Serving { role: Role },
    /// Streams behind the tail.
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
    /// What the head assigns next; `None` unless this member may assign.
    next: Option<Version>,
    /// Up to here versions are assigned without further checks.
    assign_max: Version,
    own: LogProgress,
    committed: Version,
    /// Least watermark of all members above; unused at a head.
    upstream: Version,
    /// The predecessor said so in this phase: nothing committed is news too.
    upstream_told: bool,
    time: SteadyTime,
    /// When the head last advanced chain time.
    advanced_at: Option<Now>,
    /// This member's copy is being made anew, in whatever phase: until that is done it holds no copy.
    transfer: Option<TransferIn>,
    transfer_out: Option<TransferOut>,
    predecessor: Option<NodeId>,
    links: Vec<ReplicaLink>,
    /// A `Commit` is due through `committed`.
    commit_due: bool,
    /// An `Ack` to the predecessor is due.
    ack_due: bool,
    /// A gap was reported from here, then.
    gap_asked: Option<(Version, MonoMs)>,
    /// When an idle or waiting replica acts by itself.
    wake_at: Option<MonoMs>,
    /// This boot keeps nothing any more.
    has_failed: bool,
    /// The chain has too few members for writes.
    is_short: bool,
    /// The promise found at this boot's start.
    found: Epoch,
    /// Members that answered a probe of the promised epoch.
    reach: Vec<NodeId>,
    /// When another epoch was asked for.
    epoch_asked_at: Option<MonoMs>,
    /// What the boot before this one left, if that was cleanly shut down and its log is here whole.
    mark: Option<Closed>,
    persist_number: u64,
    outputs: VecDeque<ReplicaOutput>,
    now: Now,
}

impl Replica {
    /// A replica as it comes up: its promise, the end of its recovered log, all of it synced by recovery, and what is
    /// known to be committed of it. It serves nothing before the handshake gave it a new epoch, so a restarted head
    /// cannot assign a version twice.
    #[must_use]
    pub fn new(config: ReplicaConfig, persisted: PersistedState, last: Version, committed: Version) -> Self {
        assert!(committed <= last, "committed {committed:?} beyond the log's end {last:?}");
        Self {
            config,
            phase: ReplicaPhase::Idle,
            promised: persisted.promised,
            time: SteadyTime::new(persisted.entry.as_ref().map_or(TimeMs(0), |entry| entry.time), MonoMs(0)),
            advanced_at: None,
            entry: persisted.entry,
            last,
            next: None,
            assign_max: Version::ZERO,
            own: LogProgress { appended: last, flushed: last, synced: last },
            committed,
            upstream: Version::ZERO,
            upstream_told: false,
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
            // A log that does not end where the mark says was changed behind its back.
            mark: persisted.closed.filter(|closed| closed.last == last),
            persist_number: 0,
            outputs: VecDeque::new(),
            now: Now::default(),
        }
    }

    /// What to keep when this boot is cleanly shut down, once all of its log is synced and it takes part no more.
    /// `None` where there is nothing to say, or nothing new: a boot that promised nothing leaves all as it found it.
    #[must_use]
    pub fn close(&self) -> Option<PersistedState> {
        if self.has_failed || self.transfer.is_some() || self.persist_number == 0 {
            return None;
        }
        let closed = Closed { boot: self.config.boot, last: self.last, before: self.continues() };
        Some(PersistedState { promised: self.promised, entry: self.entry.clone(), closed: Some(closed) })
    }

    /// The boot that this one goes on from without having lost anything, until it takes that one's place. A mark may
    /// certify for two, as whoever wrote it could not know whether the manager had counted on it already; the entry
    /// names one.
    fn continues(&self) -> Option<BootId> {
        let Closed { boot, before, .. } = self.mark?;
        let last_active = self.entry.as_ref().and_then(|entry| entry.last_active.as_ref());
        let served = last_active.and_then(|last| last.members.iter().find(|member| member.node == self.config.node));
        let is_before = before.is_some() && before == served.map(|member| member.boot);
        if is_before { before } else { Some(boot) }
    }

    /// The epoch it acts in, or has promised to.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.promised
    }

    /// Its part, while it serves.
    #[must_use]
    pub const fn role(&self) -> Option<Role> {
        match self.phase {
            ReplicaPhase::Serving { role } => Some(role),
            _ => None,
        }
    }

    /// Whether it serves in a chain with enough members for writes. Below that, what is committed by an activation is in
    /// doubt: it is read, because it may have been acknowledged before, and nothing is acknowledged for it.
    #[must_use]
    pub const fn acknowledges(&self) -> bool {
        self.role().is_some() && !self.is_short
    }

    /// The range.
    #[must_use]
    pub const fn range(&self) -> RangeId {
        self.config.range
    }

    /// The end of its log.
    #[must_use]
    pub const fn last(&self) -> Version {
        self.last
    }

    /// What it knows to be committed.
    #[must_use]
    pub const fn committed(&self) -> Version {
        self.committed
    }

    /// The newest entry it knows.
    #[must_use]
    pub const fn entry(&self) -> Option<&RangeEntry> {
        self.entry.as_ref()
    }

    /// Chain time: what expiry is judged by.
    #[must_use]
    pub const fn time(&self) -> TimeMs {
        self.time.get()
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

    /// Records above this may still be asked for by a peer: the log keeps them.
    #[must_use]
    pub fn retain_floor(&self) -> Version {
        self.links.iter().map(|link| link.received).fold(self.committed, Version::min)
    }

    /// This member's own log moved. O(1); for a chain of one this is the whole commit path.
    pub fn handle_progress(&mut self, now: Now, progress: LogProgress) {
        let LogProgress { appended, flushed, synced } = progress;
        assert!(invariants::watermarks_ordered(synced, flushed, appended), "{progress:?}");
        if self.has_failed {
            return; // what it says of itself is worth nothing any more
        }
        self.now = now;
        // A log that was just cut may still tell of what it lost.
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
            // Any member answers, in whatever epoch it is.
            Body::Probe => self.send(frame.header.from, Body::ProbeReply { epoch: frame.header.epoch }),
            Body::ProbeReply { epoch } => self.handle_probe_reply(frame.header.from, *epoch),
            Body::Align { entry, donor, base, cut } => self.handle_align(entry, *donor, *base, *cut),
            _ if !self.admits(&frame.header) => {}
            Body::Append { after, last, upstream, time, records: _ } => {
                return self.handle_append(frame.header.from, *after, *last, (*upstream, *time));
            }
            Body::Watermark { sent, upstream, time } => {
                self.handle_watermark(frame.header.from, *sent, (*upstream, *time));
            }
            Body::Ack { received, committed } => self.handle_ack(frame.header.from, *received, *committed),
            Body::ReplayWanted { after } => self.handle_replay_wanted(frame.header.from, *after),
            Body::Gone { after } => self.handle_gone(frame.header.from, *after),
            Body::TransferWanted { base, cursor } => self.handle_transfer_wanted(frame.header.from, *base, *cursor),
            Body::Transfer { base, cursor, next, read_version, .. } => {
                return self.handle_transfer(frame.header.from, *base, (*cursor, *next), *read_version);
            }
            _ => {} // for a manager or a front-end
        }
        FrameVerdict::Nothing
    }

    /// Whether a chain frame is of this epoch and of its sender's present boot; if of another epoch, says so.
    fn admits(&mut self, header: &Header) -> bool {
        if header.epoch < self.promised {
            self.send_entry(header.from);
            return false;
        }
        if header.epoch > self.promised {
            // The lower side refreshes, on every rejection, and from the manager too: the peer may know no more.
            self.send(header.from, Body::EntryWanted);
            return false;
        }
        let member = self.entry.as_ref().and_then(|entry| entry.member(header.from));
        let known = member.is_some_and(|member| member.boot == header.boot);
        if !known {
            // A late frame of a former boot, or a syncing member of a newer revision, whose telling was lost.
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

    /// When `handle_timeout` is wanted next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoMs> {
        let links = self.links.iter().filter_map(|link| self.link_deadline(link));
        let suspicions = self.links.iter().filter_map(|link| self.suspicion_at(link));
        links.chain(suspicions).chain(self.wake_at).min()
    }

    /// Time passed: sends again what was not answered, tells chain time, asks for a missing entry.
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        self.retransmit();
        self.suspect();
        if self.wake_at.is_some_and(|at| at <= now.mono) {
            self.wake();
        }
    }

    fn member_node(&self, from: NodeId) -> bool {
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

    /// When a write of its epoch counts as kept.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.entry.as_ref().map_or(self.config.durability, |entry| entry.durability)
    }

    fn header(&self) -> Header {
        let ReplicaConfig { node, boot, range, .. } = self.config;
        Header { from: node, boot, range, epoch: self.promised }
    }

    fn frame(&self, body: Body<'static>) -> Frame<'static> {
        Frame { header: self.header(), body }
    }

    fn send(&mut self, to: NodeId, body: Body<'static>) {
        let frame = self.frame(body);
        self.outputs.push_back(ReplicaOutput::Send { to, frame });
    }

    fn send_manager(&mut self, body: Body<'static>) {
        let frame = self.frame(body);
        self.outputs.push_back(ReplicaOutput::SendManager { frame });
    }

    fn send_entry(&mut self, to: NodeId) {
        if let Some(entry) = self.entry.clone() {
            self.send(to, Body::Entry(entry));
        }
    }

    /// Cuts the log: what is above `after` was never committed.
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
