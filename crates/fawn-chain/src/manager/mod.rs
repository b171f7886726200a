//! Manager: changes the cluster map through consensus, and chains through handshakes.
//!
//! | module | contents |
//! |---|---|
//! | `consensus` | how a new map is committed |
//! | [`planner`] | the next safe change of each chain: pure, called repeatedly |
//! | `change` | execution of a change: rounds of the handshake, started, advanced, superseded |
//! | `round` | one round: its members, their reports, choice of the donor |
//! | `slow` | members whose disk hangs |
//! | `health` | the state of shards that is not in the map |
//! | `hold_off` | how long a member that was left out streams before it is promoted again |
mod change;
mod consensus;
mod health;
mod hold_off;
pub mod planner;
mod round;
mod slow;

pub use consensus::{Consensus, ConsensusEvent, FileConsensus};

use crate::boots::{BootTable, BootsMessage};
use crate::map::{ChainMember, ChainState, ClusterMap, RangeEntry, encode_map};
use crate::message::{Body, Frame, Header, MemberReport};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cmp::Ordering;
use fawn_types::{BootId, BootOrder, Durability, Epoch, MemberId, MonoMs, Now, RangeId, Version};
use health::HealthTable;
use hold_off::HoldOffOptions;
use planner::{Health, RingLayout};
use round::{Round, Stage};

/// Maximum number of shards notified of an activation that they requested before; further shards repeat the request.
const CURIOUS_MAX: usize = 1 << 14;
/// Interval at which entries are repeated to members that may not know of the present epoch.
const REPEAT_ENTRIES_MS: u64 = 1_000;
/// Suspicion alone never reduces a chain below this number of members.
pub(super) const SUSPICION_LEAVES: usize = 2;

/// Intervals of the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerOptions {
    /// How long a handshake waits for reports before it continues without the silent members. Without leases it must
    /// exceed a live member's pauses, because a member that was left out may still reply to reads.
    pub report_wait_ms: u64,
    /// How long it waits for members to find out which of the others are in reach.
    pub reach_wait_ms: u64,
    /// How long it waits before a rebooted member may donate in a mode that acks before it syncs, and before a new
    /// range starts without all of its members.
    pub rebooted_wait_ms: u64,
    /// How long members may take to become equal before a new round excludes the slow ones.
    pub align_wait_ms: u64,
    /// Interval at which unanswered frames are repeated.
    pub resend_ms: u64,
    /// A shard without heartbeats for this long is dropped. Leases will add their own wait.
    pub dead_after_ms: u64,
    /// A shard whose oldest write or sync has been in flight for this long is dead, although it sends heartbeats.
    pub disk_dead_after_ms: u64,
    /// First hold-off of a member that was left out of its chain: it has to keep up for this long before it is promoted
    /// again. Doubles each time.
    pub hold_off_ms: u64,
    /// The longest hold-off.
    pub hold_off_ms_max: u64,
    /// Time in service after which a member's hold-off is reset.
    pub hold_off_reset_ms: u64,
}

impl ManagerOptions {
    const fn hold_off(&self) -> HoldOffOptions {
        let Self { hold_off_ms, hold_off_ms_max, hold_off_reset_ms, .. } = *self;
        HoldOffOptions { first_ms: hold_off_ms, longest_ms: hold_off_ms_max, service_ms: hold_off_reset_ms }
    }
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            report_wait_ms: 1000,
            reach_wait_ms: 300,
            rebooted_wait_ms: 5_000,
            align_wait_ms: 3_000,
            resend_ms: 100,
            dead_after_ms: 2_000,
            disk_dead_after_ms: 10_000,
            hold_off_ms: 10_000,
            hold_off_ms_max: 600_000,
            hold_off_reset_ms: 600_000,
        }
    }
}

