//! Statistics of a cluster in one thread: sums over its stores, state of its chains.
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

/// State of the chains, as reported by the members and by the manager, which `host` hosts.
pub(super) fn cluster_status<D: Device>(host: &Shard<D>, members: Vec<(MemberId, NodeStatus)>) -> ClusterStatus {
    let of_manager = host.node_status();
    let chains = host.manager_map().into_iter().flat_map(|map| {
        let copies_wanted = usize::from(map.ring.replication);
        map.ranges.iter().map(move |entry| (entry, copies_wanted))
    });
    let serves = |entry: &RangeEntry, id: MemberId| {
        let status = members.iter().find(|(name, _)| *name == id);
        let mut copies = status.into_iter().flat_map(|(_, status)| &status.members);
        copies.any(|copy| {
            let is_well = copy.phase != "failed" && copy.broken.is_none();
            copy.range == entry.range && copy.epoch == entry.epoch && is_well
        })
    };
    let chain = |(entry, copies_wanted): (&RangeEntry, usize)| {
        let copies = entry.serving().filter(|member| serves(entry, member.id)).count();
        ChainStatus {
            range: entry.range,
            epoch: entry.epoch,
            is_active: entry.is_active(),
            durability: entry.durability,
            copies,
            takes_writes: entry.is_active() && copies > 0 && copies == entry.serving().count(),
            copies_wanted,
        }
    };
    let chains = chains.map(chain).collect();
    let back_end = |(id, status): (MemberId, NodeStatus)| BackEndStatus {
        id,
        poisoned: status.poisoned,
        store: StoreStatus::default(),
        members: status.members,
    };
    ClusterStatus {
        chains,
        back_ends: members.into_iter().map(back_end).collect(),
        unavailable_since: None,
        members_dropped: of_manager.members_dropped,
        possible_losses: of_manager.possible_losses,
    }
}
