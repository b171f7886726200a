//! Owns how a new map becomes the map: the `Consensus` trait and its file-backed single member. Raft is another one.
use alloc::vec::Vec;

/// Agrees on one map after another. The manager offers at most one at a time and acts on none before it is committed.
pub trait Consensus {
    /// Offers the encoded map of `revision` as the next one.
    fn propose(&mut self, revision: u64, image: Vec<u8>);

    /// What became of offers.
    fn poll_event(&mut self) -> Option<ConsensusEvent>;

    /// Bytes that this machine must have on its medium, then `handle_persisted`; given out once each.
    fn poll_persist(&mut self) -> Option<(u64, Vec<u8>)>;

    /// The bytes of `revision` are durable here.
    fn handle_persisted(&mut self, revision: u64);
}

/// What became of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConsensusEvent {
    /// It is the map, for good.
    Committed {
        /// Which.
        revision: u64,
    },
    /// It is not, and never will be: another leader's came first. The manager starts over from the committed map.
    Lost {
        /// Which.
        revision: u64,
    },
}

/// A single member: what is in its file is committed. The node writes the file whole, beside the old one, syncs it and
/// renames it over, so that a crash leaves the one or the other.
#[derive(Clone, Debug, Default)]
pub struct FileConsensus {
    offered: Option<(u64, Vec<u8>)>,
    persisting: Option<u64>,
    committed: Option<u64>,
}

impl Consensus for FileConsensus {
    fn propose(&mut self, revision: u64, image: Vec<u8>) {
        assert!(self.offered.is_none() && self.persisting.is_none(), "one offer at a time");
        self.offered = Some((revision, image));
    }

    fn poll_event(&mut self) -> Option<ConsensusEvent> {
        self.committed.take().map(|revision| ConsensusEvent::Committed { revision })
    }

    fn poll_persist(&mut self) -> Option<(u64, Vec<u8>)> {
        let offer = self.offered.take()?;
        self.persisting = Some(offer.0);
        Some(offer)
    }

    fn handle_persisted(&mut self, revision: u64) {
        assert!(self.persisting == Some(revision), "persisted {revision}, awaited {:?}", self.persisting);
        self.persisting = None;
        self.committed = Some(revision);
    }
}