/// An effect of the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerOutput {
    /// Store these bytes durably, then call `handle_persisted(revision)`. No consequence of this map is returned
    /// before.
    Persist {
        /// To pass to `handle_persisted`.
        revision: u64,
        /// The encoded map.
        image: Vec<u8>,
    },
    /// A frame to a member. It may be lost; the manager repeats it.
    Send {
        /// The receiver.
        to: MemberId,
        /// The frame.
        frame: Frame<'static>,
    },
    /// A range serves again.
    Activated {
        /// The range.
        range: RangeId,
        /// The new epoch.
        epoch: Epoch,
        /// Its base.
        base: Version,
    },
    /// Acked writes may be missing in an epoch that is about to be activated, which deserves a prominent log entry.
    /// Returned before the `Persist` of its activation. Never under `sync`.
    PossibleLoss {
        /// The range.
        range: RangeId,
        /// The new epoch.
        epoch: Epoch,
        /// Its base.
        base: Version,
    },
    /// Another process with the same identity and number of opens is already known: this one runs on a copy of the
    /// directory, and its frames are dropped.
    BootRefused {
        /// The shard.
        member: MemberId,
        /// The boot that is refused.
        boot: BootId,
    },
    /// A member that still sends heartbeats is being removed from a range's chain.
    Dropping {
        /// The range.
        range: RangeId,
        /// The member.
        member: MemberId,
        /// The reason.
        reason: DropReason,
    },
}

/// Reason to drop a member that sends heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The member reported that it can no longer store anything: restart it once its disk works again.
    Failed,
    /// Another member reported that it does not acknowledge.
    Suspected {
        /// The reporting member.
        by: MemberId,
    },
    /// Its disk has not completed a write or sync for a long time.
    Slow,
    /// It suspected one successor after another, so it is itself the cause.
    SuspectsAll,
    /// It cannot read records that its successor is due: scrub its store.
    CannotSend,
}

/// The ranges that an event may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChangedRanges {
    All,
    Range(RangeId),
}

impl ChangedRanges {
    fn covers(self, range: RangeId) -> bool {
        self == Self::All || self == Self::Range(range)
    }
}

/// The manager's state.
#[derive(Clone, Debug)]
pub struct Manager<C> {
    id: MemberId,
    boot: BootId,
    options: ManagerOptions,
    consensus: C,
    /// The committed map: only this one is sent to other shards.
    map: ClusterMap,
    /// The map with changes that are not proposed or not committed yet.
    draft: ClusterMap,
    /// Durability mode of epochs to come; the draft follows it.
    durability: Durability,
    dirty: bool,
    offered: Option<ClusterMap>,
    health: HealthTable,
    /// The present processes, which all shards receive.
    boots: BootTable,
    /// Shards that have another table.
    boots_wanted: BTreeSet<MemberId>,
    /// Changes of the table, and the shards that they are still to be sent to.
    changes: Option<(BootsMessage, Vec<MemberId>)>,
    layout: RingLayout,
    rounds: BTreeMap<RangeId, Round>,
    excluded: BTreeMap<RangeId, BTreeSet<MemberId>>,
    /// Shards that requested the entry of an inactive range: notified once it is active, so that they need not poll.
    curious: BTreeSet<(RangeId, MemberId)>,
    /// The last refused boot of each shard, so that a refusal is reported once.
    refused: BTreeMap<MemberId, BootId>,
    started_at: Option<MonoMs>,
    /// When entries are repeated next.
    repeat_entries_at: MonoMs,
    outputs: VecDeque<ManagerOutput>,
}

impl<C: Consensus> Manager<C> {
    /// A manager with the committed map, or with a new one (`revision` 0), which is committed first.
    #[must_use]
    pub fn new(id: MemberId, boot: BootId, options: ManagerOptions, consensus: C, map: ClusterMap) -> Self {
        let health = HealthTable::new(options.dead_after_ms, options.disk_dead_after_ms);
        Self {
            id,
            boot,
            options,
            consensus,
            draft: map.clone(),
            durability: map.durability,
            dirty: map.revision == 0,
            map,
            offered: None,
            health,
            boots: BootTable::new(boot),
            boots_wanted: BTreeSet::new(),
            changes: None,
            layout: RingLayout::default(),
            rounds: BTreeMap::new(),
            excluded: BTreeMap::new(),
            curious: BTreeSet::new(),
            refused: BTreeMap::new(),
            started_at: None,
            repeat_entries_at: MonoMs(0),
            outputs: VecDeque::new(),
        }
    }

