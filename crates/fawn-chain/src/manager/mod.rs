//! Owns the manager: the cluster map, changed only through consensus, and the handshakes that change chains.
//!
//! | module | owns |
//! |---|---|
//! | `consensus` | how a new map becomes the map |
//! | [`planner`] | the next safe change of each chain: pure, asked again and again |
//! | `change` | carrying a change out: rounds of the handshake, begun, stepped, superseded |
//! | `round` | one round: who was asked, what they said, whose log counts |
//! | `health` | what is known of machines besides the map |
mod change;
mod consensus;
mod health;
pub mod planner;
mod round;

pub use consensus::{Consensus, ConsensusEvent, FileConsensus};

use crate::map::{ChainState, ClusterMap, RangeEntry, encode_map};
use crate::message::{Body, Frame, Header};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, Epoch, MonoMs, NodeId, Now, RangeId, Version};
use health::Nodes;
use planner::Health;
use round::{Round, Stage};

/// Nodes that are told of an activation because they asked before it; those beyond ask again.
const CURIOUS_MAX: usize = 1 << 14;
/// Suspicion alone never leaves fewer members in a chain.
pub(super) const SUSPICION_LEAVES: usize = 2;

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
    /// A member that was dropped on suspicion is not promoted again before: it streams meanwhile.
    pub hold_off_ms: u64,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            report_wait_ms: 1000,
            rebooted_wait_ms: 5_000,
            align_wait_ms: 3_000,
            resend_ms: 100,
            dead_after_ms: 2_000,
            hold_off_ms: 10_000,
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
    /// A member is on its way out of a range's chain, for more than silence.
    Dropping {
        /// Which range.
        range: RangeId,
        /// Which member.
        node: NodeId,
        /// Why.
        reason: DropReason,
    },
}

/// Why a member that beats is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// It said that it can keep nothing any more: restart it once its medium is in order.
    Failed,
    /// This member says that it does not acknowledge.
    Suspected {
        /// Who.
        by: NodeId,
    },
    /// It suspected one successor after the other, so it is itself the cause.
    SuspectsAll,
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
    /// The mode that epochs to come serve in; the draft is brought into line with it.
    durability: Durability,
    dirty: bool,
    offered: Option<ClusterMap>,
    nodes: Nodes,
    rounds: BTreeMap<RangeId, Round>,
    excluded: BTreeMap<RangeId, BTreeSet<NodeId>>,
    /// Who asked for the entry of a range that was not active: told once it is, instead of asking again and again.
    curious: BTreeSet<(RangeId, NodeId)>,
    started_at: Option<MonoMs>,
    outputs: VecDeque<ManagerOutput>,
}

