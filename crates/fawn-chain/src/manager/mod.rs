//! Owns the manager: the cluster map, changed only through consensus, and the handshakes that change chains.
mod consensus;
pub mod planner;
mod round;

pub use consensus::{Consensus, ConsensusEvent, FileConsensus};

use crate::map::{ChainState, ClusterMap, Member, MemberRole, RangeEntry, encode_map};
use crate::message::{Body, Frame, Header};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, Epoch, NodeId, RangeId, TimeMs, Version};
use planner::{Change, Health};
use round::{Round, Rules, Stage};

/// Nodes that are told of an activation because they asked before it; those beyond ask again.
const CURIOUS_MAX: usize = 1 << 14;

/// Intervals of the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerOptions {
    /// How long a handshake waits for reports before it goes on without the silent: nobody waits for the dead. Until
    /// leases exist it must outlast a live member's silences: one that was left out may still answer reads.
    pub report_wait_ms: u64,
    /// How long it waits before a rebooted member may donate in a mode that acks before it syncs, and before a new
    /// range starts without all of its members.
    pub rebooted_wait_ms: u64,
    /// How long members may take to become equal before a new round leaves the late ones out.
    pub align_wait_ms: u64,
    /// Unanswered frames are repeated this often.
    pub resend_ms: u64,
    /// A machine without beats for so long is dropped. Leases will add their own wait.
    pub dead_after_ms: u64,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            report_wait_ms: 1000,
            rebooted_wait_ms: 5_000,
            align_wait_ms: 3_000,
            resend_ms: 100,
            dead_after_ms: 2_000,
        }
    }
}

/// An effect of the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerOutput {
    /// Have these bytes on the medium, then call `handle_persisted(revision)`. Nothing that follows from this map is
    /// given out before.
    Persist {
        /// To give back.
        revision: u64,
        /// The encoded map.
        image: Vec<u8>,
    },
    /// A frame to a member; may be lost, is repeated.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame<'static>,
    },
    /// A range serves again.
    Activated {
        /// Which.
        range: RangeId,
        /// Since.
        epoch: Epoch,
        /// From here.
        base: Version,
        /// Acked writes may be missing: log it, loudly. Never under `sync`.
        possible_loss: bool,
    },
}

/// What is known of machines, by their beats.
#[derive(Clone, Debug, Default)]
struct Nodes {
    seen: BTreeMap<NodeId, (BootId, TimeMs)>,
    caught_up: BTreeSet<(RangeId, NodeId, BootId)>,
    now: TimeMs,
    dead_after_ms: u64,
}

impl Health for Nodes {
    fn boot(&self, node: NodeId) -> Option<BootId> {
        let (boot, at) = self.seen.get(&node)?;
        (self.now.ms_since(*at) < self.dead_after_ms).then_some(*boot)
    }

    fn caught_up(&self, range: RangeId, node: NodeId) -> bool {
        self.seen.get(&node).is_some_and(|(boot, _)| self.caught_up.contains(&(range, node, *boot)))
    }
}

/// The manager.
#[derive(Clone, Debug)]
pub struct Manager<C> {
    node: NodeId,
    boot: BootId,
    options: ManagerOptions,
    consensus: C,
    /// As committed: the only thing anybody is told.
    map: ClusterMap,
    /// With changes that are not offered or not committed yet.
    draft: ClusterMap,
    dirty: bool,
    offered: Option<ClusterMap>,
    nodes: Nodes,
    rounds: BTreeMap<RangeId, Round>,
    excluded: BTreeMap<RangeId, BTreeSet<NodeId>>,
    /// Who asked for the entry of a range that was not active: told once it is, instead of asking again and again.
    curious: BTreeSet<(RangeId, NodeId)>,
    started_at: Option<TimeMs>,
    outputs: VecDeque<ManagerOutput>,
}

impl<C: Consensus> Manager<C> {
    /// From the committed map, or from a new one (`revision` 0), which is committed first.
    #[must_use]
    pub fn new(node: NodeId, boot: BootId, options: ManagerOptions, consensus: C, map: ClusterMap) -> Self {
        let nodes = Nodes { dead_after_ms: options.dead_after_ms, ..Nodes::default() };
        Self {
            node,
            boot,
            options,
            consensus,
            draft: map.clone(),
            dirty: map.revision == 0,
            map,
            offered: None,
            nodes,
            rounds: BTreeMap::new(),
            excluded: BTreeMap::new(),
            curious: BTreeSet::new(),
            started_at: None,
            outputs: VecDeque::new(),
        }
    }