    /// Sets the durability mode of epochs to come; chains that serve in another mode begin a new epoch.
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// The ring's layout as the planner uses it.
    #[must_use]
    pub const fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// The committed map.
    #[must_use]
    pub const fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Handles a frame from a shard.
    pub fn handle_frame(&mut self, now: Now, frame: &Frame<'_>) {
        self.begin(now);
        let Header { from, boot, range, epoch } = frame.header;
        if !self.admits(from, boot) {
            return;
        }
        if let Body::BootsWanted { held } = frame.body {
            return self.handle_boots_wanted(from, held);
        }
        let known = self.health.boot_of(from);
        match &frame.body {
            Body::Hello => {
                self.note_boot(from, boot);
                self.health.note_fast(from);
            }
            Body::Slow { oldest_ms } => self.handle_slow((from, boot), *oldest_ms),
            Body::EntryWanted => self.handle_entry_wanted(from, range),
            Body::Report(report) => self.handle_report((from, boot), range, epoch, report),
            Body::Failed => self.handle_failed(from, boot, range, epoch),
            Body::Suspect { member: id } => self.handle_suspect((from, boot), range, epoch, *id),
            Body::EpochWanted => self.handle_epoch_wanted((from, boot), range, epoch),
            Body::CannotSend { .. } => self.handle_cannot_send((from, boot), range, epoch),
            Body::PromisedAbove(entry) if entry.range == range => self.handle_promised_above(epoch, entry),
            Body::Equal { base } => self.handle_equal(from, boot, range, epoch, *base),
            Body::CannotAlign => self.handle_cannot_align(from, boot, range, epoch),
            Body::CaughtUp { .. } => self.handle_caught_up((from, boot), range, epoch),
            _ => {}
        }
        // A new boot may change every chain, any other frame the one that it is about, and a heartbeat none. After a
        // failure hundreds of ranges report at once: looking at all of them for each report would take seconds.
        self.advance(if self.health.boot_of(from) == known { ChangedRanges::Range(range) } else { ChangedRanges::All });
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Now) {
        self.begin(now);
        self.advance(ChangedRanges::All);
        self.repeat_entries();
    }

    /// The bytes of `Persist { revision }` are durable.
    pub fn handle_persisted(&mut self, now: Now, revision: u64) {
        self.begin(now);
        self.consensus.handle_persisted(revision);
        self.advance(ChangedRanges::All);
    }

    /// The next effect; poll until `None`.
    pub fn poll_output(&mut self) -> Option<ManagerOutput> {
        // First, because a possible loss is reported before the map that hides it can become durable.
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some((revision, image)) = self.consensus.poll_persist() {
            return Some(ManagerOutput::Persist { revision, image });
        }
        self.send_boots();
        self.outputs.pop_front()
    }

    /// The time of the next `handle_timeout`: heartbeats and repeats are checked at this interval.
    #[must_use]
    pub fn next_timeout(&self) -> MonoMs {
        self.health.now.plus_ms(self.options.resend_ms)
    }

    fn begin(&mut self, now: Now) {
        let slept_ms = now.mono.ms_since(self.health.now);
        if slept_ms > self.options.dead_after_ms / 2 {
            // The interval between calls is normally far shorter: the process was suspended, and heartbeats may be
            // waiting in the input. Heartbeats decide liveness only, so this patience costs nothing but time.
            self.health.seen.values_mut().for_each(|(_, at)| *at = at.plus_ms(slept_ms));
        }
        self.health.now = self.health.now.max(now.mono);
        self.started_at.get_or_insert(now.mono);
    }

    /// Whether a frame is of the shard's newest boot. A late frame of a former boot is dropped. A frame of another
    /// process with the same number of opens comes from a copy of the directory and is refused.
    fn admits(&mut self, from: MemberId, boot: BootId) -> bool {
        let mut order = boot.against(self.health.boot_of(from));
        if order == BootOrder::Newer && !self.health.seen.contains_key(&from) {
            order = boot.against(self.map.newest_boot(from));
        }
        if order == BootOrder::Twin && self.refused.insert(from, boot) != Some(boot) {
            self.outputs.push_back(ManagerOutput::BootRefused { member: from, boot });
        }
        matches!(order, BootOrder::Same | BootOrder::Newer)
    }

    fn round_of(&mut self, range: RangeId, epoch: Epoch) -> Option<&mut Round> {
        if self.draft.range(range)?.epoch != epoch {
            return None; // Superseded: its epoch number is never used.
        }
        self.rounds.get_mut(&range)
    }

