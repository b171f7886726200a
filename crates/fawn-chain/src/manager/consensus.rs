//! `Consensus`: the trait that commits each new map, and its file-backed single member. Raft is another implementation.
use alloc::vec::Vec;

/// Agrees on a sequence of maps. The manager proposes at most one at a time and acts on none before it is committed.
pub trait Consensus {
    /// Proposes the encoded map of `revision` as the next one.
    fn propose(&mut self, revision: u64, image: Vec<u8>);

    /// The outcome of proposals.
    fn poll_event(&mut self) -> Option<ConsensusEvent>;

    /// Bytes that this shard must store durably before it calls `handle_persisted`; each is returned once.
    fn poll_persist(&mut self) -> Option<(u64, Vec<u8>)>;

    /// The bytes of `revision` are durable on this shard.
    fn handle_persisted(&mut self, revision: u64);
}

/// The outcome of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConsensusEvent {
    /// The map is committed permanently.
    Committed {
        /// The map's revision.
        revision: u64,
    },
    /// The map is not committed and never will be: another leader's came first. The manager restarts from the committed
    /// map.
    Lost {
        /// The map's revision.
        revision: u64,
    },
}

/// A single manager: a map is committed once the host reports it as durable. The host replaces a stored map as a whole,
/// so a crash leaves the old or the new one.
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
