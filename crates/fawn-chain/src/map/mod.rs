//! Owns the cluster map: nodes, ranges with their chains and epochs, and the spine of activations that logs hang on.
//!
//! Kept by the manager, copied by everybody else; any stale copy is safe because every message names its epoch.
mod decode;
mod encode;

pub(crate) use decode::{EntryLayout, read_entry, read_epoch};
pub use decode::{decode_map, decode_state};
pub(crate) use encode::{IMAGE_VERSION, STATE_VERSION, put_entry};
pub use encode::{encode_map, encode_state};

use crate::ring::{Ring, RingNode, RingOptions};
use alloc::string::String;
use alloc::vec::Vec;
use fawn_types::{BootId, Durability, Epoch, HashSecret, KeyRange, NodeId, RangeId, RingKey, TimeMs, Version};

/// Activations remembered per range. A copy that slept through more of them is copied anew, never merged.
pub const HISTORY_MAX: usize = 64;

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberRole {
    /// Part of the chain: it is awaited by every commit.
    Serving,
    /// Streams behind the tail, is never awaited and never read.
    Syncing,
}

/// A copy of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The machine.
    pub node: NodeId,
    /// The start of its process that took this part; another boot of the same machine must go through the handshake.
    pub boot: BootId,
    /// Its part.
    pub role: MemberRole,
}

/// Where a chain stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChainState {
    /// `Prepare(epoch)` is committed: nobody serves, logs are being made equal.
    Preparing,
    /// `Active(epoch, base)` is committed: serving members serve.
    Active,
}

/// One activation: from `base` on, this epoch's head wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activation {
    /// The epoch.
    pub epoch: Epoch,
    /// The last version of every serving member's log at that moment, synced on each.
    pub base: Version,
}

/// Who may restart a chain [replication.md §2.2].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastActive {
    /// The last epoch that was activated.
    pub epoch: Epoch,
    /// When a write counted as kept in it: what may be expected of logs that are older than the next one.
    pub durability: Durability,
    /// Its serving members with the boots in which they served.
    pub members: Vec<Member>,
}

/// A range and its chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeEntry {
    /// Which range.
    pub range: RangeId,
    /// The ring keys inside.
    pub keys: KeyRange,
    /// The reign; only grows.
    pub epoch: Epoch,
    /// Counts changes within an epoch: syncing members come and go without stopping the chain.
    pub revision: u32,
    /// Preparing or active.
    pub state: ChainState,
    /// When a write of this epoch counts as kept, the same on every member.
    pub durability: Durability,
    /// The activation's base; meaningful while active.
    pub base: Version,
    /// Greatest chain time any member had seen at activation; a new head starts there.
    pub time: TimeMs,
    /// Serving members in chain order, head first, then syncing ones.
    pub members: Vec<Member>,
    /// Who served last; kept through `Preparing`.
    pub last_active: Option<LastActive>,
    /// The newest activations, oldest first.
    pub history: Vec<Activation>,
}

impl RangeEntry {
    /// A range that never served.
    #[must_use]
    pub fn new(range: RangeId, keys: KeyRange, chain: &[NodeId]) -> Self {
        let member = |&node| Member { node, boot: BootId::default(), role: MemberRole::Serving };
        Self {
            range,
            keys,
            epoch: Epoch::default(),
            revision: 0,
            state: ChainState::Preparing,
            durability: Durability::default(),
            base: Version::ZERO,
            time: TimeMs::default(),
            members: chain.iter().map(member).collect(),
            last_active: None,
            history: Vec::new(),
        }
    }

    /// The copy on `node`, if it has one.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// The chain: serving members, head first.
    pub fn serving(&self) -> impl DoubleEndedIterator<Item = &Member> + Clone {
        self.members.iter().filter(|member| member.role == MemberRole::Serving)
    }

    /// Members that stream behind the tail.
    pub fn syncing(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == MemberRole::Syncing)
    }

    /// Who writes go to; `None` while not active.
    #[must_use]
    pub fn head(&self) -> Option<NodeId> {
        self.is_active().then(|| self.serving().next()).flatten().map(|member| member.node)
    }

    /// Who commits, replies and is read; `None` while not active.
    #[must_use]
    pub fn tail(&self) -> Option<NodeId> {
        self.is_active().then(|| self.serving().next_back()).flatten().map(|member| member.node)
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == ChainState::Active
    }

    /// Its age among entries of the same range: newer compares greater.
    #[must_use]
    pub fn age(&self) -> (Epoch, ChainState, u32) {
        (self.epoch, self.state, self.revision)
    }

    /// How much of a log that ends in `last` lies on the spine, the one history that activations agreed on.
    ///
    /// A version is assigned once, and every log of epoch e holds all of base(e); so a log that ends in epoch e agrees
    /// with the spine up to the base of the next activation after e, and whatever it holds above was never committed.
    /// A log that ends in an epoch below that of the oldest remembered base is forgotten: the copy starts from scratch.
    #[must_use]
    pub fn common_point(&self, last: Version) -> Version {
        // An activation writes no record. While a range is idle, all activations share one base, and forgetting some of
        // them loses nothing: the base of the first one after `last` is the oldest remembered base.
        let is_full = self.history.len() == HISTORY_MAX;
        let forgotten = is_full && self.history.first().is_some_and(|first| last.epoch() < first.base.epoch());
        if forgotten {
            return Version::ZERO;
        }
        let next = self.history.iter().find(|activation| activation.epoch > last.epoch());
        next.map_or(last, |activation| last.min(activation.base))
    }

    /// Remembers an activation, forgetting the oldest one past [`HISTORY_MAX`].
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
    /// Which; never reused.
    pub node: NodeId,
    /// Multiplies its virtual IDs.
    pub weight: u16,
    /// Its failure domain; 0: not labelled.
    pub domain: u32,
    /// Where its peers reach it, as the binary writes addresses; opaque here.
    pub address: String,
}

/// The whole map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterMap {
    /// Counts committed maps.
    pub revision: u64,
    /// Places keys.
    pub secret: HashSecret,
    /// When a write counts as kept in epochs to come; each range's entry says it of its present one.
    pub durability: Durability,
    /// R and V.
    pub ring: RingOptions,
    /// Machines, by ID.
    pub nodes: Vec<NodeEntry>,
    /// Ranges in ring order: together they cover the ring.
    pub ranges: Vec<RangeEntry>,
}

impl ClusterMap {
    /// The map of a new cluster: the ring's layout, no range active yet.
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
        let node = |node: &NodeEntry| RingNode { node: node.node, weight: node.weight, domain: node.domain };
        Ring::new(&self.secret, &self.nodes.iter().map(node).collect::<Vec<_>>(), self.ring)
    }

    /// The range that `key` lies in; `None` only for a map without ranges.
    #[must_use]
    pub fn range_of(&self, key: &RingKey) -> Option<&RangeEntry> {
        let above = self.ranges.partition_point(|entry| entry.keys.start <= *key);
        let entry = self.ranges.get(above.checked_sub(1)?)?;
        entry.keys.contains(key).then_some(entry)
    }

    /// The range called `range`.
    #[must_use]
    pub fn range(&self, range: RangeId) -> Option<&RangeEntry> {
        self.ranges.iter().find(|entry| entry.range == range)
    }

    /// The same, to change it.
    pub fn range_mut(&mut self, range: RangeId) -> Option<&mut RangeEntry> {
        self.ranges.iter_mut().find(|entry| entry.range == range)
    }

    /// Takes `entry` if it is newer than what is held; whether it was.
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
