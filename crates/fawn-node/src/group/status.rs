//! Statistics of a group: sums over its stores, state of the chains.
use super::shard_group::ShardGroup;
use crate::cluster::NodeStatus;
use crate::counters::Counted;
use crate::shard::Shard;
use crate::status::{BackEndStatus, ChainStatus, ClusterStatus, StoreStatus};
use fawn_chain::RangeEntry;
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::MemberId;

/// Sums over the stores. Keys are counted at the fullest copy: every member of a chain has all.
pub(super) fn of_engines<'a, D: Device + 'a>(engines: impl Iterator<Item = &'a Engine<D>>) -> StoreStatus {
    let mut sum = StoreStatus { device_name: "none", ..StoreStatus::default() };
    for engine in engines {
        let store = StoreStatus::of(engine);
        let keys = sum.keys.max(store.keys);
        sum.add(&store);
        sum.keys = keys;
    }
    sum
}

/// State of the chains, as reported by the members and by the manager; `None` if the group's server hosts none.
pub(super) fn cluster_status<D: Device>(group: &ShardGroup<D>) -> Option<ClusterStatus> {
    let map = group.server().manager_map()?;
    let of_manager = group.server().node_status();
    let back_end = |shard: &Shard<D>| {
        let NodeStatus { poisoned, members, .. } = shard.node_status();
        BackEndStatus { id: shard.id(), poisoned, store: StoreStatus::of(shard.engine()), members }
    };
    let back_ends: Vec<BackEndStatus> = group.shards().map(back_end).collect();
    let serves = |entry: &RangeEntry, id: MemberId| {
        let mut copies = back_ends.iter().filter(|back_end| back_end.id == id).flat_map(|back_end| &back_end.members);
        copies.any(|copy| {
            // After a restart of all, the map still has the chains of the former boots, in which no member serves.
            let has_role = matches!(copy.phase, "head" | "middle" | "tail" | "single");
            copy.range == entry.range && copy.epoch == entry.epoch && has_role && copy.broken.is_none()
        })
    };
    let chain = |entry: &RangeEntry| {
        let copies = entry.serving().filter(|member| serves(entry, member.id)).count();
        ChainStatus {
            range: entry.range,
            epoch: entry.epoch,
            is_active: entry.is_active(),
            durability: entry.durability,
            copies,
            takes_writes: entry.is_active() && copies > 0 && copies == entry.serving().count(),
            copies_wanted: usize::from(map.ring.replication),
        }
    };
    Some(ClusterStatus {
        chains: map.ranges.iter().map(chain).collect(),
        back_ends,
        unavailable_since: group.unavailable_since,
        members_dropped: of_manager.members_dropped,
        possible_losses: of_manager.possible_losses,
    })
}