    /// The committed map.
    #[must_use]
    pub const fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// A frame from a machine.
    pub fn handle_frame(&mut self, now: TimeMs, frame: &Frame<'_>) {
        self.begin(now);
        let Header { from, boot, range, epoch } = frame.header;
        match &frame.body {
            Body::Hello => self.handle_hello(from, boot),
            Body::EntryWanted => self.handle_entry_wanted(from, range),
            Body::Report(report) => {
                self.note_boot(from, boot);
                if let Some(round) = self.round_of(range, epoch)
                    && round.stage == Stage::Reporting
                    && round.asked.contains(&from)
                {
                    round.reports.entry(from).or_insert((boot, *report));
                }
            }
            Body::Equal { base } => self.handle_equal(from, boot, range, epoch, *base),
            Body::CaughtUp { .. } if self.map.range(range).is_some_and(|entry| entry.epoch == epoch) => {
                self.nodes.caught_up.insert((range, from, boot));
            }
            _ => {}
        }
        self.advance();
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: TimeMs) {
        self.begin(now);
        self.advance();
    }

    /// The bytes of `Persist { revision }` are durable.
    pub fn handle_persisted(&mut self, now: TimeMs, revision: u64) {
        self.begin(now);
        self.consensus.handle_persisted(revision);
        self.advance();
    }

    /// The next effect; poll until `None`.
    pub fn poll_output(&mut self) -> Option<ManagerOutput> {
        if let Some((revision, image)) = self.consensus.poll_persist() {
            return Some(ManagerOutput::Persist { revision, image });
        }
        self.outputs.pop_front()
    }

    /// When `handle_timeout` is wanted next: beats and repeats are judged this often.
    #[must_use]
    pub fn next_timeout(&self) -> TimeMs {
        self.nodes.now.plus_ms(self.options.resend_ms)
    }

    fn begin(&mut self, now: TimeMs) {
        let slept_ms = now.ms_since(self.nodes.now);
        if slept_ms > self.options.dead_after_ms / 2 {
            // It is called far more often than that: it slept, and beats may wait for it to be read. Only liveness is
            // judged by beats, so that much patience costs nothing but time.
            self.nodes.seen.values_mut().for_each(|(_, at)| *at = at.plus_ms(slept_ms));
        }
        self.nodes.now = self.nodes.now.max(now);
        self.started_at.get_or_insert(now);
    }

    fn round_of(&mut self, range: RangeId, epoch: Epoch) -> Option<&mut Round> {
        if self.draft.range(range)?.epoch != epoch {
            return None; // superseded: its number is burnt
        }
        self.rounds.get_mut(&range)
    }

    fn handle_hello(&mut self, from: NodeId, boot: BootId) {
        self.note_boot(from, boot);
        self.nodes.seen.insert(from, (boot, self.nodes.now));
    }

    /// A new boot makes what the former one said worthless: rounds it takes part in start over.
    fn note_boot(&mut self, from: NodeId, boot: BootId) {
        let former = self.nodes.seen.insert(from, (boot, self.nodes.now));
        if former.is_none_or(|(former, _)| former == boot) {
            return;
        }
        self.nodes.caught_up.retain(|(_, node, _)| *node != from);
        let stale = |round: &Round| round.reports.get(&from).is_some_and(|(reported, _)| *reported != boot);
        let ranges: Vec<RangeId> =
            self.rounds.iter().filter(|(_, round)| stale(round)).map(|(range, _)| *range).collect();
        for range in ranges {
            // While Active is being committed the planner sees the reboot afterwards.
            if self.rounds.get(&range).is_some_and(|round| round.stage != Stage::Activating) {
                self.reform(range, &[]);
            }
        }
    }

    fn handle_entry_wanted(&mut self, to: NodeId, range: RangeId) {
        let Some(entry) = self.map.range(range).cloned() else { return };
        // A chain of members that were not heard of in these boots yet is about to be another one.
        let is_settled = entry.is_active()
            && !self.rounds.contains_key(&range)
            && entry.serving().all(|member| self.nodes.boot(member.node) == Some(member.boot));
        if !is_settled && self.curious.len() < CURIOUS_MAX {
            self.curious.insert((range, to));
        }
        if entry.epoch > Epoch::default() {
            self.send_entry(to, entry);
        }
    }

    fn handle_equal(&mut self, from: NodeId, boot: BootId, range: RangeId, epoch: Epoch, base: Version) {
        let Some(round) = self.round_of(range, epoch) else { return };
        let same_boot = round.reports.get(&from).is_some_and(|(reported, _)| *reported == boot);
        let same_base = round.decision.as_ref().is_some_and(|decision| decision.base == base);
        if round.stage == Stage::Aligning && same_boot && same_base {
            round.equal.insert(from);
        }
    }

