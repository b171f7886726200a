//! Owns what a node keeps in its engine's manifest: promises and entries of its members, and the manager's map.
//!
//! A map may be longer than one blob. Its pieces go to one of two sets of names in turn, then the root blob names the
//! set: blobs become durable in order, so a crash leaves the whole old map or the whole new one.
use super::backend::BackEnd;
use fawn_chain::DecodeError;
use fawn_chain::map::{ClusterMap, decode_map, encode_state};
use fawn_ds::format::manifest::BLOB_BYTES_MAX;
use fawn_ds::{BlobTicket, Engine, EngineError, Progress};
use fawn_flash::Device;
use fawn_types::RangeId;
use std::collections::VecDeque;

const MAP_ROOT: u32 = 0;
const MAP_PIECES: u32 = 1;
/// Pieces of one map at most: 16 MiB, some ten thousand ranges.
const MAP_PIECES_MAX: usize = 256;
/// Names of members' blobs: the range's number with this bit.
const REPLICA_BIT: u32 = 1 << 31;

const _: () = assert!(MAP_PIECES as usize + 2 * MAP_PIECES_MAX < REPLICA_BIT as usize);

/// The name of a member's blob.
pub(super) fn replica_key(range: RangeId) -> u32 {
    assert!(range.0 < REPLICA_BIT, "range numbers stay below 2^31, found {range:?}");
    range.0 | REPLICA_BIT
}

const fn piece_key(set: u8, piece: usize) -> u32 {
    MAP_PIECES + (set as usize * MAP_PIECES_MAX + piece) as u32
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
    /// Begins to write a member's state. A store that takes no writes keeps no promise either, so nobody is told and
    /// the member stays silent.
    pub(super) fn put_replica<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        (range, number): (RangeId, u64),
        bytes: &[u8],
    ) {
        let put = engine.put_blob(replica_key(range), bytes);
        self.follow(put, Kept::Replica { range, number });
    }

    /// Begins to write a map.
    pub(super) fn put_map<D: Device>(&mut self, engine: &mut Engine<D>, revision: u64, image: &[u8]) {
        let put = put_map(engine, image);
        self.follow(put, Kept::Map { revision });
    }

    fn follow(&mut self, put: Result<BlobTicket, EngineError>, kept: Kept) {
        match put {
            Ok(ticket) => self.under_way.push_back((ticket, kept)),
            Err(error) => tracing::error!(?kept, %error, "what must be durable could not be written"),
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

impl<D: Device> BackEnd<D> {
    /// Keeps of each member that its boot ended in order. All that a member ever acknowledged is in its log, so once that
    /// is synced, and nothing more is taken in, the next boot has lost nothing of it.
    pub(super) fn mark_closed(&mut self) -> Result<(), EngineError> {
        // First the log, then what is said of it: a crash in between leaves no mark.
        self.engine.sync_all()?;
        for member in &self.members {
            let Progress { appended, synced, .. } = self.engine.progress(member.id);
            let is_whole = appended == member.replica.last() && synced == appended && member.broken.is_none();
            if let Some(state) = member.replica.close().filter(|_| is_whole) {
                self.engine.put_blob(replica_key(member.id), &encode_state(&state))?;
            }
        }
        self.engine.sync_all()
    }
}

/// The set in use and its number of pieces, by the root blob.
fn root_of<D: Device>(engine: &Engine<D>) -> Option<(u8, usize)> {
    match engine.blob(MAP_ROOT) {
        Some(&[set, low, high]) => Some((set & 1, usize::from(u16::from_le_bytes([low, high])))),
        _ => None,
    }
}

fn put_map<D: Device>(engine: &mut Engine<D>, image: &[u8]) -> Result<BlobTicket, EngineError> {
    let pieces = image.len().div_ceil(BLOB_BYTES_MAX);
    if pieces > MAP_PIECES_MAX {
        let limit_bytes = MAP_PIECES_MAX * BLOB_BYTES_MAX;
        return Err(EngineError::TooLarge { found_bytes: image.len(), limit_bytes });
    }
    let set = root_of(engine).map_or(0, |(set, _)| set ^ 1);
    for (at, piece) in image.chunks(BLOB_BYTES_MAX).enumerate() {
        engine.put_blob(piece_key(set, at), piece)?;
    }
    let [low, high] = (pieces as u16).to_le_bytes();
    engine.put_blob(MAP_ROOT, &[set, low, high])
}

/// The map as it was written last; `None` if none ever was.
pub(crate) fn kept_map<D: Device>(engine: &Engine<D>) -> Result<Option<ClusterMap>, DecodeError> {
    let Some((set, pieces)) = root_of(engine) else { return Ok(None) };
    let mut image = Vec::new();
    for at in 0..pieces {
        image.extend_from_slice(engine.blob(piece_key(set, at)).unwrap_or_default());
    }
    decode_map(&image).map(Some)
}
