//! Cluster map: nodes, ranges with their chains and epochs, and the history of activations that logs must match.
//!
//! The manager keeps the map; all other nodes have copies. A stale copy is safe, because every message contains its
//! epoch.
mod decode;
mod encode;

pub(crate) use decode::{MEMBERS_MAX, read_entry, read_epoch};
pub use decode::{decode_map, decode_state};
pub(crate) use encode::put_entry;
pub use encode::{encode_map, encode_state};

use crate::ring::{Ring, RingOptions, RingShard};
use alloc::string::String;
use alloc::vec::Vec;
use fawn_types::{
    BootId, Durability, Epoch, HashSecret, KeyRange, MemberId, NodeId, RangeId, RingKey, ShardId, TimeMs, Version,
};

/// Activations remembered per range. A copy that missed more of them needs a full resync; it is never merged.
pub const HISTORY_MAX: usize = 64;

/// Role of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberRole {
    /// Part of the chain: every commit waits for it.
    Serving,
    /// Receives records from the tail; no commit waits for it and it serves no reads.
    Syncing,
}

/// A copy of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainMember {
    /// The shard that hosts it.
    pub id: MemberId,
    /// The boot of its process that took this role; another boot of the same shard must go through the handshake.
    pub boot: BootId,
    /// Its role.
    pub role: MemberRole,
}

/// State of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChainState {
    /// `Prepare(epoch)` is committed: no member serves, and logs are being made equal.
    Preparing,
    /// `Active(epoch, base)` is committed: serving members serve.
    Active,
}

/// One activation: this epoch's head assigned the versions after `base`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activation {
    /// The epoch.
    pub epoch: Epoch,
    /// The last version of every serving member's log at that moment, synced on each.
    pub base: Version,
}

/// The members that may restart a chain [replication.md §2.2].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastActive {
    /// The last epoch that was activated.
    pub epoch: Epoch,
    /// Durability mode of that epoch: determines what logs older than the next epoch must contain.
    pub durability: Durability,
    /// Its serving members, with the boots in which they served.
    pub members: Vec<ChainMember>,
}

/// A range and its chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeEntry {
    /// Which range.
    pub range: RangeId,
    /// The ring keys in the range.
    pub keys: KeyRange,
    /// The chain's current epoch; it only grows.
    pub epoch: Epoch,
    /// Counts changes within an epoch: syncing members are added and removed without stopping the chain.
    pub revision: u32,
    /// Preparing or active.
    pub state: ChainState,
    /// Durability mode of this epoch, the same on every member.
    pub durability: Durability,
    /// Serving members that this epoch's writes need; a shorter chain serves reads alone.
    pub copies_min: u8,
    /// The activation's base; only meaningful while active.
    pub base: Version,
    /// Greatest chain time that any member had seen at activation; a new head starts there.
    pub time: TimeMs,
    /// Serving members in chain order, head first, then syncing ones.
    pub members: Vec<ChainMember>,
    /// The members that served last; kept while preparing.
    pub last_active: Option<LastActive>,
    /// The newest activations, oldest first.
    pub history: Vec<Activation>,
}

impl RangeEntry {
    /// A range that has never served.
    #[must_use]
    pub fn new(range: RangeId, keys: KeyRange, chain: &[MemberId]) -> Self {
        let member = |&id| ChainMember { id, boot: BootId::default(), role: MemberRole::Serving };
        Self {
            range,
            keys,
            epoch: Epoch::default(),
            revision: 0,
            state: ChainState::Preparing,
            durability: Durability::default(),
            copies_min: 1,
            base: Version::ZERO,
            time: TimeMs::default(),
            members: chain.iter().map(member).collect(),
            last_active: None,
            history: Vec::new(),
        }
    }

    /// The copy on this shard, if any.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<&ChainMember> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The chain: serving members, head first.
    pub fn serving(&self) -> impl DoubleEndedIterator<Item = &ChainMember> + Clone {
        self.members.iter().filter(|member| member.role == MemberRole::Serving)
    }

    /// Members that receive records from the tail.
    pub fn syncing(&self) -> impl Iterator<Item = &ChainMember> {
        self.members.iter().filter(|member| member.role == MemberRole::Syncing)
    }

    /// The member that receives writes; `None` while not active.
    #[must_use]
    pub fn head(&self) -> Option<MemberId> {
        self.is_active().then(|| self.serving().next()).flatten().map(|member| member.id)
    }

    /// The member that commits, replies and serves reads; `None` while not active.
    #[must_use]
    pub fn tail(&self) -> Option<MemberId> {
        self.is_active().then(|| self.serving().next_back()).flatten().map(|member| member.id)
    }