    /// Takes every step that is possible now.
    fn advance(&mut self) {
        while let Some(event) = self.consensus.poll_event() {
            self.handle_consensus(event);
        }
        self.plan();
        let ranges: Vec<RangeId> = self.rounds.keys().copied().collect();
        ranges.into_iter().for_each(|range| self.step_round(range));
        if self.dirty && self.offered.is_none() {
            self.dirty = false;
            self.draft.revision = self.map.revision + 1;
            self.offered = Some(self.draft.clone());
            self.consensus.propose(self.draft.revision, encode_map(&self.draft));
        }
    }

    fn handle_consensus(&mut self, event: ConsensusEvent) {
        match event {
            ConsensusEvent::Committed { revision } => {
                let Some(map) = self.offered.take() else { return };
                assert!(map.revision == revision, "committed {revision}, offered {}", map.revision);
                let before = core::mem::replace(&mut self.map, map);
                self.announce(&before);
            }
            ConsensusEvent::Lost { .. } => {
                self.offered = None;
                self.draft = self.map.clone();
                self.rounds.clear();
                self.dirty = false;
            }
        }
    }

    /// Tells members of what was just committed.
    fn announce(&mut self, before: &ClusterMap) {
        let now = self.nodes.now;
        let changed: Vec<RangeEntry> =
            self.map.ranges.iter().filter(|entry| before.range(entry.range) != Some(entry)).cloned().collect();
        for entry in changed {
            match entry.state {
                ChainState::Preparing => {
                    let draft = self.draft.range(entry.range).map(|draft| draft.epoch);
                    if let Some(round) = self.rounds.get_mut(&entry.range)
                        && round.stage == Stage::Committing
                        && draft == Some(entry.epoch)
                    {
                        round.enter(Stage::Reporting, now);
                    }
                }
                ChainState::Active => self.announce_active(&entry),
            }
        }
    }

    fn announce_active(&mut self, entry: &RangeEntry) {
        let activating = self.rounds.get(&entry.range).is_some_and(|round| round.stage == Stage::Activating);
        if activating && let Some(round) = self.rounds.remove(&entry.range) {
            self.excluded.remove(&entry.range);
            self.nodes.caught_up.retain(|(range, ..)| *range != entry.range);
            let possible_loss = round.decision.is_some_and(|decision| decision.possible_loss);
            let (range, epoch, base) = (entry.range, entry.epoch, entry.base);
            self.outputs.push_back(ManagerOutput::Activated { range, epoch, base, possible_loss });
        }
        for member in &entry.members {
            self.send_entry(member.node, entry.clone());
        }
        let curious: Vec<NodeId> =
            self.curious.extract_if(.., |(range, _)| *range == entry.range).map(|(_, node)| node).collect();
        for node in curious.into_iter().filter(|node| entry.member(*node).is_none()) {
            self.send_entry(node, entry.clone());
        }
    }

    /// Begins what the planner says, where nothing is under way.
    fn plan(&mut self) {
        // After its own start the manager first lets beats arrive, else it would think everybody dead.
        let started_at = self.started_at.unwrap_or(self.nodes.now);
        let settling = self.nodes.now.ms_since(started_at) < self.options.dead_after_ms;
        for change in planner::plan(&self.draft, &self.nodes) {
            match change {
                Change::Reform { range, .. } if self.rounds.contains_key(&range) => {}
                Change::Reform { range, .. } if settling && self.only_unseen(range) => {}
                Change::Reform { range, promote } => self.reform(range, &promote),
                Change::AddSyncing { range, node, boot } => self.add_syncing(range, node, boot),
            }
        }
    }

    /// Whether all that is wrong with an active chain is that some member was not heard of yet.
    fn only_unseen(&self, range: RangeId) -> bool {
        let Some(entry) = self.draft.range(range) else { return false };
        let fine = |member: &Member| self.nodes.seen.get(&member.node).is_none_or(|(boot, _)| *boot == member.boot);
        entry.is_active() && entry.serving().all(fine)
    }

