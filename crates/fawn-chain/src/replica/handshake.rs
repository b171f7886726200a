//! Handshake on a member [replication.md §2.2]: promise, stop, report, align, prove equality, serve.
use super::link::{LinkKind, ReplicaLink};
use super::{Alarm, Replica, ReplicaOutput, ReplicaPhase, Role};
use crate::invariants;
use crate::map::{ChainState, MemberRole, RangeEntry};
use crate::message::{Body, MemberReport};
use alloc::vec::Vec;
use fawn_types::{Durability, Epoch, MemberId, MonoMs, Now, Version};

/// A link with nothing else to send carries a watermark per heartbeat. After so many without one, a syncing member assumes that its
/// predecessor has no link to it any more. An idle chain of one has no heartbeats, and sends a watermark as its reply.
const SILENT_HEARTBEATS: u64 = 6;

impl Replica {
    /// Handles a range entry from the manager or from a peer that noticed an old epoch here. Both only forward entries
    /// that the manager committed, so both are trusted.
    pub fn handle_entry(&mut self, now: Now, entry: &RangeEntry) {
        assert!(entry.range == self.config.range, "entries are routed by range");
        self.now = now;
        if entry.epoch < self.promised {
            // Either the manager superseded this epoch, or its map is older than this promise. In the second case it
            // has to choose an epoch above the promise.
            if let Some(newest) = self.entry.clone() {
                self.send_manager(Body::PromisedAbove(newest));
            }
            return;
        }
        match entry.state {
            ChainState::Preparing if entry.epoch > self.promised => self.promise(entry),
            ChainState::Preparing if self.phase == ReplicaPhase::Prepared { durable: true } => self.report(),
            ChainState::Preparing if self.phase == ReplicaPhase::Idle => self.promise(entry),
            ChainState::Preparing => {}
            ChainState::Active => self.handle_active(entry),
        }
    }

    /// Stops the old epoch at once and persists the promise; the report waits for that.
    fn promise(&mut self, entry: &RangeEntry) {
        assert!(invariants::epochs_only_grow(self.promised, entry.epoch));
        self.stop();
        self.promised = entry.epoch;
        self.entry = Some(entry.clone());
        self.phase = ReplicaPhase::Prepared { durable: false };
        self.reach.clear();
        self.probe();
        self.persist();
    }

    /// Probes which members of the new chain are reachable: a donor that no other member reaches is of little use.
    fn probe(&mut self) {
        let Some(entry) = &self.entry else { return };
        let silent = |id: &MemberId| *id != self.config.id && !self.reach.contains(id);
        let silent: Vec<MemberId> = entry.serving().map(|member| member.id).filter(silent).collect();
        silent.into_iter().for_each(|id| self.send(id, Body::Probe));
    }

    pub(super) fn handle_probe_reply(&mut self, from: MemberId, epoch: Epoch) {
        let ReplicaPhase::Prepared { durable } = self.phase else { return };
        if epoch != self.promised || !self.member_node(from) || self.reach.contains(&from) {
            return;
        }
        self.reach.push(from);
        if durable {
            self.report();
        }
    }

    pub(super) fn stop(&mut self) {
        if matches!(self.phase, ReplicaPhase::Serving { .. }) {
            self.outputs.push_back(ReplicaOutput::Stopped);
        }
        self.phase = ReplicaPhase::Idle;
        self.next = None;
        self.time.end_epoch();
        self.predecessor = None;
        self.links.clear();
        self.ack_due = false;
        self.gap_asked = None;
        self.epoch_asked_at = None;
        self.upstream = Version::ZERO;
        self.upstream_at = None;
        self.wake_in(self.config.options.retransmit_ms);
    }

    pub(super) fn persist(&mut self) {
        self.persist_number += 1;
        let state = self.persisted(None);
        self.outputs.push_back(ReplicaOutput::Persist { number: self.persist_number, state });
    }

    /// The state of `Persist { number }` is durable.
    pub fn handle_persisted(&mut self, now: Now, number: u64) {
        assert!(number <= self.persist_number, "persisted {number} of {}", self.persist_number);
        self.now = now;
        if number == self.persist_number && self.phase == (ReplicaPhase::Prepared { durable: false }) {
            self.phase = ReplicaPhase::Prepared { durable: true };
            self.report();
        }
    }

