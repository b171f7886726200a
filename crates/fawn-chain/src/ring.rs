//! The ring: virtual IDs hashed from shards' IDs, and the shards that form each range's chain [FAWN09 §3.4.1].
use alloc::vec::Vec;
use core::hash::Hasher;
use fawn_types::{HashSecret, KeyRange, MemberId, RingKey, VirtualId};
use siphasher::sip::SipHasher13;

/// Maximum number of members of a chain; a longer chain only adds latency.
pub const CHAIN_MEMBERS_MAX: usize = 8;

/// Layout parameters of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingOptions {
    /// R: copies of each range.
    pub replication: u8,
    /// V: virtual IDs per shard of a node of weight 1.
    pub virtual_ids: u16,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { replication: 3, virtual_ids: 1 }
    }
}

/// The ring's view of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingShard {
    /// The shard and its node.
    pub id: MemberId,
    /// Multiplies its virtual IDs: a machine with twice the flash holds twice the ranges.
    pub weight: u16,
    /// Failure domain (rack, power strip); 0 if not labelled, which counts as a separate domain.
    pub domain: u32,
}

/// One range of the layout and the shards that should hold it, head first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeLayout {
    /// The ring keys in the range.
    pub keys: KeyRange,
    /// The chain: owner, then shards of the next nodes clockwise.
    pub chain: Vec<MemberId>,
}

/// All virtual IDs in ring order.
#[derive(Clone, Debug)]
pub struct Ring {
    points: Vec<(VirtualId, RingShard)>,
    options: RingOptions,
}

/// The `index`-th virtual ID of a shard. Depends on the shard's ID only, so a node that returns owns the same ranges.
#[must_use]
pub fn virtual_id(secret: &HashSecret, id: MemberId, index: u16) -> VirtualId {
    let mut hasher = SipHasher13::new_with_key(&secret.0);
    hasher.write(b"fawn virtual id");
    hasher.write(&id.0.to_le_bytes());
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
    /// Places every shard's virtual IDs. Two that hash to one point are in the order of their shards.
    #[must_use]
    pub fn new(secret: &HashSecret, shards: &[RingShard], options: RingOptions) -> Self {
        assert!(options.replication >= 1 && usize::from(options.replication) <= CHAIN_MEMBERS_MAX);
        assert!(options.virtual_ids >= 1, "a shard without virtual IDs owns nothing");
        let mut points: Vec<_> = shards
            .iter()
            .flat_map(|&shard| {
                let count = options.virtual_ids.saturating_mul(shard.weight.max(1));
                (0..count).map(move |index| (virtual_id(secret, shard.id, index), shard))
            })
            .collect();
        points.sort_by_key(|(id, shard)| (*id, shard.id));
        Self { points, options }
    }

    /// The virtual IDs with their shards, in ring order.
    #[must_use]
    pub fn points(&self) -> &[(VirtualId, RingShard)] {
        &self.points
    }

    /// The chain of the virtual ID at `index`: its shard, then shards of the next R−1 *other nodes* clockwise: the
    /// shards of one node fail together. They are in different failure domains as long as there are enough domains.
    #[must_use]
    pub fn chain_at(&self, index: usize) -> Vec<MemberId> {
        let wanted = usize::from(self.options.replication);
        let clockwise = || (0..self.points.len()).map(|step| self.points[(index + step) % self.points.len()].1);
        let mut chain: Vec<RingShard> = Vec::with_capacity(wanted);
        // The first pass accepts new domains only. The second accepts any new node: a copy in a shared domain
        // is better than none.
        for strict in [true, false] {
            for shard in clockwise() {
                if chain.len() == wanted {
                    break;
                }
                let taken = chain.iter().any(|member| member.id.node() == shard.id.node());
                let shared = shard.domain != 0 && chain.iter().any(|member| member.domain == shard.domain);
                if !(taken || strict && shared) {
                    chain.push(shard);
                }
            }
        }
        assert!(chain.len() <= wanted);
        chain.into_iter().map(|member| member.id).collect()
    }

    /// The ranges in ring order. The first virtual ID also owns the keys above the last one (the ring is closed), as a
    /// separate range. Neighbours with equal chains are merged, so a single shard has one range.
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

fn push_merged(ranges: &mut Vec<RangeLayout>, keys: KeyRange, chain: Vec<MemberId>) {
    match ranges.last_mut() {
        Some(last) if last.chain == chain => last.keys.end = keys.end,
        _ => ranges.push(RangeLayout { keys, chain }),
    }
}