    /// A new boot invalidates the reports of the former one: rounds that include the member start again.
    fn note_boot(&mut self, from: MemberId, boot: BootId) {
        self.boots.note(from, boot);
        if !self.health.note_boot(from, boot) {
            return;
        }
        let stale = |round: &Round| round.reports.get(&from).is_some_and(|(reported, _)| *reported != boot);
        let ranges: Vec<RangeId> =
            self.rounds.iter().filter(|(_, round)| stale(round)).map(|(range, _)| *range).collect();
        for range in ranges {
            // While Active is being committed, the planner detects the reboot afterwards.
            if self.rounds.get(&range).is_some_and(|round| round.stage != Stage::Activating) {
                self.reform(range, &[]);
            }
        }
    }

    fn handle_entry_wanted(&mut self, to: MemberId, range: RangeId) {
        let Some(entry) = self.map.range(range).cloned() else { return };
        // A chain whose members have not been seen in these boots is about to change.
        let is_settled = entry.is_active()
            && !self.rounds.contains_key(&range)
            && entry.serving().all(|member| self.health.boot(range, member.id) == Some(member.boot));
        if !is_settled && self.curious.len() < CURIOUS_MAX {
            self.curious.insert((range, to));
        }
        if entry.epoch > Epoch::default() {
            self.send_entry(to, entry);
        }
    }

    fn handle_boots_wanted(&mut self, from: MemberId, held: u64) {
        if held != self.boots.revision() {
            self.boots_wanted.insert(from);
        }
    }

    /// Sends boots to one shard: all of them, if it has another table, or else changes. All shards receive these at once,
    /// so that a front-end's first update does not wait for a head's next heartbeat. One at a time bounds the memory.
    fn send_boots(&mut self) {
        let (to, message) = if let Some(to) = self.boots_wanted.pop_first() {
            (to, self.boots.whole())
        } else {
            if self.changes.is_none() {
                let shards = || self.health.seen.keys().copied().collect();
                self.changes = self.boots.take_changes().map(|changes| (changes, shards()));
            }
            let Some((changes, shards)) = &mut self.changes else { return };
            let (to, message) = (shards.pop(), changes.clone());
            if shards.is_empty() {
                self.changes = None;
            }
            let Some(to) = to else { return };
            (to, message)
        };
        self.send(to, RangeId(0), Epoch::default(), Body::Boots(message));
    }

    fn handle_caught_up(&mut self, (from, boot): (MemberId, BootId), range: RangeId, epoch: Epoch) {
        match self.map.range(range).map(|entry| entry.epoch.cmp(&epoch)) {
            Some(Ordering::Equal) => {
                self.note_boot(from, boot);
                self.health.note_caught_up(range, from, boot);
            }
            // The announcement of the present epoch was lost.
            Some(Ordering::Greater) => self.handle_entry_wanted(from, range),
            Some(Ordering::Less) | None => {}
        }
    }

    fn handle_report(&mut self, (from, boot): (MemberId, BootId), range: RangeId, epoch: Epoch, report: &MemberReport) {
        self.note_boot(from, boot);
        if self.health.is_hung(from) {
            // A disk that counts as dead may complete a promise after all. Were its member used, the planner would see
            // a dead one in the new epoch and begin the next at once.
            return self.leave_out(from, range, epoch);
        }
        if let Some(round) = self.round_of(range, epoch)
            && round.stage == Stage::Reporting
            && round.asked.contains(&from)
        {
            round.gone.remove(&from);
            // Repeated as more members are found to be in reach; a log does not move while an epoch is prepared.
            round.reports.insert(from, (boot, report.clone()));
        }
    }

    /// Handles a member that has stopped below `epoch` and takes part in no handshake of this boot: no round waits for
    /// it.
    fn handle_failed(&mut self, from: MemberId, boot: BootId, range: RangeId, epoch: Epoch) {
        self.note_boot(from, boot);
        if self.health.note_failed(range, from, boot) {
            self.outputs.push_back(ManagerOutput::Dropping { range, member: from, reason: DropReason::Failed });
        }
        if self.map.range(range).is_some_and(|entry| entry.epoch > epoch) {
            // A failed tail replies to reads until it learns of another epoch, and the planner does not take it back.
            self.handle_entry_wanted(from, range);
        }
        self.leave_out(from, range, epoch);
    }

