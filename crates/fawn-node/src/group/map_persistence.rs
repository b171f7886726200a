//! Persistence of the manager's map in all stores of a cluster in one thread; a majority of the nodes commits it.
//!
//! Chains can therefore be changed while a minority of the nodes is down. A node counts once one of its stores has the
//! map: with a majority of the stores, the death of a node would stop all chains after the disk of another node's shard
//! had failed.
use crate::cluster::{NodeError, kept_map};
use fawn_chain::ClusterMap;
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::NodeId;

/// A map that is being written to the stores.
#[derive(Debug, Default)]
pub(super) struct MapPersistence {
    revision: u64,
    kept_by: Vec<NodeId>,
    /// The encoded map, until a majority has it: a store that is opened before that receives it too.
    image: Option<Vec<u8>>,
}

impl MapPersistence {
    /// Begins a map; the previous one is committed, because the manager persists one at a time.
    pub(super) fn begin(&mut self, revision: u64, image: Vec<u8>) {
        assert!(revision > self.revision, "maps are numbered upwards: {revision} after {}", self.revision);
        *self = Self { revision, kept_by: Vec::new(), image: Some(image) };
    }

    /// The uncommitted map, for a store that was just opened.
    pub(super) fn wanted(&self) -> Option<(u64, &[u8])> {
        self.image.as_deref().map(|image| (self.revision, image))
    }

    /// Notes that a map is durable in a store of this node. Returns true once per map: when the majority is reached.
    pub(super) fn note(&mut self, node: NodeId, revision: u64, nodes: usize) -> bool {
        if revision != self.revision || self.kept_by.contains(&node) {
            return false;
        }
        self.kept_by.push(node);
        let is_enough = self.kept_by.len() == nodes / 2 + 1;
        if is_enough {
            self.image = None;
        }
        is_enough
    }
}

/// The newest map in any store.
///
/// An uncommitted map is used too: nothing depended on it yet, so it is as safe to commit as any successor.
pub(super) fn newest<'a, D: Device + 'a>(
    engines: impl Iterator<Item = &'a Engine<D>>,
) -> Result<Option<ClusterMap>, NodeError> {
    let mut newest: Option<ClusterMap> = None;
    for engine in engines {
        let found = kept_map(engine)?;
        newest = newest.into_iter().chain(found).max_by_key(|map| map.revision);
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_enough_and_reported_once() {
        let mut persistence = MapPersistence::default();
        persistence.begin(1, vec![1]);
        assert!(!persistence.note(NodeId(1), 1, 3));
        assert!(!persistence.note(NodeId(1), 1, 3), "another store of the same node");
        assert_eq!(persistence.wanted(), Some((1, &[1][..])), "a store that is opened now receives it too");
        assert!(persistence.note(NodeId(3), 1, 3));
        assert_eq!(persistence.wanted(), None);
        assert!(!persistence.note(NodeId(2), 1, 3));
        persistence.begin(2, vec![2]);
        assert!(!persistence.note(NodeId(2), 1, 3), "late, for the previous map");
        assert!(!persistence.note(NodeId(2), 2, 3) && persistence.note(NodeId(3), 2, 3));
        persistence.begin(3, vec![3]);
        assert!(persistence.note(NodeId(1), 3, 1), "one node alone");
    }
}
