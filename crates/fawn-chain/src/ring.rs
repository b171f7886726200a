//! The ring: virtual IDs hashed from node IDs, and the nodes that form each range's chain [FAWN09 §3.4.1].
use alloc::vec::Vec;
use core::hash::Hasher;
use fawn_types::{HashSecret, KeyRange, NodeId, RingKey, VirtualId};
use siphasher::sip::SipHasher13;

/// Maximum number of members of a chain; a longer chain only adds latency.
pub const CHAIN_MEMBERS_MAX: usize = 8;

/// Layout parameters of a ring.
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

/// The ring's view of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingNode {
    /// The node's ID.
    pub node: NodeId,
    /// Multiplies its virtual IDs: a machine with twice the flash holds twice the ranges.
    pub weight: u16,
    /// Failure domain (rack, power strip); 0 if not labelled, which counts as a separate domain.
    pub domain: u32,
}

/// One range of the layout and the nodes that should hold it, head first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeLayout {
    /// The ring keys in the range.
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

/// The `index`-th virtual ID of `node`. Depends on the node's ID only, so a node that returns owns the same ranges.
#[must_use]
pub fn virtual_id(secret: &HashSecret, node: NodeId, index: u16) -> VirtualId {
    let mut hasher = SipHasher13::new_with_key(&secret.0);
    hasher.write(b"fawn virtual id");
    hasher.write(&node.0.to_le_bytes());
    hasher.write(&index.to_le_bytes());
    VirtualId(hasher.finish())
}

/// The ring key of a virtual ID. It is a range boundary: its 64 low bits are zero, so no `{tag}` spans two ranges.
#[must_use]
pub fn position(id: VirtualId) -> RingKey {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&id.0.to_be_bytes());
    RingKey(bytes)
}

impl Ring {
    /// Places every node's virtual IDs. Two nodes that hash to one point are in node order.
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

    /// The chain of the virtual ID at `index`: its node, then the next R−1 *other nodes* clockwise. They are in
    /// different failure domains as long as there are enough domains.
    #[must_use]
    pub fn chain_at(&self, index: usize) -> Vec<NodeId> {
        let wanted = usize::from(self.options.replication);
        let clockwise = || (0..self.points.len()).map(|step| self.points[(index + step) % self.points.len()].1);
        let mut chain: Vec<RingNode> = Vec::with_capacity(wanted);
        // The first pass accepts new domains only. The second accepts any new node: a copy in a shared domain
        // is better than none.
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

    /// The ranges in ring order. The first virtual ID also owns the keys above the last one (the ring is closed), as a
    /// separate range. Neighbours with equal chains are merged, so a single node has one range.
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
