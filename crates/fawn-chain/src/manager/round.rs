//! One round of the handshake for one range, on the manager: its members, their reports, choice of the donor.
use super::SUSPICION_LEAVES;
use crate::map::{Activation, ChainMember, ChainState, LastActive, MemberRole, RangeEntry};
use crate::message::MemberReport;
use crate::ring::CHAIN_MEMBERS_MAX;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, MemberId, MonoMs, TimeMs, Version};

/// Stage of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// `Prepare` is proposed, not committed.
    Committing,
    /// Members promise and report.
    Reporting,
    /// Members make their logs equal to the donor's.
    Aligning,
    /// `Active` is proposed, not committed.
    Activating,
}

/// One handshake.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) stage: Stage,
    pub(super) stage_since: MonoMs,
    pub(super) resend_at: MonoMs,
    /// Serving members of the last active epoch, and members to promote.
    pub(super) asked: Vec<MemberId>,
    pub(super) reports: BTreeMap<MemberId, (BootId, MemberReport)>,
    /// Members that received the request and stopped, but cannot be used in their current boots.
    pub(super) gone: BTreeSet<MemberId>,
    pub(super) equal: BTreeSet<MemberId>,
    pub(super) decision: Option<RoundDecision>,
}

/// The decision derived from the reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RoundDecision {
    pub(super) donor: MemberId,
    pub(super) base: Version,
    pub(super) time: TimeMs,
    /// The entry with the chosen members.
    pub(super) entry: RangeEntry,
    /// The part of each member's log to keep, by its last version.
    pub(super) cuts: BTreeMap<MemberId, Version>,
    /// Members that reported, but are left out of the chain: suspected, or unreachable from the donor.
    pub(super) left_out: Vec<MemberId>,
    /// Acked writes may be missing: only rebooted members are left, in a mode that acks before it syncs.
    pub(super) possible_loss: bool,
}

/// The members that may donate.
#[derive(Clone, Debug)]
struct Donors {
    members: Vec<MemberId>,
    /// Members that ran throughout since they served, or were shut down gracefully.
    unbroken: Vec<MemberId>,
    /// Members that may all have lost records.
    possible_loss: bool,
}

/// Conditions of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The ring's chain, which determines the order of members.
    pub(super) desired: &'a [MemberId],
    /// Members that did not become equal in an earlier round of this range: excluded, unless no other member can
    /// donate.
    pub(super) excluded: &'a BTreeSet<MemberId>,
    /// Members that are excluded as long as two others remain.
    pub(super) suspected: &'a BTreeSet<MemberId>,
    /// Whether all members had time to report.
    pub(super) waited: bool,
    /// Whether all members had time to probe which of the others they reach.
    pub(super) waited_for_reach: bool,
    /// Whether all had the longer time that a rebooted donor requires where acks are not synced.
    pub(super) waited_long: bool,
}

/// Keeps some of the members, if they are as many as suspicion leaves.
fn keep_if_enough(members: &mut Vec<MemberId>, keeps: impl Fn(MemberId) -> bool) {
    if members.iter().filter(|id| keeps(**id)).count() >= SUSPICION_LEAVES {
        members.retain(|id| keeps(*id));
    }
}

impl Round {
    pub(super) fn new(entry: &RangeEntry, now: MonoMs) -> Self {
        Self {
            stage: Stage::Committing,
            stage_since: now,
            resend_at: now,
            asked: entry.serving().map(|member| member.id).collect(),
            reports: BTreeMap::new(),
            gone: BTreeSet::new(),
            equal: BTreeSet::new(),
            decision: None,
        }
    }

    pub(super) fn enter(&mut self, stage: Stage, now: MonoMs) {
        self.stage = stage;
        self.stage_since = now;
        self.resend_at = now;
    }