    /// Begins a handshake in a new epoch; one under way is superseded, its number burnt.
    fn reform(&mut self, range: RangeId, promote: &[NodeId]) {
        let now = self.nodes.now;
        let Some(entry) = self.draft.range_mut(range) else { return };
        let Some(epoch) = entry.epoch.next() else { return }; // 2^28 epochs are used up: stays as it is
        let serving: Vec<NodeId> = match &entry.last_active {
            Some(last) => last.members.iter().map(|member| member.node).collect(),
            None => entry.serving().map(|member| member.node).collect(),
        };
        let others: Vec<Member> = entry.members.iter().filter(|m| !serving.contains(&m.node)).copied().collect();
        let boot_of = |node| entry.member(node).map_or(BootId::default(), |member| member.boot);
        let mut members: Vec<Member> =
            serving.iter().map(|&node| Member { node, boot: boot_of(node), role: MemberRole::Serving }).collect();
        members.extend(others.into_iter().map(|mut member| {
            let serves = promote.contains(&member.node);
            member.role = if serves { MemberRole::Serving } else { MemberRole::Syncing };
            member
        }));
        entry.members = members;
        entry.epoch = epoch;
        entry.revision = 0;
        entry.state = ChainState::Preparing;
        self.rounds.insert(range, Round::new(entry, now));
        self.dirty = true;
    }

    fn add_syncing(&mut self, range: RangeId, node: NodeId, boot: BootId) {
        let Some(entry) = self.draft.range_mut(range) else { return };
        assert!(entry.is_active(), "the planner adds to active chains only");
        entry.members.retain(|member| member.node != node);
        entry.members.push(Member { node, boot, role: MemberRole::Syncing });
        entry.revision += 1;
        self.dirty = true;
    }

    fn step_round(&mut self, range: RangeId) {
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
        let now = self.nodes.now;
        let waited_ms = now.ms_since(round.stage_since);
        let layout = self.draft.ring().layout();
        let desired = layout.into_iter().find(|layout| layout.keys == entry.keys).map(|layout| layout.chain);
        let rules = Rules {
            durability: self.draft.durability,
            desired: desired.as_deref().unwrap_or_default(),
            excluded: self.excluded.get(&range).unwrap_or(const { &BTreeSet::new() }),
            waited: waited_ms >= self.options.report_wait_ms,
            waited_long: waited_ms >= self.options.rebooted_wait_ms,
        };
        if let Some(decision) = round.decide(&entry, rules) {
            round.decision = Some(decision);
            round.enter(Stage::Aligning, now);
            return self.step_aligning(range);
        }
        if now >= round.resend_at {
            round.resend_at = now.plus_ms(self.options.resend_ms);
            let silent: Vec<NodeId> =
                round.asked.iter().copied().filter(|node| !round.reports.contains_key(node)).collect();
            silent.into_iter().for_each(|node| self.send_entry(node, entry.clone()));
        }
    }

    fn step_aligning(&mut self, range: RangeId) {
        let now = self.nodes.now;
        let Some(round) = self.rounds.get_mut(&range) else { return };
        if round.all_equal() {
            round.enter(Stage::Activating, now);
            if let (Some(active), Some(entry)) = (round.active_entry(), self.draft.range_mut(range)) {
                *entry = active;
                self.dirty = true;
            }
            return;
        }
        let Some(decision) = &round.decision else { return };
        let late: Vec<NodeId> =
            decision.entry.serving().map(|member| member.node).filter(|node| !round.equal.contains(node)).collect();
        if now.ms_since(round.stage_since) >= self.options.align_wait_ms {
            self.excluded.insert(range, late.into_iter().collect());
            return self.reform(range, &[]);
        }
        if now < round.resend_at {
            return;
        }
        round.resend_at = now.plus_ms(self.options.resend_ms);
        let align = |node: &NodeId| {
            let (entry, donor, base) = (decision.entry.clone(), decision.donor, decision.base);
            let cut = decision.cuts.get(node).copied().unwrap_or(Version::ZERO);
            (*node, Body::Align { entry, donor, base, cut })
        };
        let frames: Vec<_> = late.iter().map(align).collect();
        for (to, body) in frames {
            let epoch = self.draft.range(range).map_or(Epoch::default(), |entry| entry.epoch);
            self.send(to, range, epoch, body);
        }
    }

    fn send_entry(&mut self, to: NodeId, entry: RangeEntry) {
        self.send(to, entry.range, entry.epoch, Body::Entry(entry));
    }

    fn send(&mut self, to: NodeId, range: RangeId, epoch: Epoch, body: Body<'static>) {
        let header = Header { from: self.node, boot: self.boot, range, epoch };
        self.outputs.push_back(ManagerOutput::Send { to, frame: Frame { header, body } });
    }

    /// When a write counts as kept in this cluster.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.map.durability
    }
}
