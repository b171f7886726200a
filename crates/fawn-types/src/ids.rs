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
id! {
    /// A node's position on the ring, high 64 bits: the node holds the keys up to this point [FAWN09 §3.4.1].
    VirtualId(u64)
}
id! {
    /// A random number drawn at each process start: distinguishes a restarted peer from its previous process.
    BootId(u64)
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

    /// Whether the tag identifies an operation.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.session != 0
    }
}