    /// The donor and the members to be, once the reports allow a decision.
    pub(super) fn decide(&self, entry: &RangeEntry, rules: Rules<'_>) -> Option<RoundDecision> {
        let complete = self.asked.iter().all(|id| self.reports.contains_key(id) || self.gone.contains(id));
        if !complete && !rules.waited {
            return None;
        }
        let donors = self.donors(entry, rules, complete)?;
        let in_time = |id: &MemberId| !rules.excluded.contains(id);
        let candidates: Vec<MemberId> = self.reports.keys().copied().filter(in_time).collect();
        let meets_all = |id: &MemberId| candidates.iter().all(|other| other == id || self.is_reached(*id, *other));
        // Replies to probes may arrive shortly after the reports. Waiting for them avoids splitting a complete chain.
        if !rules.waited_for_reach && !candidates.iter().all(meets_all) {
            return None;
        }
        let donor = self.best_donor(entry, rules, &donors, &candidates)?;
        let base = self.log_of(entry, donor)?;
        let members = self.members_with(donor, rules, &candidates);
        let left_out = candidates.iter().copied().filter(|id| !members.contains(id)).collect();
        let serving = members.iter().filter_map(|id| {
            let (boot, _) = self.reports.get(id)?;
            Some(ChainMember { id: *id, boot: *boot, role: MemberRole::Serving })
        });
        let cuts = members.iter().filter_map(|id| Some((*id, self.log_of(entry, *id)?.min(base)))).collect();
        let time = self.reports.values().map(|(_, report)| report.time).max().unwrap_or_default().max(entry.time);
        let syncing = entry.syncing().filter(|member| !members.contains(&member.id)).copied();
        let members = serving.chain(syncing).collect();
        let entry = RangeEntry { members, ..entry.clone() };
        Some(RoundDecision { donor, base, time, entry, cuts, left_out, possible_loss: donors.possible_loss })
    }

    /// The end of a member's log within the history: an earlier activation discarded everything else.
    fn log_of(&self, entry: &RangeEntry, id: MemberId) -> Option<Version> {
        self.reports.get(&id).map(|(_, report)| entry.common_point(report.last))
    }

    /// Whether frames arrive in both directions between two members: one answered the other's probe.
    fn is_reached(&self, one: MemberId, other: MemberId) -> bool {
        let heard =
            |at: MemberId, from: MemberId| self.reports.get(&at).is_some_and(|(_, said)| said.reach.contains(&from));
        heard(one, other) || heard(other, one)
    }

    /// Ranks donors. Each holds all that is committed, so the one that makes the best chain is chosen. Where logs may
    /// have lost records, the longest log comes first.
    fn best_donor(
        &self,
        entry: &RangeEntry,
        rules: Rules<'_>,
        donors: &Donors,
        candidates: &[MemberId],
    ) -> Option<MemberId> {
        donors.members.iter().copied().max_by_key(|id| {
            let reached = candidates.iter().filter(|other| self.is_reached(*id, **other)).count();
            let log = self.log_of(entry, *id);
            let works = (
                !rules.excluded.contains(id),
                reached > 0,
                !rules.suspected.contains(id),
                donors.unbroken.contains(id),
                reached,
            );
            (donors.possible_loss.then_some(log), works, log, core::cmp::Reverse(*id))
        })
    }

    /// The members of the chain to be, in its order: as many as the donor can work with, but not fewer than suspicion
    /// leaves.
    fn members_with(&self, donor: MemberId, rules: Rules<'_>, candidates: &[MemberId]) -> Vec<MemberId> {
        let mut members: Vec<MemberId> = candidates.to_vec();
        if !members.contains(&donor) {
            members.push(donor); // Left out before, but no other member can donate.
        }
        let place = |id: MemberId| rules.desired.iter().position(|wanted| *wanted == id).unwrap_or(usize::MAX);
        members.sort_by_key(|id| (place(*id), *id));
        keep_if_enough(&mut members, |id| id == donor || self.is_reached(donor, id));
        // A link that is down explains a suspicion between its two ends: if they are not neighbours, both work.
        let is_explained = |id: MemberId| members.iter().any(|other| *other != id && !self.is_reached(id, *other));
        let parted = self.parted(&members);
        let explained: Vec<MemberId> =
            members.iter().copied().filter(|id| parted.is_some() && is_explained(*id)).collect();
        let is_trusted = |id| id == donor || !rules.suspected.contains(&id) || explained.contains(&id);
        keep_if_enough(&mut members, is_trusted);
        self.parted(&members).unwrap_or(members)
    }

