//! Per-iteration oracles: the invariants that hold at every moment.
use fawn_chain::{ClusterMap, invariants};
use fawn_ds::internals::RangeProgress;
use fawn_node::cluster::{MemberStatus, NodeStatus};
use fawn_types::{Durability, Epoch, MemberId, NodeId, RangeId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Events of one iteration of a shard.
#[derive(Debug, Default)]
pub(super) struct ObservedEvents {
    /// Members that finished their copies.
    pub(super) copied: Vec<(MemberId, RangeId)>,
    /// A member serves in an epoch in which it did not serve before.
    pub(super) has_begun: bool,
}

/// Observations so far.
#[derive(Debug)]
pub(super) struct Observer {
    durability: Durability,
    /// Minimum number of members that hold a write before it is acknowledged.
    copies_min: u8,
    /// The shard that hosts the manager.
    manager: MemberId,
    /// The newest revision of the map that the manager has committed.
    revision: u64,
    /// The last version in the log of each member that served in an epoch.
    received: BTreeMap<(RangeId, Epoch), BTreeMap<MemberId, Version>>,
    /// The greatest epoch in which each member acted towards others.
    seen_epochs: BTreeMap<(MemberId, RangeId), Epoch>,
    /// The member that assigned, and the one that committed, in each epoch.
    heads: BTreeMap<(RangeId, Epoch), MemberId>,
    tails: BTreeMap<(RangeId, Epoch), MemberId>,
    /// The members of each chain in the manager's newest map, head first.
    chains: BTreeMap<RangeId, (Epoch, Vec<MemberId>)>,
    /// The last committed version of each range, so acked or readable.
    committed: BTreeMap<RangeId, Version>,
    /// Each member's status after its last iteration, and its own watermark of the durability mode.
    members: BTreeMap<(RangeId, MemberId), (MemberStatus, Version)>,
    /// Ranges of which a member's status has changed since they were compared.
    changed: BTreeSet<RangeId>,
    /// Possible losses reported by the current manager, and by all managers.
    losses_reported: u64,
    pub(super) losses: u64,
    /// Alarms of processes that have ended.
    pub(super) alarms: u64,
    /// Members dropped by managers that have ended, except for silence.
    pub(super) dropped: u64,
    /// Copies begun by processes that have ended.
    pub(super) copies: u64,
}

impl Observer {
    pub(super) const fn new(durability: Durability, copies_min: u8, manager: MemberId) -> Self {
        Self {
            durability,
            copies_min,
            manager,
            revision: 0,
            received: BTreeMap::new(),
            seen_epochs: BTreeMap::new(),
            heads: BTreeMap::new(),
            tails: BTreeMap::new(),
            chains: BTreeMap::new(),
            committed: BTreeMap::new(),
            members: BTreeMap::new(),
            changed: BTreeSet::new(),
            losses_reported: 0,
            losses: 0,
            alarms: 0,
            dropped: 0,
            copies: 0,
        }
    }

    /// Records the order of each chain. **map-survives**: the manager never has a map older than one that it committed.
    pub(super) fn note_map(&mut self, map: &ClusterMap) -> Result<(), String> {
        if map.revision < self.revision {
            return Err(format!("map-survives: revision {} was committed, this is {}", self.revision, map.revision));
        }
        if map.revision == self.revision {
            return Ok(());
        }
        self.revision = map.revision;
        for entry in map.ranges.iter().filter(|entry| entry.is_active()) {
            let (epoch, chain) = self.chains.entry(entry.range).or_default();
            if *epoch < entry.epoch {
                (*epoch, *chain) = (entry.epoch, entry.serving().map(|member| member.id).collect());
            }
        }
        Ok(())
    }

    /// The place in its chain of a member that serves; `None` for middles of a chain whose order is not known.
    fn place(&self, id: MemberId, member: &MemberStatus) -> Option<usize> {
        match (member.phase, self.chains.get(&member.range)) {
            ("head" | "middle" | "tail", Some((epoch, chain))) if *epoch == member.epoch => {
                chain.iter().position(|other| *other == id)
            }
            ("head", _) => Some(0),
            ("tail", _) => Some(usize::MAX),
            _ => None,
        }
    }

    /// The newest epoch that a member of the range was seen in.
    pub(super) fn newest_epoch(&self, range: RangeId) -> Epoch {
        self.members_of(range).map(|(_, (member, _))| member.epoch).max().unwrap_or_default()
    }

    /// **copies-min**: a write that a tail commits in its own epoch was received by enough serving members of that
    /// epoch. They may have stopped since, and lost it if acks do not wait for syncs.
    fn check_copies(&self, member: &MemberStatus) -> Result<(), String> {
        let MemberStatus { range, epoch, committed, .. } = *member;
        if !matches!(member.phase, "tail" | "single") || committed.epoch() != epoch {
            return Ok(()); // No write was committed in this epoch.
        }
        let received =
            self.received.get(&(range, epoch)).map_or(0, |of| of.values().filter(|last| **last >= committed).count());
        if invariants::enough_copies(received, self.copies_min) {
            return Ok(());
        }
        Err(format!("copies-min: {committed:?} is committed on {received} members, {} are needed", self.copies_min))
    }

    /// Records that a member acts in `epoch`, which it may never forget.
    pub(super) fn note_epoch(&mut self, id: MemberId, (range, epoch): (RangeId, Epoch)) {
        let seen = self.seen_epochs.entry((id, range)).or_default();
        *seen = (*seen).max(epoch);
    }

    /// Whether the manager reports a new possible loss of acked writes. It may do so only if a process was killed, and
    /// never under `sync`.
    pub(super) fn note_losses(&mut self, id: MemberId, status: &NodeStatus, unclean: bool) -> Result<bool, String> {
        if id != self.manager || status.possible_losses <= self.losses_reported {
            return Ok(false);
        }
        self.losses += status.possible_losses - self.losses_reported;
        self.losses_reported = status.possible_losses;
        match (self.durability, unclean) {
            (Durability::Sync, _) => Err("under sync the manager reports that acked writes may be missing".to_owned()),
            (_, false) => Err("no process was killed, but the manager reports missing acked writes".to_owned()),
            (_, true) => Ok(true),
        }
    }

    /// The committed version and the tail of a syncing member, if both members have committed the same version.
    pub(super) fn transfer_and_tail(&self, id: MemberId, range: RangeId) -> Option<(Version, MemberId)> {
        let (copy, _) = self.members.get(&(range, id)).filter(|(copy, _)| copy.phase == "syncing")?;
        let mut tails = self.members_of(range).filter(|(_, (member, _))| matches!(member.phase, "tail" | "single"));
        let (tail, _) = tails.find(|(_, (member, _))| {
            (member.epoch, member.committed, copy.last) == (copy.epoch, copy.committed, copy.committed)
        })?;
        Some((copy.committed, tail))
    }

    /// Permits the loss of everything committed so far.
    pub(super) fn forgive(&mut self) {
        self.committed.clear();
    }

    /// Forgets the process of a node, which has ended.
    pub(super) fn forget(&mut self, node: NodeId) {
        if node == self.manager.node() {
            self.losses_reported = 0;
        }
        self.members.retain(|(_, of), _| of.node() != node);
    }

    /// Forgets the epochs of a node whose disks were replaced by an older copy.
    pub(super) fn forget_epochs(&mut self, node: NodeId) {
        self.seen_epochs.retain(|(of, _), _| of.node() != node);
    }

    /// Records the logs of a process's members. All are recorded before any is checked, because one iteration of a
    /// local cluster takes a record through its whole chain.
    pub(super) fn note_received(&mut self, statuses: &[(MemberId, NodeStatus)]) {
        let members = statuses.iter().flat_map(|(id, status)| status.members.iter().map(move |member| (*id, member)));
        for (id, member) in members.filter(|(_, member)| is_serving(member.phase)) {
            let received = self.received.entry((member.range, member.epoch)).or_default().entry(id).or_default();
            *received = (*received).max(member.last);
        }
    }

    /// Compares the members of the ranges that have changed.
    pub(super) fn compare_changed(&mut self) -> Result<(), String> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().try_for_each(|range| self.compare(range))
    }

    /// Checks the invariants of each member after an iteration of shard `id`; `progress` returns the watermarks of its
    /// logs.
    pub(super) fn look(
        &mut self,
        id: MemberId,
        status: &NodeStatus,
        progress: impl Fn(RangeId) -> RangeProgress,
    ) -> Result<ObservedEvents, String> {
        let mut news = ObservedEvents::default();
        for member in &status.members {
            let RangeProgress { appended, flushed, synced, .. } = progress(member.range);
            let mark = match self.durability {
                Durability::Sync => synced,
                Durability::EverySecond => flushed,
                Durability::Memory => appended,
            };
            let judged = |member: &MemberStatus| (member.epoch, member.phase, member.last, member.committed);
            let before = self.members.get_mut(&(member.range, id));
            if let Some((before, mark_before)) = before {
                if (judged(before), *mark_before) == (judged(member), mark) {
                    before.time = member.time;
                    continue;
                }
                let has_copied = member.phase == "syncing" && before.phase == "copying";
                news.copied.extend(has_copied.then_some((id, member.range)));
                let served = before.epoch == member.epoch && is_serving(before.phase);
                news.has_begun |= is_serving(member.phase) && !served;
            } else {
                news.has_begun |= is_serving(member.phase);
            }
            self.look_at(id, member).map_err(|error| format!("shard {id}, {:?}: {error}", member.range))?;
            self.members.insert((member.range, id), (member.clone(), mark));
            self.changed.insert(member.range);
        }
        Ok(news)
    }

    /// All members of the range.
    fn members_of(&self, range: RangeId) -> impl Iterator<Item = (MemberId, &(MemberStatus, Version))> {
        let of_range = self.members.range((range, MemberId(0))..=(range, MemberId(u32::MAX)));
        of_range.map(|((_, id), member)| (*id, member))
    }

    fn look_at(&mut self, id: MemberId, member: &MemberStatus) -> Result<(), String> {
        let MemberStatus { range, epoch, phase, last, committed, .. } = *member;
        let seen = self.seen_epochs.get(&(id, range)).copied().unwrap_or_default();
        if !invariants::epochs_only_grow(seen, epoch) {
            return Err(format!("epochs-only-grow: was in {seen:?}, now in {epoch:?}"));
        }
        if let (Some(broken), Durability::Sync) = (&member.broken, self.durability) {
            return Err(format!("broken: {broken}"));
        }
        if !invariants::committed_is_kept(committed, last) {
            return Err(format!("committed-is-kept: {committed:?} of a log that ends at {last:?}"));
        }
        if is_serving(phase) {
            self.note_epoch(id, (range, epoch));
            self.check_copies(member)?;
        }
        if matches!(phase, "head" | "single") {
            one(&mut self.heads, (range, epoch), id, "head")?;
        }
        if matches!(phase, "tail" | "single") {
            one(&mut self.tails, (range, epoch), id, "tail")?;
            let known = self.committed.entry(range).or_default();
            *known = (*known).max(committed);
        }
        let floor = self.committed.get(&range).copied().unwrap_or_default();
        if is_serving(phase) && !invariants::committed_survives(floor, last) {
            return Err(format!("committed-survives: {floor:?} was committed, this {phase}'s log ends at {last:?}"));
        }
        Ok(())
    }

    /// **prefix-of-predecessor** and **committed-is-kept**, among members of one epoch.
    fn compare(&self, range: RangeId) -> Result<(), String> {
        let mut chain: Vec<_> = self
            .members_of(range)
            .filter_map(|(id, (member, mark))| Some((member.epoch, self.place(id, member)?, member, *mark)))
            .collect();
        chain.sort_by_key(|(epoch, place, ..)| (*epoch, *place));
        for (at, &(epoch, _, above, mark)) in chain.iter().enumerate() {
            for &(_, _, below, _) in chain[at + 1..].iter().filter(|(other, ..)| *other == epoch) {
                let (up, down) = (above.phase, below.phase);
                if !invariants::prefix_of_predecessor(above.last, below.last) {
                    let ends = format!("the {up} ends at {:?}, the {down} at {:?}", above.last, below.last);
                    return Err(format!("prefix-of-predecessor: {range:?} in {epoch:?}: {ends}"));
                }
                if !invariants::committed_is_kept(below.committed, mark) {
                    let early = format!("the {down} has committed {:?}, the {up} keeps {mark:?}", below.committed);
                    return Err(format!("committed-is-kept: {range:?} in {epoch:?}: {early}"));
                }
                if above.committed > below.committed {
                    return Err(format!("{range:?} in {epoch:?}: the {up} commits ahead of the {down}"));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn is_serving(phase: &str) -> bool {
    matches!(phase, "head" | "middle" | "tail" | "single")
}

/// **one-serving-tail** (and head) per range and epoch.
fn one(
    seen: &mut BTreeMap<(RangeId, Epoch), MemberId>,
    at: (RangeId, Epoch),
    id: MemberId,
    what: &str,
) -> Result<(), String> {
    let first = *seen.entry(at).or_insert(id);
    if first == id { Ok(()) } else { Err(format!("two {what}s in {:?}: shard {first} was one already", at.1)) }
}
