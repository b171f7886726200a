//! Owns where a cluster in one thread keeps its manager's map: in all stores; committed once most of them have it.
//!
//! So no single disk decides whether chains can change: also the one whose failure is to be dealt with.
use crate::cluster::kept_map;
use fawn_chain::{ClusterMap, DecodeError};
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::NodeId;

/// One map on its way into the stores.
#[derive(Debug, Default)]
pub(super) struct MapPersistence {
    revision: u64,
    kept_by: Vec<NodeId>,
    /// The map, until most stores have it: a store that is opened meanwhile is given it too.
    image: Option<Vec<u8>>,
}

impl MapPersistence {
    /// A map is given to the stores; the former one was kept, because the manager offers one at a time.
    pub(super) fn begin(&mut self, revision: u64, image: Vec<u8>) {
        assert!(revision > self.revision, "maps are numbered upwards: {revision} after {}", self.revision);
        *self = Self { revision, kept_by: Vec::new(), image: Some(image) };
    }

    /// The map that most stores do not have yet, for a store that was just opened.
    pub(super) fn wanted(&self) -> Option<(u64, &[u8])> {
        self.image.as_deref().map(|image| (self.revision, image))
    }

    /// A store has kept a map; whether that makes it enough for the one on its way, which is told once.
    pub(super) fn note(&mut self, node: NodeId, revision: u64, stores: usize) -> bool {
        if revision != self.revision || self.kept_by.contains(&node) {
            return false;
        }
        self.kept_by.push(node);
        let is_enough = self.kept_by.len() == stores / 2 + 1;
        if is_enough {
            self.image = None;
        }
        is_enough
    }
}

/// The newest map that any store holds. It was committed if most of them hold it; if not, nothing followed from it yet,
/// and taking it up is as good as the next one.
pub(super) fn newest<'a, D: Device + 'a>(
    engines: impl Iterator<Item = &'a Engine<D>>,
) -> Result<Option<ClusterMap>, DecodeError> {
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
    fn most_stores_are_enough_and_told_once() {
        let mut keeping = MapPersistence::default();
        keeping.begin(1, vec![1]);
        assert!(!keeping.note(NodeId(1), 1, 3));
        assert!(!keeping.note(NodeId(1), 1, 3), "the same store again");
        assert_eq!(keeping.wanted(), Some((1, &[1][..])), "a store that is opened now is asked too");
        assert!(keeping.note(NodeId(3), 1, 3));
        assert_eq!(keeping.wanted(), None);
        assert!(!keeping.note(NodeId(2), 1, 3));
        keeping.begin(2, vec![2]);
        assert!(!keeping.note(NodeId(2), 1, 3), "late, of the former map");
        assert!(!keeping.note(NodeId(2), 2, 3) && keeping.note(NodeId(3), 2, 3));
        keeping.begin(3, vec![3]);
        assert!(keeping.note(NodeId(1), 3, 1), "one store alone");
    }
}