    /// The first order of the members in which each reaches the next one, if there is such an order.
    fn parted(&self, members: &[MemberId]) -> Option<Vec<MemberId>> {
        // The search tries all orders, in the worst case.
        let mut chain = Vec::with_capacity(members.len());
        (members.len() <= CHAIN_MEMBERS_MAX && self.extend_chain(&mut chain, members)).then_some(chain)
    }

    fn extend_chain(&self, chain: &mut Vec<MemberId>, members: &[MemberId]) -> bool {
        if chain.len() == members.len() {
            return true;
        }
        members.iter().any(|id| {
            let follows = chain.last().is_none_or(|last| self.is_reached(*last, *id));
            if chain.contains(id) || !follows {
                return false;
            }
            chain.push(*id);
            let is_whole = self.extend_chain(chain, members);
            if !is_whole {
                chain.pop();
            }
            is_whole
        })
    }

    /// The members that may donate, once that can be decided [replication.md §2.2].
    ///
    /// Every committed record is in the log of every serving member of the last active epoch, so any member that lost
    /// nothing may donate.
    fn donors(&self, entry: &RangeEntry, rules: Rules<'_>, complete: bool) -> Option<Donors> {
        let Some(last) = &entry.last_active else {
            // Never active, so nothing was ever acked. Wait for all members that can report, then continue with those
            // that did.
            let ready = complete || rules.waited_long;
            let members: Vec<MemberId> = self.reports.keys().copied().collect();
            return (ready && !members.is_empty()).then(|| Donors {
                unbroken: members.clone(),
                members,
                possible_loss: false,
            });
        };
        let base = entry.history.last().map_or(Version::ZERO, |activation| activation.base);
        let committed = self.reports.values().map(|(_, report)| report.committed).max().unwrap_or_default();
        let (mut whole, mut unbroken, mut lossy) = (Vec::new(), Vec::new(), Vec::new());
        for member in &last.members {
            let Some((boot, report)) = self.reports.get(&member.id) else { continue };
            let log = entry.common_point(report.last);
            let is_rebooted = *boot != member.boot;
            // Before the last epoch became active each member had promised it durably, and synced its base: a disk
            // without these is an empty one, or an older one.
            if log < base || is_rebooted && report.found < last.epoch {
                continue;
            }
            // A clean shutdown and restart counts as running throughout: the log lost nothing.
            let is_unbroken = !is_rebooted || report.continues == Some(member.boot);
            if is_unbroken || last.durability == Durability::Sync && log >= committed {
                whole.push(member.id);
            } else {
                lossy.push(member.id);
            }
            if is_unbroken {
                unbroken.push(member.id);
            }
        }
        if !whole.is_empty() {
            return Some(Donors { members: whole, unbroken, possible_loss: false });
        }
        // Under `sync`, a log that lacks records known to be committed is not trusted: an operator must decide.
        let all_back = last.members.iter().all(|member| self.reports.contains_key(&member.id));
        let may_lose = last.durability != Durability::Sync && !lossy.is_empty() && (all_back || rules.waited_long);
        may_lose.then_some(Donors { members: lossy, unbroken, possible_loss: true })
    }

    /// Whether this member, in this boot, still has to report that it is equal to the donor.
    pub(super) fn is_awaited(&self, id: MemberId, boot: BootId) -> bool {
        let Some(decision) = &self.decision else { return false };
        let there = decision.entry.serving().any(|member| member.id == id && member.boot == boot);
        there && decision.donor != id && !self.equal.contains(&id)
    }

    /// Whether all chosen members are equal.
    pub(super) fn all_equal(&self) -> bool {
        let Some(decision) = &self.decision else { return false };
        decision.entry.serving().all(|member| self.equal.contains(&member.id))
    }

    /// The entry to activate.
    pub(super) fn active_entry(&self) -> Option<RangeEntry> {
        let decision = self.decision.as_ref()?;
        assert!(self.all_equal(), "all acknowledge equality before Active is offered");
        let mut entry = decision.entry.clone();
        entry.state = ChainState::Active;
        entry.base = decision.base;
        entry.time = decision.time;
        let (epoch, durability) = (entry.epoch, entry.durability);
        entry.last_active = Some(LastActive { epoch, durability, members: entry.serving().copied().collect() });
        entry.remember(Activation { epoch: entry.epoch, base: decision.base });
        Some(entry)
    }
}
