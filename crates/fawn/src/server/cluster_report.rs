//! Cluster part of the admin port: chains, back-ends, problems and their remedies.
use super::counters::StoreReport;
use fawn_node::cluster::MemberStatus;
use fawn_node::{BackEndStatus, ChainStatus, ClusterStatus, StoreStatus};
use fawn_types::{Durability, MonoMs};

/// A chain without writes for this long has a problem; shorter pauses are handshakes.
const STANDS_MS: u64 = 2_000;

/// State of a cluster.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ClusterReport {
    /// Some chain has fewer copies than configured.
    pub(crate) is_degraded: bool,
    /// Remedy, if there is one.
    pub(crate) advice: Option<String>,
    pub(crate) chains: Vec<ChainReport>,
    pub(crate) back_ends: Vec<BackEndReport>,
    pub(crate) members_dropped: u64,
    pub(crate) possible_losses: u64,
    /// How long some chain has taken no writes, ms.
    pub(crate) unavailable_ms: Option<u64>,
}

/// State of a chain.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ChainReport {
    pub(crate) range: u32,
    pub(crate) epoch: u32,
    pub(crate) durability: &'static str,
    pub(crate) takes_writes: bool,
    pub(crate) copies: usize,
    pub(crate) copies_wanted: usize,
}

/// State of one shard of a back-end.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct BackEndReport {
    pub(crate) node: u32,
    /// Its number among the node's shards.
    pub(crate) shard: u16,
    /// The failure that stopped its store's writes, if any.
    pub(crate) poisoned: Option<String>,
    /// Directory of its store, under the data directory.
    pub(crate) directory: String,
    pub(crate) store: StoreReport,
    pub(crate) copies: Vec<CopyReport>,
}

/// A back-end's copy of one range.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct CopyReport {
    pub(crate) range: u32,
    pub(crate) phase: &'static str,
    /// Progress of a full resync; until it ends this is no copy.
    pub(crate) copying: Option<CopyingReport>,
    pub(crate) broken: Option<String>,
}

/// Progress of a full resync.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct CopyingReport {
    /// Keys received.
    pub(crate) keys: u64,
    /// Estimated number of keys; 0 until the first chunk has arrived.
    pub(crate) keys_estimated: u64,
}

impl ClusterReport {
    pub(super) fn of(status: &ClusterStatus, now: MonoMs) -> Self {
        let ClusterStatus { chains, back_ends, unavailable_since, members_dropped, possible_losses } = status;
        Self {
            is_degraded: status.is_degraded(),
            advice: advice(back_ends),
            chains: chains.iter().map(ChainReport::of).collect(),
            back_ends: back_ends.iter().map(BackEndReport::of).collect(),
            members_dropped: *members_dropped,
            possible_losses: *possible_losses,
            unavailable_ms: unavailable_since.map(|since| now.ms_since(since)),
        }
    }

    /// Reason to send no clients here, if there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        let unavailable_ms = self.unavailable_ms.filter(|ms| *ms >= STANDS_MS)?;
        let advice = self.advice.as_deref().unwrap_or("see the log");
        Some(format!("a chain has taken no writes for {unavailable_ms} ms: {advice}"))
    }

    /// Chains with fewer copies than configured.
    pub(crate) fn degraded(&self) -> u64 {
        self.chains.iter().filter(|chain| chain.copies < chain.copies_wanted).count() as u64
    }

    /// Smallest number of copies of a chain.
    pub(crate) fn copies_min(&self) -> u64 {
        self.chains.iter().map(|chain| chain.copies).min().unwrap_or(0) as u64
    }
}

impl ChainReport {
    const fn of(chain: &ChainStatus) -> Self {
        Self {
            range: chain.range.0,
            epoch: chain.epoch.get(),
            durability: match chain.durability {
                Durability::Sync => "sync",
                Durability::EverySecond => "everysec",
                Durability::Memory => "memory",
            },
            takes_writes: chain.takes_writes,
            copies: chain.copies,
            copies_wanted: chain.copies_wanted,
        }
    }
}

impl BackEndReport {
    fn of(back_end: &BackEndStatus) -> Self {
        Self {
            node: back_end.id.node().0,
            shard: back_end.id.shard().0,
            poisoned: back_end.poisoned.clone(),
            directory: super::cluster::dir_name(back_end.id),
            store: StoreReport(StoreStatus { poisoned: back_end.poisoned.clone(), ..back_end.store.clone() }),
            copies: back_end.members.iter().map(CopyReport::of).collect(),
        }
    }
}

impl CopyReport {
    fn of(member: &MemberStatus) -> Self {
        Self {
            range: member.range.0,
            phase: member.phase,
            copying: member.copied.map(|(keys, keys_estimated)| CopyingReport { keys, keys_estimated }),
            broken: member.broken.clone(),
        }
    }
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
    use fawn_types::{Epoch, MemberId, NodeId, RangeId, ShardId, Version};

    fn member(phase: &'static str, copied: Option<(u64, u64)>) -> MemberStatus {
        MemberStatus {
            range: RangeId(1),
            epoch: Epoch::default(),
            phase,
            durability: Durability::Sync,
            last: Version::ZERO,
            committed: Version::ZERO,
            time: fawn_types::TimeMs(0),
            keys: 0,
            copied,
            broken: None,
        }
    }

    fn cluster(copies: usize, poisoned: Option<&str>, unavailable_since: Option<MonoMs>) -> ClusterReport {
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
        let status = ClusterStatus { chains, back_ends, unavailable_since, members_dropped: 1, possible_losses: 0 };
        ClusterReport::of(&status, MonoMs(10_000))
    }

    #[test]
    fn a_copy_less_is_told_but_no_reason_to_send_clients_away() {
        let whole = cluster(3, None, None);
        assert!(!whole.is_degraded && whole.degraded() == 0 && whole.advice.is_none() && whole.trouble().is_none());
        let limping = cluster(2, Some("write of segment-1: EIO"), None);
        assert!(limping.is_degraded && limping.degraded() == 1 && limping.copies_min() == 2);
        assert!(limping.trouble().is_none());
        let advice = limping.advice.expect("what to do");
        assert!(advice.contains("node 2") && advice.contains("EIO") && advice.contains("restart"), "{advice}");
    }

    #[test]
    fn a_chain_that_stands_is_trouble_once_it_lasts() {
        assert_eq!(cluster(1, Some("EIO"), Some(MonoMs(9_990))).trouble(), None, "members change in milliseconds");
        let trouble = cluster(1, Some("EIO"), Some(MonoMs(7_000))).trouble().expect("it lasts");
        assert!(trouble.contains("3000 ms") && trouble.contains("node 2"), "{trouble}");
    }
}