    fn report(&mut self) {
        if self.transfer.is_some() {
            return self.send_manager(Body::CannotAlign); // An incomplete copy cannot be aligned.
        }
        let Self { last, committed, .. } = *self;
        let time = self.time();
        let (continues, found, reach) = (self.continues(), self.found, self.reach.clone());
        let report = MemberReport { last, committed, time, continues, found, reach };
        self.send_manager(Body::Report(report));
    }

    /// Handles the manager's choice of the donor: cuts off differing records and requests missing ones.
    pub(super) fn handle_align(&mut self, entry: &RangeEntry, donor: MemberId, base: Version, cut: Version) {
        if entry.epoch != self.promised || entry.range != self.config.range {
            return; // Superseded.
        }
        match self.phase {
            ReplicaPhase::Prepared { durable: true } => {}
            ReplicaPhase::Equal { base: held } if held == base => return self.send_manager(Body::Equal { base }),
            _ => return,
        }
        let mine = entry.member(self.config.id).is_some_and(|member| member.boot == self.config.boot);
        let cut = cut.min(self.last);
        if !mine {
            return;
        }
        if self.transfer.is_some() {
            return self.send_manager(Body::CannotAlign);
        }
        if !invariants::committed_survives(self.committed, cut) {
            if entry.last_active.as_ref().is_none_or(|last| last.durability == Durability::Sync) {
                // Under `sync`, acked writes are never undone: one copy fewer is better than a lost write.
                let alarm = Alarm::CutBelowCommitted { cut, committed: self.committed };
                return self.outputs.push_back(ReplicaOutput::Alarm(alarm));
            }
            // All members that knew of the commit lost power. Committed records cannot be cut off, only replaced by a
            // full resync.
            return self.send_manager(Body::CannotAlign);
        }
        self.entry = Some(entry.clone());
        if cut < self.last {
            self.rollback(cut);
        }
        self.phase = ReplicaPhase::Aligning { donor, base };
        if donor != self.config.id {
            self.predecessor = Some(donor);
            if self.last < base {
                self.ask_replay();
            }
        }
        self.wake_in(self.config.options.retransmit_ms);
        self.try_equal();
    }

    /// Reports equality once it is synced, in every durability mode: a member that served epoch e durably holds
    /// base(e), which [`RangeEntry::common_point`] relies on.
    pub(super) fn try_equal(&mut self) {
        let ReplicaPhase::Aligning { base, .. } = self.phase else { return };
        if self.last != base {
            return;
        }
        if self.own.synced < base {
            self.outputs.push_back(ReplicaOutput::Sync);
            return;
        }
        self.phase = ReplicaPhase::Equal { base };
        self.send_manager(Body::Equal { base });
    }

    /// Handles the activation of a chain.
    fn handle_active(&mut self, entry: &RangeEntry) {
        let news = self.entry.as_ref().is_none_or(|held| held.age() < entry.age());
        let member = entry.member(self.config.id).filter(|member| member.boot == self.config.boot);
        let role = member.map(|member| member.role);
        let begun = self.promised == entry.epoch;
        match (role, self.phase) {
            (Some(MemberRole::Serving), ReplicaPhase::Equal { base }) if begun && base == entry.base => {
                self.serve(entry)
            }
            (Some(MemberRole::Serving), ReplicaPhase::Serving { .. }) if begun => self.revise(entry, news),
            (Some(MemberRole::Syncing), ReplicaPhase::Syncing) if begun => self.revise(entry, news),
            (Some(MemberRole::Syncing), _) => self.sync_behind(entry),
            // Dropped, or of another boot: no role until the manager assigns one.
            _ if !begun || news => self.step_aside(entry),
            _ => {}
        }
    }

    fn step_aside(&mut self, entry: &RangeEntry) {
        self.stop();
        self.promised = entry.epoch;
        self.entry = Some(entry.clone());
        self.persist();
    }

    /// Handles another revision of the epoch: only syncing members changed.
    fn revise(&mut self, entry: &RangeEntry, news: bool) {
        if news {
            self.entry = Some(entry.clone());
            let syncs = |to| entry.syncing().any(|member| member.id == to);
            self.links.retain(|link| link.kind == LinkKind::Successor || syncs(link.to));
            self.persist();
        }
    }

