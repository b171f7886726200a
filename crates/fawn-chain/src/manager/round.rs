//! One round of the handshake for one range, on the manager: members asked, reports, choice of the donor.
use super::SUSPICION_LEAVES;
use crate::map::{Activation, ChainState, LastActive, Member, MemberRole, RangeEntry};
use crate::message::Report;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, MonoMs, NodeId, TimeMs, Version};

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
    pub(super) asked: Vec<NodeId>,
    pub(super) reports: BTreeMap<NodeId, (BootId, Report)>,
    /// Members that were asked and have stopped, but cannot be used in their current boots.
    pub(super) gone: BTreeSet<NodeId>,
    pub(super) equal: BTreeSet<NodeId>,
    pub(super) decision: Option<Decision>,
}

/// The decision derived from the reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    pub(super) donor: NodeId,
    pub(super) base: Version,
    pub(super) time: TimeMs,
    /// The entry with the chosen members.
    pub(super) entry: RangeEntry,
    /// The part of each member's log to keep, by its last version.
    pub(super) cuts: BTreeMap<NodeId, Version>,
    /// Acked writes may be missing: only rebooted members are left, in a mode that acks before it syncs.
    pub(super) possible_loss: bool,
}

/// Conditions of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The ring's chain, which determines the order of members.
    pub(super) desired: &'a [NodeId],
    /// Members that did not become equal in an earlier round of this range: excluded, unless no other member can
    /// donate.
    pub(super) excluded: &'a BTreeSet<NodeId>,
    /// Members that are excluded as long as two others remain.
    pub(super) suspected: &'a BTreeSet<NodeId>,
    /// Whether all members had time to report.
    pub(super) waited: bool,
    /// Whether all had the longer time that a rebooted donor requires where acks are not synced.
    pub(super) waited_long: bool,
}

impl Round {
    pub(super) fn new(entry: &RangeEntry, now: MonoMs) -> Self {
        Self {
            stage: Stage::Committing,
            stage_since: now,
            resend_at: now,
            asked: entry.serving().map(|member| member.node).collect(),
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

    /// The decision on donor and members, if the reports suffice.
    pub(super) fn decide(&self, entry: &RangeEntry, rules: Rules<'_>) -> Option<Decision> {
        let complete = self.asked.iter().all(|node| self.reports.contains_key(node) || self.gone.contains(node));
        if !complete && !rules.waited {
            return None;
        }
        let (donors, possible_loss) = self.donors(entry, rules, complete)?;
        // The greatest log within the history; an earlier activation discarded everything else in a log.
        let effective = |node: &NodeId| self.reports.get(node).map(|(_, report)| entry.common_point(report.last));
        let donor = donors.iter().copied().max_by_key(|node| {
            let is_left_out = rules.excluded.contains(node) || rules.suspected.contains(node);
            (effective(node), !is_left_out, core::cmp::Reverse(*node))
        })?;
        let base = effective(&donor)?;
        let in_time = |node: &NodeId| *node == donor || !rules.excluded.contains(node);
        let trusted = |node: &NodeId| in_time(node) && (*node == donor || !rules.suspected.contains(node));
        let has_enough = self.reports.keys().filter(|node| trusted(node)).count() >= SUSPICION_LEAVES;
        let mut members: Vec<Member> = self
            .reports
            .iter()
            .filter(|(node, _)| if has_enough { trusted(node) } else { in_time(node) })
            .map(|(node, (boot, _))| Member { node: *node, boot: *boot, role: MemberRole::Serving })
            .collect();
        let place = |node: NodeId| rules.desired.iter().position(|wanted| *wanted == node).unwrap_or(usize::MAX);
        members.sort_by_key(|member| (place(member.node), member.node));
        let cuts =
            members.iter().filter_map(|member| Some((member.node, effective(&member.node)?.min(base)))).collect();
        let time = self.reports.values().map(|(_, report)| report.time).max().unwrap_or_default().max(entry.time);
        let serving = |node| members.iter().any(|member| member.node == node);
        let syncing: Vec<Member> = entry.syncing().filter(|member| !serving(member.node)).copied().collect();
        let mut entry = entry.clone();
        entry.members = members.iter().copied().chain(syncing).collect();
        Some(Decision { donor, base, time, entry, cuts, possible_loss })
    }

    /// The members that may donate, and whether acked writes may then be missing [replication.md §2.2].
    fn donors(&self, entry: &RangeEntry, rules: Rules<'_>, complete: bool) -> Option<(Vec<NodeId>, bool)> {
        let Some(last) = &entry.last_active else {
            // Never active, so nothing was ever acked. Wait for all members that can report, then continue with those
            // that did.
            let ready = complete || rules.waited_long;
            return (ready && !self.reports.is_empty()).then(|| (self.reports.keys().copied().collect(), false));
        };
        let base = entry.history.last().map_or(Version::ZERO, |activation| activation.base);
        let mut unrebooted = Vec::new();
        let mut rebooted = Vec::new();
        for member in &last.members {
            let Some((boot, report)) = self.reports.get(&member.node) else { continue };
            if entry.common_point(report.last) < base {
                continue; // Its disk was changed: it had synced the base before it served.
            }
            // A clean shutdown and restart counts as running throughout: the log lost nothing.
            let is_unbroken = *boot == member.boot || report.continues == Some(member.boot);
            if is_unbroken { unrebooted.push(member.node) } else { rebooted.push(member.node) }
        }
        if last.durability == Durability::Sync {
            unrebooted.extend(rebooted);
            return (!unrebooted.is_empty()).then_some((unrebooted, false));
        }
        if !unrebooted.is_empty() {
            return Some((unrebooted, false));
        }
        let all_back = last.members.iter().all(|member| self.reports.contains_key(&member.node));
        (!rebooted.is_empty() && (all_back || rules.waited_long)).then_some((rebooted, true))
    }

    /// Whether this member, in this boot, still has to report that it is equal to the donor.
    pub(super) fn is_awaited(&self, node: NodeId, boot: BootId) -> bool {
        let Some(decision) = &self.decision else { return false };
        let there = decision.entry.serving().any(|member| member.node == node && member.boot == boot);
        there && decision.donor != node && !self.equal.contains(&node)
    }

    /// Whether all chosen members are equal.
    pub(super) fn all_equal(&self) -> bool {
        let Some(decision) = &self.decision else { return false };
        decision.entry.serving().all(|member| self.equal.contains(&member.node))
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
