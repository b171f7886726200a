//! Cluster part of the admin port: chains, back-ends, problems and their remedies.
use super::counters::store_json;
use fawn_node::cluster::MemberStatus;
use fawn_node::{BackEndStatus, ChainStatus, ClusterStatus};
use fawn_types::MonoMs;
use serde_json::{Value, json};

/// A chain without writes for this long has a problem; shorter pauses are handshakes.
const UNAVAILABLE_MS_MIN: u64 = 2_000;

/// State of a cluster.
pub(super) fn cluster_json(cluster: &ClusterStatus, now: MonoMs) -> Value {
    json!({
        // Some chain has fewer copies than configured.
        "is_degraded": cluster.is_degraded(),
        // Remedy, if there is one.
        "advice": advice(&cluster.back_ends),
        "chains": cluster.chains.iter().map(chain_json).collect::<Vec<_>>(),
        "back_ends": cluster.back_ends.iter().map(back_end_json).collect::<Vec<_>>(),
        "members_dropped": cluster.members_dropped,
        "possible_losses": cluster.possible_losses,
        // How long some chain has taken no writes.
        "unavailable_ms": cluster.unavailable_since.map(|since| now.ms_since(since)),
    })
}

fn chain_json(chain: &ChainStatus) -> Value {
    json!({
        "range": chain.range.0,
        "epoch": chain.epoch.get(),
        "durability": chain.durability.name(),
        "takes_writes": chain.takes_writes,
        "copies": chain.copies,
        "copies_wanted": chain.copies_wanted,
    })
}

/// State of one shard of a back-end.
fn back_end_json(back_end: &BackEndStatus) -> Value {
    json!({
        "node": back_end.id.node().0,
        "shard": back_end.id.shard().0,
        // The failure that stopped its store's writes, if any.
        "poisoned": back_end.poisoned,
        // Directory of its store, under the data directory.
        "directory": super::cluster::dir_name(back_end.id),
        "store": store_json(&back_end.store),
        "copies": back_end.members.iter().map(copy_json).collect::<Vec<_>>(),
    })
}

/// A back-end's copy of one range.
fn copy_json(copy: &MemberStatus) -> Value {
    // The estimate is 0 until the first chunk has arrived.
    let copying = |(keys, keys_estimated)| json!({ "keys": keys, "keys_estimated": keys_estimated });
    json!({
        "range": copy.range.0,
        "phase": copy.phase,
        // Progress of a full resync; until it ends this is no copy.
        "copying": copy.copied.map(copying),
        "broken": copy.broken,
    })
}

/// Reason to send no clients to a cluster, if there is one.
pub(super) fn unready_reason(cluster: &ClusterStatus, now: MonoMs) -> Option<String> {
    let unavailable_ms =
        cluster.unavailable_since.map(|since| now.ms_since(since)).filter(|ms| *ms >= UNAVAILABLE_MS_MIN)?;
    let advice = advice(&cluster.back_ends).unwrap_or_else(|| "see the log".to_owned());
    Some(format!("a chain has taken no writes for {unavailable_ms} ms: {advice}"))
}

/// Remedy for the first failed back-end.
fn advice(back_ends: &[BackEndStatus]) -> Option<String> {
    back_ends.iter().find_map(|back_end| {
        let (node, shard) = (back_end.id.node().0, back_end.id.shard().0);
        if let Some(failure) = &back_end.poisoned {
            let steps = "check its disk, restart, and run `fawn check` on its directory if it happens again";
            return Some(format!("the store of node {node}, shard {shard}, takes no more writes: {failure}; {steps}"));
        }
        let (range, why) = back_end.members.iter().find_map(|copy| Some((copy.range, copy.broken.as_deref()?)))?;
        Some(format!("the copy of range {} on node {node}, shard {shard}, has failed: {why}; restart it", range.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_node::StoreStatus;
    use fawn_types::{Durability, Epoch, MemberId, NodeId, RangeId, ShardId, Version};

    fn member(phase: &'static str, copied: Option<(u64, u64)>) -> MemberStatus {
        MemberStatus {
            range: RangeId(1),
            epoch: Epoch::default(),
            phase,
            durability: Durability::Sync,
            last: Version::ZERO,
            committed: Version::ZERO,
            time: fawn_types::TimeMs(0),
            time_began: fawn_types::TimeMs(0),
            keys: 0,
            copied,
            broken: None,
        }
    }

    const NOW: MonoMs = MonoMs(10_000);

    fn cluster(copies: usize, poisoned: Option<&str>, unavailable_since: Option<MonoMs>) -> ClusterStatus {
        let chain = ChainStatus {
            range: RangeId(1),
            epoch: Epoch::default(),
            is_active: true,
            durability: Durability::Sync,
            copies,
            takes_writes: unavailable_since.is_none(),
            copies_wanted: 3,
        };
        let back_end = BackEndStatus {
            id: MemberId::new(NodeId(2), ShardId(0)),
            poisoned: poisoned.map(str::to_owned),
            store: StoreStatus::default(),
            members: vec![member("failed", None)],
        };
        let (chains, back_ends) = (vec![chain], vec![back_end]);
        ClusterStatus { chains, back_ends, unavailable_since, members_dropped: 1, possible_losses: 0 }
    }

    #[test]
    fn a_copy_less_is_told_but_no_reason_to_send_clients_away() {
        let whole = cluster(3, None, None);
        assert!(!whole.is_degraded() && advice(&whole.back_ends).is_none() && unready_reason(&whole, NOW).is_none());
        let limping = cluster(2, Some("write of segment-1: EIO"), None);
        assert!(limping.is_degraded() && unready_reason(&limping, NOW).is_none());
        let advice = advice(&limping.back_ends).expect("what to do");
        assert!(advice.contains("node 2") && advice.contains("EIO") && advice.contains("restart"), "{advice}");
    }

    #[test]
    fn a_chain_that_stands_is_trouble_once_it_lasts() {
        let since = |ms| unready_reason(&cluster(1, Some("EIO"), Some(MonoMs(ms))), NOW);
        assert_eq!(since(9_990), None, "members change in milliseconds");
        let unready_reason = since(7_000).expect("it lasts");
        assert!(unready_reason.contains("3000 ms") && unready_reason.contains("node 2"), "{unready_reason}");
    }
}
