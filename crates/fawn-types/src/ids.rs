//! Owns the identities that must never be mixed up: machines, shards, ranges, boots, clients.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);
    };
}

id! {
    /// A machine, or one of the demo's three; assigned by the manager, never reused.
    NodeId(u32)
}
id! {
    /// A single-threaded owner of ranges and sessions within a node.
    ShardId(u16)
}
id! {
    /// A contiguous piece of the ring with one chain; survives changes of its members, not a split or merge.
    RangeId(u32)
}
id! {
    /// A point on the ring that a node owns the keys up to: its ring position, high 64 bits [FAWN09 §3.4.1].
    VirtualId(u64)
}
id! {
    /// Drawn anew at every start of a process, so that a restarted peer is told from the one before.
    BootId(u64)
}

/// Names one client operation for exactly-once: a session and its dense sequence number. All zero: no tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ClientTag {
    /// The session, unique in the cluster.
    pub session: u64,
    /// Dense within the session, from 1.
    pub seq: u64,
}

impl ClientTag {
    /// No identity: exactly once from the front-end inwards only.
    pub const NONE: Self = Self { session: 0, seq: 0 };

    /// Whether it names an operation.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.session != 0
    }
}
