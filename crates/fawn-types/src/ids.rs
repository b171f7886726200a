//! Identifiers of nodes, shards, ranges, process starts and client operations; distinct types cannot be confused.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);
    };
}

id! {
    /// A machine, or one of the demo's three nodes; assigned by the manager, never reused.
    NodeId(u32)
}
id! {
    /// A single-threaded executor of ranges and sessions within a node.
    ShardId(u16)
}
id! {
    /// A contiguous part of the ring with one chain. The ID survives membership changes, but not a split or merge.
    RangeId(u32)
}

impl RangeId {
    /// Ranges of a cluster have lower numbers.
    pub const NUMBERS_MAX: u32 = 1 << 31;
}

id! {
    /// A node's position on the ring, high 64 bits: the node holds the keys up to this point [FAWN09 §3.4.1].
    VirtualId(u64)
}
id! {
    /// One start of a node's process: the number of the store's open (high 32 bits) and a random part (low 32 bits).
    /// Boots of one node are ordered by their opens. Zero: no boot.
    BootId(u64)
}

/// A shard of a node, which has a store of its own: the place of a chain's member. The node's number in the high 20
/// bits, the shard's in the low 12.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MemberId(pub u32);

impl MemberId {
    /// Nodes of a cluster have lower numbers.
    pub const NODES_MAX: u32 = 1 << 20;
    /// Shards of a node in a cluster have lower numbers.
    pub const SHARDS_MAX: u16 = 1 << 12;

    /// Shard `shard` of `node`.
    #[must_use]
    pub const fn new(node: NodeId, shard: ShardId) -> Self {
        assert!(node.0 < Self::NODES_MAX && shard.0 < Self::SHARDS_MAX, "a number beyond its limit");
        Self(node.0 << 12 | shard.0 as u32)
    }

    /// Its node.
    #[must_use]
    pub const fn node(self) -> NodeId {
        NodeId(self.0 >> 12)
    }

    /// Its shard among those of the node.
    #[must_use]
    pub const fn shard(self) -> ShardId {
        ShardId((self.0 & 0xfff) as u16)
    }
}

impl core::fmt::Debug for MemberId {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "MemberId({self})")
    }
}

impl core::fmt::Display for MemberId {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{}.{}", self.node().0, self.shard().0)
    }
}

/// Order of a boot relative to the newest known boot of the same shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootOrder {
    /// The same boot.
    Same,
    /// A later open of the store.
    Newer,
    /// An earlier open of the store: its process has ended, or must end.
    Older,
    /// The same open with another random part: another process, on a copy of the directory.
    Twin,
}

impl BootId {
    /// The boot of open number `generation`, with its random part.
    #[must_use]
    pub const fn new(generation: u32, random: u32) -> Self {
        Self((generation as u64) << 32 | random as u64)
    }

    /// The number of the store's open.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Compares this boot with `known`, the newest known boot of the same node.
    #[must_use]
    pub const fn against(self, known: Self) -> BootOrder {
        if self.0 == known.0 {
            BootOrder::Same
        } else if self.generation() > known.generation() || known.0 == 0 {
            BootOrder::Newer
        } else if self.generation() < known.generation() {
            BootOrder::Older
        } else {
            BootOrder::Twin
        }
    }
}

/// Identity of one client operation for exactly-once execution: a session and its sequence number; all zero: no tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ClientTag {
    /// The session's number, unique in the cluster.
    pub session: u64,
    /// Sequence number within the session, without gaps, from 1.
    pub seq: u64,
}

impl ClientTag {
    /// No identity: the operation is executed exactly once only from the front-end to the back-ends.
    pub const NONE: Self = Self { session: 0, seq: 0 };

    /// The shard that opened the session: its high half.
    #[must_use]
    pub const fn member(self) -> MemberId {
        MemberId((self.session >> 32) as u32)
    }

    /// Whether the tag identifies an operation.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.session != 0
    }
}
