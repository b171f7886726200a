//! Owns what a node keeps in its engine's manifest: promises and entries of its members, and the manager's map.
use fawn_ds::{BlobTicket, Engine};
use fawn_flash::Device;
use fawn_types::RangeId;
use std::collections::VecDeque;

/// Names of blobs: the map is 0, a member's state its range's number with the high bit set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlobKey {
    Map,
    Replica(RangeId),
}

const REPLICA_BIT: u32 = 1 << 31;

impl BlobKey {
    pub(super) fn to_u32(self) -> u32 {
        match self {
            Self::Map => 0,
            Self::Replica(range) => {
                assert!(range.0 < REPLICA_BIT, "range numbers stay below 2^31, found {range:?}");
                range.0 | REPLICA_BIT
            }
        }
    }
}

/// Who is told when a blob is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    Replica { range: RangeId, number: u64 },
    Map { revision: u64 },
}

/// Blobs on their way to the medium, in order. Bounded: a member or manager has at most a few under way.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    under_way: VecDeque<(BlobTicket, Kept)>,
}

impl Blobs {
    /// Begins to write. A store that takes no writes keeps no promise either, so nobody is told and the member stays
    /// silent.
    pub(super) fn put<D: Device>(&mut self, engine: &mut Engine<D>, key: BlobKey, bytes: &[u8], kept: Kept) {
        match engine.put_blob(key.to_u32(), bytes) {
            Ok(ticket) => self.under_way.push_back((ticket, kept)),
            Err(error) => tracing::error!(?kept, %error, "a promise could not be kept durably"),
        }
    }

    /// The next one that is durable now.
    pub(super) fn pop_durable<D: Device>(&mut self, engine: &Engine<D>) -> Option<Kept> {
        let (ticket, kept) = *self.under_way.front()?;
        if !engine.is_blob_durable(ticket) {
            return None;
        }
        self.under_way.pop_front();
        Some(kept)
    }
}
