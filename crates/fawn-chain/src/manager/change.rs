//! Chain changes: starts the handshakes that the planner requests, and drives them until the chain is active.
use super::planner::{self, Change, Health};
use super::round::{Round, Rules, Stage};
use super::{ChangedRanges, Consensus, Manager, ManagerOutput};
use crate::map::{ChainMember, ChainState, MemberRole};
use crate::message::Body;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use fawn_types::{BootId, Epoch, MemberId, RangeId, Version};

impl<C: Consensus> Manager<C> {
    /// Starts the changes that the planner requests, where no handshake is in flight.
    pub(super) fn plan(&mut self, scope: ChangedRanges) {
        // After its own start the manager first waits for heartbeats; otherwise it would treat every member as dead.
        let started_at = self.started_at.unwrap_or(self.health.now);
        let settling = self.health.now.ms_since(started_at) < self.options.dead_after_ms;
        // Joins and leaves are map changes, so the layout of the committed map is the draft's too.
        self.layout.refresh(&self.map);
        let entries = self.draft.ranges.iter().filter(|entry| scope.covers(entry.range));
        for change in planner::plan(entries, self.draft.durability, &self.layout, &self.health) {
            match change {
                Change::Reform { range, .. } if self.rounds.contains_key(&range) => {}
                Change::Reform { range, .. } if settling && self.only_unseen(range) => {}
                Change::Reform { range, promote } => self.reform(range, &promote),
                Change::AddSyncing { range, member: id, boot } => self.add_syncing(range, id, boot),
            }
        }
    }

    /// Whether the only defect of an active chain is a member that has not sent a heartbeat yet.
    fn only_unseen(&self, range: RangeId) -> bool {
        let Some(entry) = self.draft.range(range) else { return false };
        let is_seen = |member: &ChainMember| self.health.seen.contains_key(&member.id);
        let is_fine = |member: &ChainMember| self.health.boot(range, member.id) == Some(member.boot);
        entry.is_active() && entry.serving().all(|m| !is_seen(m) || is_fine(m)) && !entry.serving().all(is_seen)
    }

    /// Starts a handshake in a new epoch. A handshake in flight is superseded, and its epoch number is never used.
    pub(super) fn reform(&mut self, range: RangeId, promote: &[MemberId]) {
        let (now, durability, copies_min) = (self.health.now, self.durability, self.draft.copies_min());
        promote.iter().for_each(|id| self.health.hold_offs.end((range, *id), now));
        let Some(entry) = self.draft.range_mut(range) else { return };
        let Some(epoch) = entry.epoch.next() else { return }; // 2^28 epochs are used up: stays as it is
        let serving: Vec<MemberId> = match &entry.last_active {
            Some(last) => last.members.iter().map(|member| member.id).collect(),
            None => entry.serving().map(|member| member.id).collect(),
        };
        let others: Vec<ChainMember> = entry.members.iter().filter(|m| !serving.contains(&m.id)).copied().collect();
        let boot_of = |id| entry.member(id).map_or(BootId::default(), |member| member.boot);
        let mut members: Vec<ChainMember> =
            serving.iter().map(|&id| ChainMember { id, boot: boot_of(id), role: MemberRole::Serving }).collect();
        members.extend(others.into_iter().map(|mut member| {
            let serves = promote.contains(&member.id);
            member.role = if serves { MemberRole::Serving } else { MemberRole::Syncing };
            member
        }));
        entry.members = members;
        entry.epoch = epoch;
        entry.revision = 0;
        entry.state = ChainState::Preparing;
        entry.durability = durability;
        entry.copies_min = copies_min;
        self.rounds.insert(range, Round::new(entry, now));
        self.dirty = true;
    }

    fn add_syncing(&mut self, range: RangeId, id: MemberId, boot: BootId) {
        let Some(entry) = self.draft.range_mut(range) else { return };
        assert!(entry.is_active(), "the planner adds to active chains only");
        entry.members.retain(|member| member.id != id);
        entry.members.push(ChainMember { id, boot, role: MemberRole::Syncing });
        entry.revision += 1;
        self.dirty = true;
    }

    pub(super) fn step_round(&mut self, range: RangeId) {
        let Some(stage) = self.rounds.get(&range).map(|round| round.stage) else { return };
        match stage {
            Stage::Committing | Stage::Activating => {}
            Stage::Reporting => self.step_reporting(range),
            Stage::Aligning => self.step_aligning(range),
        }
    }

    fn step_reporting(&mut self, range: RangeId) {
        let (Some(entry), Some(round)) = (self.draft.range(range).cloned(), self.rounds.get_mut(&range)) else {
            return;
        };
        let now = self.health.now;
        let waited_ms = now.ms_since(round.stage_since);
        let rules = Rules {
            desired: self.layout.chain(&entry),
            excluded: self.excluded.get(&range).unwrap_or(const { &BTreeSet::new() }),
            suspected: &self.health.hold_offs.of(range, now),
            waited: waited_ms >= self.options.report_wait_ms,
            waited_for_reach: waited_ms >= self.options.reach_wait_ms,
            waited_long: waited_ms >= self.options.rebooted_wait_ms,
        };
        if let Some(decision) = round.decide(&entry, rules) {
            let left_out = decision.left_out.clone();
            round.decision = Some(decision);
            round.enter(Stage::Aligning, now);
            // Promoted immediately, they would be left out again immediately.
            left_out.into_iter().for_each(|id| self.hold_off(range, id));
            return self.step_aligning(range);
        }
        if now >= round.resend_at {
            round.resend_at = now.plus_ms(self.options.resend_ms);
            let silent: Vec<MemberId> =
                round.asked.iter().copied().filter(|id| !round.reports.contains_key(id)).collect();
            silent.into_iter().for_each(|id| self.send_entry(id, entry.clone()));
        }
    }

    fn step_aligning(&mut self, range: RangeId) {
        let now = self.health.now;
        let Some(round) = self.rounds.get_mut(&range) else { return };
        if round.all_equal() {
            round.enter(Stage::Activating, now);
            let possible_loss = round.decision.as_ref().is_some_and(|decision| decision.possible_loss);
            if let (Some(active), Some(entry)) = (round.active_entry(), self.draft.range_mut(range)) {
                if possible_loss {
                    // Before the activation is proposed: no later manager can tell the loss from the committed map.
                    let (epoch, base) = (active.epoch, active.base);
                    self.outputs.push_back(ManagerOutput::PossibleLoss { range, epoch, base });
                }
                *entry = active;
                self.dirty = true;
            }
            return;
        }
        let Some(decision) = &round.decision else { return };
        let late: Vec<MemberId> =
            decision.entry.serving().map(|member| member.id).filter(|id| !round.equal.contains(id)).collect();
        if now.ms_since(round.stage_since) >= self.options.align_wait_ms {
            late.iter().for_each(|id| self.hold_off(range, *id));
            self.excluded.entry(range).or_default().extend(late);
            return self.reform(range, &[]);
        }
        if now < round.resend_at {
            return;
        }
        round.resend_at = now.plus_ms(self.options.resend_ms);
        let align = |id: &MemberId| {
            let (entry, donor, base) = (decision.entry.clone(), decision.donor, decision.base);
            let cut = decision.cuts.get(id).copied().unwrap_or(Version::ZERO);
            (*id, Body::Align { entry, donor, base, cut })
        };
        let frames: Vec<_> = late.iter().map(align).collect();
        for (to, body) in frames {
            let epoch = self.draft.range(range).map_or(Epoch::default(), |entry| entry.epoch);
            self.send(to, range, epoch, body);
        }
    }
}