    /// The round continues without this member, which has stopped.
    pub(super) fn leave_out(&mut self, id: MemberId, range: RangeId, epoch: Epoch) {
        let Some(round) = self.round_of(range, epoch) else { return };
        let decided = round.decision.as_ref().is_some_and(|decision| decision.entry.member(id).is_some());
        match round.stage {
            Stage::Reporting => {
                round.reports.remove(&id);
                round.gone.insert(id);
            }
            // The round relied on this member, so a new round starts without it.
            Stage::Aligning if decided => self.reform(range, &[]),
            Stage::Committing | Stage::Aligning | Stage::Activating => {}
        }
    }

    /// Handles a suspicion between two neighbours that both send heartbeats: the downstream one is dropped. A member
    /// that suspects two successors is dropped itself. Concerns liveness only, so at least two members stay
    /// [replication.md §2.4].
    fn handle_suspect(&mut self, from: (MemberId, BootId), range: RangeId, epoch: Epoch, suspect: MemberId) {
        let Some(entry) = self.active_entry(from, range, epoch) else { return };
        let chain: Vec<MemberId> = entry.serving().map(|member| member.id).collect();
        let are_neighbours = chain.windows(2).any(|pair| pair == [from.0, suspect]);
        let both_beat = entry.serving().all(|member| self.health.boot(range, member.id) == Some(member.boot));
        if !are_neighbours || !both_beat {
            return; // A silent member is dropped for its silence.
        }
        if chain.len() <= SUSPICION_LEAVES {
            return self.health.note_stands_still(range);
        }
        let id = self.health.judge(range, from.0, suspect);
        self.hold_off(range, id);
        let by_itself = id == from.0;
        let reason = if by_itself { DropReason::SuspectsAll } else { DropReason::Suspected { by: from.0 } };
        self.outputs.push_back(ManagerOutput::Dropping { range, member: id, reason });
        self.reform(range, &[]);
    }

    /// Handles that a member cannot read the records that its successor needs. They were not committed, so the other
    /// members hold everything that was. The member is rolled back and becomes a syncing one.
    fn handle_cannot_send(&mut self, from: (MemberId, BootId), range: RangeId, epoch: Epoch) {
        if self.active_entry(from, range, epoch).is_none() {
            return;
        }
        let id = from.0;
        self.outputs.push_back(ManagerOutput::Dropping { range, member: id, reason: DropReason::CannotSend });
        self.excluded.entry(range).or_default().insert(id);
        self.hold_off(range, id);
        self.reform(range, &[]);
    }

    /// A member has promised an epoch above the manager's: this map is older than that promise. The next epoch goes
    /// above it, from the newer of the two last active chains.
    fn handle_promised_above(&mut self, promised: Epoch, newest: &RangeEntry) {
        let range = newest.range;
        let is_activating = self.rounds.get(&range).is_some_and(|round| round.stage == Stage::Activating);
        let Some(entry) = self.draft.range_mut(range).filter(|entry| entry.epoch < promised && !is_activating) else {
            return;
        };
        let last = |entry: &RangeEntry| entry.last_active.as_ref().map(|last| last.epoch);
        if entry.keys == newest.keys && last(entry) < last(newest) {
            entry.clone_from(newest);
        }
        entry.epoch = entry.epoch.max(promised);
        self.reform(range, &[]);
    }

    /// Drops the member from its chain, with a hold-off before it is promoted again. A dead member gets no hold-off.
    pub(super) fn hold_off(&mut self, range: RangeId, id: MemberId) {
        if self.health.boot(range, id).is_some() {
            self.health.hold_offs.begin((range, id), self.health.now, self.options.hold_off());
        }
    }

    fn handle_epoch_wanted(&mut self, from: (MemberId, BootId), range: RangeId, epoch: Epoch) {
        if self.active_entry(from, range, epoch).is_some_and(|entry| entry.head() == Some(from.0)) {
            self.reform(range, &[]);
        }
    }

    /// The range's entry, if it is active in this epoch, not about to change, and the sender serves in it.
    fn active_entry(&self, (from, boot): (MemberId, BootId), range: RangeId, epoch: Epoch) -> Option<&RangeEntry> {
        let entry = self.draft.range(range).filter(|entry| entry.is_active() && entry.epoch == epoch)?;
        let serves = entry.serving().any(|member| member.id == from && member.boot == boot);
        (serves && !self.rounds.contains_key(&range)).then_some(entry)
    }