    /// Starts serving. The entry is also persisted, without waiting: a member that forgets it has rebooted, and is then
    /// not assumed to be equal anyway.
    pub(super) fn serve(&mut self, entry: &RangeEntry) {
        assert!(invariants::equal_at_activation(self.last, entry.base));
        let chain: Vec<MemberId> = entry.serving().map(|member| member.id).collect();
        let place = chain.iter().position(|id| *id == self.config.id);
        let Some(place) = place else { return };
        let role = match (place, place + 1 == chain.len()) {
            (0, true) => Role::Single,
            (0, false) => Role::Head,
            (_, true) => Role::Tail,
            (_, false) => Role::Middle,
        };
        self.stop();
        self.mark = None; // From now on the chain relies on this boot.
        self.phase = ReplicaPhase::Serving { role };
        self.is_short = !entry.takes_writes();
        self.log_durability = entry.durability;
        self.entry = Some(entry.clone());
        // Chain time continues from the greatest value that any member had seen.
        self.time.begin_epoch(entry.time, entry.base, self.now.mono);
        self.upstream = entry.base;
        self.predecessor = place.checked_sub(1).map(|above| chain[above]);
        self.next = if place == 0 { self.first_after(self.last) } else { None };
        self.bound_assign();
        let successor = chain.get(place + 1);
        self.links.extend(successor.map(|to| ReplicaLink::new(*to, LinkKind::Successor, entry.base, self.now.mono)));
        self.wake_at = (role == Role::Head).then_some(self.now.mono);
        // Every serving member has synced everything through the base, so it is committed.
        if self.committed < entry.base {
            self.commit(entry.base);
        }
        self.persist();
        self.outputs.push_back(ReplicaOutput::NowServing { epoch: entry.epoch });
    }

    /// Receives records as a syncing member, from the last point that this copy shares with the chain's history.
    fn sync_behind(&mut self, entry: &RangeEntry) {
        self.stop();
        self.mark = None; // The chain continued without this member.
        self.promised = entry.epoch;
        self.entry = Some(entry.clone());
        let cut = entry.common_point(self.last);
        let fresh = cut == Version::ZERO; // The log is older than the remembered history: full resync, never merged.
        let survives = invariants::committed_survives(self.committed, cut);
        let has_copy = self.transfer.is_none_or(|transfer| !transfer.has_discarded());
        if self.log_durability == Durability::Sync && has_copy && !fresh && !survives {
            let alarm = Alarm::CutBelowCommitted { cut, committed: self.committed };
            self.outputs.push_back(ReplicaOutput::Alarm(alarm));
            return;
        }
        if survives {
            self.log_durability = entry.durability;
        }
        self.phase = ReplicaPhase::Syncing;
        self.predecessor = entry.tail();
        self.persist();
        if self.transfer.is_some() {
            self.resume_transfer(cut == self.last);
        } else if !survives {
            self.want_transfer();
        } else {
            if cut < self.last {
                self.rollback(cut);
            }
            self.ask_replay();
        }
        self.wake_in(self.config.options.retransmit_ms);
    }

    pub(super) fn wake_in(&mut self, ms: u64) {
        self.wake_at = Some(self.now.mono.plus_ms(ms));
    }

    /// Timer actions that do not depend on received frames.
    pub(super) fn wake(&mut self) {
        let pause_ms = self.config.options.retransmit_ms;
        match self.phase {
            _ if self.has_failed => return self.say_failed(),
            ReplicaPhase::Serving { role: Role::Head } => return self.beat(),
            ReplicaPhase::Serving { .. } => return self.wake_at = None,
            ReplicaPhase::Aligning { base, donor } if donor != self.config.id && self.last < base => self.ask_replay(),
            ReplicaPhase::Aligning { .. } => self.try_equal(),
            ReplicaPhase::Syncing => {
                // Also the only way to reach a tail that restarted its link, and to notify the manager again.
                self.wake_at = None;
                self.wake_transfer();
                // The predecessor may have removed its link, and its refusal may be lost.
                let silent_ms = self.config.options.heartbeat_ms.saturating_mul(SILENT_HEARTBEATS);
                let is_sent = self.upstream_at.is_some_and(|at| self.now.mono.ms_since(at) < silent_ms);
                if !is_sent || self.last < self.upstream {
                    self.ask_replay();
                } else {
                    self.try_caught_up();
                }
                if self.wake_at.is_none() {
                    self.wake_in(pause_ms);
                }
                return;
            }
            ReplicaPhase::Prepared { .. } => self.probe(),
            ReplicaPhase::Idle | ReplicaPhase::Equal { .. } => {}
        }
        if !matches!(self.phase, ReplicaPhase::Aligning { .. }) {
            self.send_manager(Body::EntryWanted);
        }
        self.wake_at = Some(self.now.mono.plus_ms(pause_ms.saturating_mul(2)).max(MonoMs(1)));
    }
}