impl<C: Consensus> Manager<C> {
    /// From the committed map, or from a new one (`revision` 0), which is committed first.
    #[must_use]
    pub fn new(node: NodeId, boot: BootId, options: ManagerOptions, consensus: C, map: ClusterMap) -> Self {
        let nodes = Nodes::new(options.dead_after_ms);
        Self {
            node,
            boot,
            options,
            consensus,
            draft: map.clone(),
            durability: map.durability,
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

    /// Writes of epochs to come count as kept by this mode; chains that serve in another one begin a new epoch.
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// The committed map.
    #[must_use]
    pub const fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// A frame from a machine.
    pub fn handle_frame(&mut self, now: Now, frame: &Frame<'_>) {
        self.begin(now);
        let Header { from, boot, range, epoch } = frame.header;
        match &frame.body {
            Body::Hello => self.note_boot(from, boot),
            Body::EntryWanted => self.handle_entry_wanted(from, range),
            Body::Report(report) => {
                self.note_boot(from, boot);
                if let Some(round) = self.round_of(range, epoch)
                    && round.stage == Stage::Reporting
                    && round.asked.contains(&from)
                {
                    round.gone.remove(&from);
                    round.reports.entry(from).or_insert((boot, *report));
                }
            }
            Body::Failed => self.handle_failed(from, boot, range, epoch),
            Body::Suspect { node } => self.handle_suspect((from, boot), range, epoch, *node),
            Body::EpochWanted => self.handle_epoch_wanted((from, boot), range, epoch),
            Body::Equal { base } => self.handle_equal(from, boot, range, epoch, *base),
            Body::CannotAlign => self.handle_cannot_align(from, boot, range, epoch),
            Body::CaughtUp { .. } if self.map.range(range).is_some_and(|entry| entry.epoch == epoch) => {
                self.nodes.caught_up.insert((range, from, boot));
            }
            _ => {}
        }
        self.advance();
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Now) {
        self.begin(now);
        self.advance();
    }

    /// The bytes of `Persist { revision }` are durable.
    pub fn handle_persisted(&mut self, now: Now, revision: u64) {
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
    pub fn next_timeout(&self) -> MonoMs {
        self.nodes.now.plus_ms(self.options.resend_ms)
    }

    fn begin(&mut self, now: Now) {
        let slept_ms = now.mono.ms_since(self.nodes.now);
        if slept_ms > self.options.dead_after_ms / 2 {
            // It is called far more often than that: it slept, and beats may wait for it to be read. Only liveness is
            // judged by beats, so that much patience costs nothing but time.
            self.nodes.seen.values_mut().for_each(|(_, at)| *at = at.plus_ms(slept_ms));
        }
        self.nodes.now = self.nodes.now.max(now.mono);
        self.started_at.get_or_insert(now.mono);
    }

    fn round_of(&mut self, range: RangeId, epoch: Epoch) -> Option<&mut Round> {
        if self.draft.range(range)?.epoch != epoch {
            return None; // superseded: its number is burnt
        }
        self.rounds.get_mut(&range)
    }

    /// A new boot makes what the former one said worthless: rounds it takes part in start over.
    fn note_boot(&mut self, from: NodeId, boot: BootId) {
        if !self.nodes.note_boot(from, boot) {
            return;
        }
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
            && entry.serving().all(|member| self.nodes.boot(range, member.node) == Some(member.boot));
        if !is_settled && self.curious.len() < CURIOUS_MAX {
            self.curious.insert((range, to));
        }
        if entry.epoch > Epoch::default() {
            self.send_entry(to, entry);
        }
    }

    /// The member has stopped below `epoch`, and takes part in no handshake of this boot: nobody waits for it.
    fn handle_failed(&mut self, from: NodeId, boot: BootId, range: RangeId, epoch: Epoch) {
        self.note_boot(from, boot);
        if self.nodes.note_failed(range, from, boot) {
            self.outputs.push_back(ManagerOutput::Dropping { range, node: from, reason: DropReason::Failed });
        }
        let Some(round) = self.round_of(range, epoch) else { return };
        let decided = round.decision.as_ref().is_some_and(|decision| decision.entry.member(from).is_some());
        match round.stage {
            Stage::Reporting => {
                round.reports.remove(&from);
                round.gone.insert(from);
            }
            // It was counted on: the next round knows better.
            Stage::Aligning if decided => self.reform(range, &[]),
            Stage::Committing | Stage::Aligning | Stage::Activating => {}
        }
    }

    /// Of two neighbours that both beat, the downstream one goes; who suspects twice goes itself. Liveness only, so it
    /// leaves two members at least [replication.md §2.4].
    fn handle_suspect(&mut self, from: (NodeId, BootId), range: RangeId, epoch: Epoch, suspect: NodeId) {
        let Some(entry) = self.active_entry(from, range, epoch) else { return };
        let chain: Vec<NodeId> = entry.serving().map(|member| member.node).collect();
        let are_neighbours = chain.windows(2).any(|pair| pair == [from.0, suspect]);
        let both_beat = entry.serving().all(|member| self.nodes.boot(range, member.node) == Some(member.boot));
        if !are_neighbours || !both_beat || chain.len() <= SUSPICION_LEAVES {
            return; // a silent one is dropped for its silence
        }
        let node = self.nodes.judge(range, from.0, suspect, self.options.hold_off_ms);
        let by_itself = node == from.0;
        let reason = if by_itself { DropReason::SuspectsAll } else { DropReason::Suspected { by: from.0 } };
        self.outputs.push_back(ManagerOutput::Dropping { range, node, reason });
        self.reform(range, &[]);
    }

    fn handle_epoch_wanted(&mut self, from: (NodeId, BootId), range: RangeId, epoch: Epoch) {
        if self.active_entry(from, range, epoch).is_some_and(|entry| entry.head() == Some(from.0)) {
            self.reform(range, &[]);
        }
    }

    /// The range's entry, if it is of this epoch, active, not about to change, and the sender serves in it.
    fn active_entry(&self, (from, boot): (NodeId, BootId), range: RangeId, epoch: Epoch) -> Option<&RangeEntry> {
        let entry = self.draft.range(range).filter(|entry| entry.is_active() && entry.epoch == epoch)?;
        let serves = entry.serving().any(|member| member.node == from && member.boot == boot);
        (serves && !self.rounds.contains_key(&range)).then_some(entry)
    }

    fn handle_equal(&mut self, from: NodeId, boot: BootId, range: RangeId, epoch: Epoch, base: Version) {
        let Some(round) = self.round_of(range, epoch) else { return };
        let same_boot = round.reports.get(&from).is_some_and(|(reported, _)| *reported == boot);
        let same_base = round.decision.as_ref().is_some_and(|decision| decision.base == base);
        if round.stage == Stage::Aligning && same_boot && same_base {
            round.equal.insert(from);
        }
    }

    /// A member is no copy, or cannot be made equal: the others go on without it, at once. It will be copied.
    fn handle_cannot_align(&mut self, from: NodeId, boot: BootId, range: RangeId, epoch: Epoch) {
        self.note_boot(from, boot);
        let Some(round) = self.round_of(range, epoch) else { return };
        match round.stage {
            Stage::Reporting if !round.reports.contains_key(&from) => round.asked.retain(|node| *node != from),
            Stage::Aligning if round.is_awaited(from, boot) => {
                self.excluded.entry(range).or_default().insert(from);
                self.reform(range, &[]);
            }
            _ => {}
        }
    }

    /// Takes every step that is possible now.
    fn advance(&mut self) {
        while let Some(event) = self.consensus.poll_event() {
            self.handle_consensus(event);
        }
        if self.draft.durability != self.durability {
            self.draft.durability = self.durability;
            self.dirty = true;
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

    fn send_entry(&mut self, to: NodeId, entry: RangeEntry) {
        self.send(to, entry.range, entry.epoch, Body::Entry(entry));
    }

    fn send(&mut self, to: NodeId, range: RangeId, epoch: Epoch, body: Body<'static>) {
        let header = Header { from: self.node, boot: self.boot, range, epoch };
        self.outputs.push_back(ManagerOutput::Send { to, frame: Frame { header, body } });
    }
}