    /// Whether the chain is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == ChainState::Active
    }

    /// Whether enough members serve for writes.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        crate::invariants::enough_copies(self.serving().count(), self.copies_min)
    }

    /// The entry's age among entries of the same range: a newer one compares greater.
    #[must_use]
    pub fn age(&self) -> (Epoch, ChainState, u32) {
        (self.epoch, self.state, self.revision)
    }

    /// The last version up to which a log that ends in `last` agrees with the history of activations.
    ///
    /// A version is assigned once, and every log of epoch e holds all of base(e). So a log that ends in epoch e agrees
    /// with the history up to the base of the next activation after e. Anything that it holds above was never
    /// committed. A log that ends in an epoch below that of the oldest remembered base is forgotten: it needs a full
    /// resync.
    #[must_use]
    pub fn common_point(&self, last: Version) -> Version {
        // An activation writes no record. While a range is idle, all activations share one base, so forgetting some of
        // them loses nothing: the base of the first one after `last` is the oldest remembered base.
        let is_full = self.history.len() == HISTORY_MAX;
        let forgotten = is_full && self.history.first().is_some_and(|first| last.epoch() < first.base.epoch());
        if forgotten {
            return Version::ZERO;
        }
        let next = self.history.iter().find(|activation| activation.epoch > last.epoch());
        next.map_or(last, |activation| last.min(activation.base))
    }

    /// Adds an activation; forgets the oldest one past [`HISTORY_MAX`].
    pub fn remember(&mut self, activation: Activation) {
        let newest = self.history.last();
        assert!(newest.is_none_or(|newest| newest.epoch < activation.epoch && newest.base <= activation.base));
        if self.history.len() == HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(activation);
    }
}

/// A machine of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeEntry {
    /// The node's ID; never reused.
    pub node: NodeId,
    /// Its shards, numbered from 0: each has a store and hosts members.
    pub shards: u16,
    /// Multiplies its virtual IDs.
    pub weight: u16,
    /// Failure domain; 0 if not labelled.
    pub domain: u32,
    /// Address for its peers, in the binary's notation; opaque here.
    pub address: String,
}

/// The whole map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterMap {
    /// Counts committed maps.
    pub revision: u64,
    /// Secret of the hash that places keys.
    pub secret: HashSecret,
    /// Durability mode of epochs to come; each range's entry has the mode of its current epoch.
    pub durability: Durability,
    /// R and V.
    pub ring: RingOptions,
    /// Machines, by ID.
    pub nodes: Vec<NodeEntry>,
    /// Ranges in ring order; together they cover the ring.
    pub ranges: Vec<RangeEntry>,
}

impl ClusterMap {
    /// The map of a new cluster: the ring's layout, with no active range.
    #[must_use]
    pub fn new(secret: HashSecret, durability: Durability, ring: RingOptions, nodes: Vec<NodeEntry>) -> Self {
        assert!(!nodes.is_empty(), "a cluster has a node");
        let mut map = Self { revision: 0, secret, durability, ring, nodes, ranges: Vec::new() };
        map.nodes.sort_by_key(|node| node.node);
        let layout = map.ring().layout();
        let entry = |(index, range): (usize, crate::ring::RangeLayout)| {
            RangeEntry::new(RangeId(index as u32 + 1), range.keys, &range.chain)
        };
        map.ranges = layout.into_iter().enumerate().map(entry).collect();
        map
    }

    /// The ring of its nodes.
    #[must_use]
    pub fn ring(&self) -> Ring {
        let shards_of = |node: &NodeEntry| {
            let NodeEntry { node, shards, weight, domain, .. } = *node;
            (0..shards).map(move |shard| RingShard { id: MemberId::new(node, ShardId(shard)), weight, domain })
        };
        Ring::new(&self.secret, &self.nodes.iter().flat_map(shards_of).collect::<Vec<_>>(), self.ring)
    }

    /// The range that contains `key`; `None` only for a map without ranges.
    #[must_use]
    pub fn range_of(&self, key: &RingKey) -> Option<&RangeEntry> {
        let above = self.ranges.partition_point(|entry| entry.keys.start <= *key);
        let entry = self.ranges.get(above.checked_sub(1)?)?;
        entry.keys.contains(key).then_some(entry)
    }

    /// The least number of members that takes writes: half of a whole chain's, rounded up.
    #[must_use]
    pub fn copies_min(&self) -> u8 {
        // A ring of fewer nodes than R has chains of all its nodes.
        let whole = usize::from(self.ring.replication).min(self.nodes.len()).max(1);
        whole.div_ceil(2) as u8
    }

    /// The newest boot of a shard in any chain.
    #[must_use]
    pub fn newest_boot(&self, id: MemberId) -> BootId {
        let of_entry = |entry: &RangeEntry| entry.member(id).map(|member| member.boot);
        self.ranges.iter().filter_map(of_entry).max().unwrap_or_default()
    }

    /// The entry of `range`.
    #[must_use]
    pub fn range(&self, range: RangeId) -> Option<&RangeEntry> {
        self.ranges.iter().find(|entry| entry.range == range)
    }

    /// The mutable entry of `range`.
    pub fn range_mut(&mut self, range: RangeId) -> Option<&mut RangeEntry> {
        self.ranges.iter_mut().find(|entry| entry.range == range)
    }

    /// Replaces the held entry by `entry` if that is newer. Returns whether it was.
    pub fn update(&mut self, entry: &RangeEntry) -> bool {
        match self.range_mut(entry.range) {
            Some(held) if held.age() < entry.age() => {
                held.clone_from(entry);
                true
            }
            _ => false,
        }
    }
}