    fn handle_equal(&mut self, from: MemberId, boot: BootId, range: RangeId, epoch: Epoch, base: Version) {
        let Some(round) = self.round_of(range, epoch) else { return };
        let same_boot = round.reports.get(&from).is_some_and(|(reported, _)| *reported == boot);
        let same_base = round.decision.as_ref().is_some_and(|decision| decision.base == base);
        if round.stage == Stage::Aligning && same_boot && same_base {
            round.equal.insert(from);
        }
    }

    /// Handles a member that has no copy or cannot be made equal: the others continue without it at once. It is copied
    /// later.
    fn handle_cannot_align(&mut self, from: MemberId, boot: BootId, range: RangeId, epoch: Epoch) {
        self.note_boot(from, boot);
        let Some(round) = self.round_of(range, epoch) else { return };
        match round.stage {
            Stage::Reporting if !round.reports.contains_key(&from) => round.asked.retain(|id| *id != from),
            Stage::Aligning if round.is_awaited(from, boot) => {
                self.excluded.entry(range).or_default().insert(from);
                self.reform(range, &[]);
            }
            _ => {}
        }
    }

    /// Takes every step that is possible now in these ranges.
    fn advance(&mut self, scope: ChangedRanges) {
        while let Some(event) = self.consensus.poll_event() {
            self.handle_consensus(event);
        }
        if self.draft.durability != self.durability {
            self.draft.durability = self.durability;
            self.dirty = true;
        }
        self.plan(scope);
        let ranges: Vec<RangeId> = self.rounds.keys().copied().filter(|range| scope.covers(*range)).collect();
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

    /// Notifies members of the newly committed changes.
    fn announce(&mut self, before: &ClusterMap) {
        let now = self.health.now;
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
        if activating {
            self.rounds.remove(&entry.range);
            self.excluded.remove(&entry.range);
            let serves = |id| entry.serving().any(|member| member.id == id);
            self.health.note_active(entry.range, serves, self.options.hold_off());
            let (range, epoch, base) = (entry.range, entry.epoch, entry.base);
            self.outputs.push_back(ManagerOutput::Activated { range, epoch, base });
        }
        for member in &entry.members {
            self.send_entry(member.id, entry.clone());
        }
        let curious: Vec<MemberId> =
            self.curious.extract_if(.., |(range, _)| *range == entry.range).map(|(_, id)| id).collect();
        for id in curious.into_iter().filter(|id| entry.member(*id).is_none()) {
            self.send_entry(id, entry.clone());
        }
    }

    /// Sends entries again to syncing members that may have missed the announcement. Not all of them ask for it: one
    /// may request records of a tail that is gone, and another one may still serve in the former epoch. A serving
    /// member reported that it is equal, and asks until it serves.
    ///
    /// A shard with a hung disk is not even added as a syncing member, but may still reply to reads as the former tail.
    fn repeat_entries(&mut self) {
        let now = self.health.now;
        if now < self.repeat_entries_at {
            return;
        }
        self.repeat_entries_at = now.plus_ms(REPEAT_ENTRIES_MS);
        let mut missed = Vec::new();
        for entry in self.map.ranges.iter().filter(|entry| entry.is_active()) {
            if self.rounds.contains_key(&entry.range) {
                continue; // Another epoch follows.
            }
            let is_live = |member: &&ChainMember| self.health.boot(entry.range, member.id) == Some(member.boot);
            let has_missed = |member: &&ChainMember| !self.health.has_caught_up(entry.range, member);
            let members = entry.syncing().filter(is_live).filter(has_missed);
            let serves = |id| entry.serving().any(|member| member.id == id);
            let is_left_out = |id: &MemberId| !serves(*id) && self.health.is_hung_alive(*id);
            let hung = self.layout.chain(entry).iter().copied().filter(is_left_out);
            missed.extend(members.map(|member| member.id).chain(hung).map(|id| (id, entry.clone())));
        }
        missed.into_iter().for_each(|(id, entry)| self.send_entry(id, entry));
    }

    fn send_entry(&mut self, to: MemberId, entry: RangeEntry) {
        self.send(to, entry.range, entry.epoch, Body::Entry(entry));
    }

    fn send(&mut self, to: MemberId, range: RangeId, epoch: Epoch, body: Body<'static>) {
        let header = Header { from: self.id, boot: self.boot, range, epoch };
        self.outputs.push_back(ManagerOutput::Send { to, frame: Frame { header, body } });
    }
}
