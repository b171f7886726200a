//! Owns the ring: virtual IDs hashed from node IDs, and which nodes form the chain of which range [FAWN09 §3.4.1].
use alloc::vec::Vec;
use core::hash::Hasher;
use fawn_types::{HashSecret, KeyRange, NodeId, RingKey, VirtualId};
use siphasher::sip::SipHasher13;

/// Members of a chain at most; a chain longer than this only adds latency.
pub const CHAIN_MEMBERS_MAX: usize = 8;

/// How a ring is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingOptions {
    /// R: copies of each range.
    pub replication: u8,
    /// V: virtual IDs per node of weight 1.
    pub virtual_ids: u16,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { replication: 3, virtual_ids: 1 }
    }
}

/// What the ring needs to know of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingNode {
    /// Which.
    pub node: NodeId,
    /// Multiplies its virtual IDs: a machine with twice the flash holds twice the ranges.
    pub weight: u16,
    /// Its failure domain (rack, power strip); 0: not labelled, a domain of its own.
    pub domain: u32,
}

/// One range of the layout with the nodes that should hold it, head first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeLayout {
    /// The ring keys inside.
    pub keys: KeyRange,
    /// The chain: owner, then the next nodes clockwise.
    pub chain: Vec<NodeId>,
}

/// All virtual IDs in ring order.
#[derive(Clone, Debug)]
pub struct Ring {
    points: Vec<(VirtualId, RingNode)>,
    options: RingOptions,
}

/// The `index`-th virtual ID of `node`: a function of its ID alone, so a node that comes back owns what it owned.
#[must_use]
pub fn virtual_id(secret: &HashSecret, node: NodeId, index: u16) -> VirtualId {
    let mut hasher = SipHasher13::new_with_key(&secret.0);
    hasher.write(b"fawn virtual id");
    hasher.write(&node.0.to_le_bytes());
    hasher.write(&index.to_le_bytes());
    VirtualId(hasher.finish())
}

/// The ring key of a virtual ID: a range boundary, so its 64 low bits are zero and no `{tag}` straddles it.
#[must_use]
pub fn position(id: VirtualId) -> RingKey {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&id.0.to_be_bytes());
    RingKey(bytes)
}

impl Ring {
    /// Places every node's virtual IDs. Two nodes that hash to one point stand in node order.
    #[must_use]
    pub fn new(secret: &HashSecret, nodes: &[RingNode], options: RingOptions) -> Self {
        assert!(options.replication >= 1 && usize::from(options.replication) <= CHAIN_MEMBERS_MAX);
        assert!(options.virtual_ids >= 1, "a node without virtual IDs owns nothing");
        let mut points: Vec<_> = nodes
            .iter()
            .flat_map(|&node| {
                let count = options.virtual_ids.saturating_mul(node.weight.max(1));
                (0..count).map(move |index| (virtual_id(secret, node.node, index), node))
            })
            .collect();
        points.sort_by_key(|(id, node)| (*id, node.node));
        Self { points, options }
    }

    /// The virtual IDs with their nodes, in ring order.
    #[must_use]
    pub fn points(&self) -> &[(VirtualId, RingNode)] {
        &self.points
    }

    /// The chain of the virtual ID at `index`: its node, then the next R−1 *other nodes* clockwise, in other failure
    /// domains as long as there are enough of those.
    #[must_use]
    pub fn chain_at(&self, index: usize) -> Vec<NodeId> {
        let wanted = usize::from(self.options.replication);
        let clockwise = || (0..self.points.len()).map(|step| self.points[(index + step) % self.points.len()].1);
        let mut chain: Vec<RingNode> = Vec::with_capacity(wanted);
        // First pass: a new domain each. Second: any new node, because a copy in a shared domain beats no copy.
        for strict in [true, false] {
            for node in clockwise() {
                if chain.len() == wanted {
                    break;
                }
                let taken = chain.iter().any(|member| member.node == node.node);
                let shared = node.domain != 0 && chain.iter().any(|member| member.domain == node.domain);
                if !(taken || strict && shared) {
                    chain.push(node);
                }
            }
        }
        assert!(chain.len() <= wanted);
        chain.into_iter().map(|member| member.node).collect()
    }

    /// The ranges in ring order. The first virtual ID also owns what lies above the last one (the ring closes), as a
    /// range of its own; neighbours with the very same chain are one range, so one node alone has a single one.
    #[must_use]
    pub fn layout(&self) -> Vec<RangeLayout> {
        let mut ranges: Vec<RangeLayout> = Vec::with_capacity(self.points.len() + 1);
        if self.points.is_empty() {
            return ranges;
        }
        let mut start = RingKey::MIN;
        for (index, (id, _)) in self.points.iter().enumerate() {
            let end = position(*id);
            if end > start {
                push_merged(&mut ranges, KeyRange { start, end: Some(end) }, self.chain_at(index));
                start = end;
            }
        }
        push_merged(&mut ranges, KeyRange { start, end: None }, self.chain_at(0));
        assert!(ranges.last().is_some_and(|range| range.keys.end.is_none()), "the ring is covered to its end");
        ranges
    }
}

fn push_merged(ranges: &mut Vec<RangeLayout>, keys: KeyRange, chain: Vec<NodeId>) {
    match ranges.last_mut() {
        Some(last) if last.chain == chain => last.keys.end = keys.end,
        _ => ranges.push(RangeLayout { keys, chain }),
    }
}
