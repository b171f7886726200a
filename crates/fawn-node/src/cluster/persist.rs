//! Persistence of a shard's promises, map entries and the manager's map, as blobs in its engine's manifest.
//!
//! A map may be longer than one blob. Its pieces are written to two sets of names alternately, then the root blob names
//! the set.
//! Blobs become durable in order, so a crash leaves the whole old map or the whole new one.
use super::config::HostConfig;
use super::member_host::MemberHost;
use super::recover::NodeError;
use fawn_chain::map::{ClusterMap, decode_map, decode_state, encode_state};
use fawn_chain::{DecodeError, PersistedState, Replica, ReplicaConfig};
use fawn_ds::internals::format::manifest::BLOB_BYTES_MAX;
use fawn_ds::internals::{BlobTicket, Engine, EngineError, RangeProgress};
use fawn_flash::Device;
use fawn_types::{MonoMs, RangeId};
use std::collections::VecDeque;

const MAP_ROOT: u32 = 0;
const MAP_PIECES: u32 = 1;
/// Maximum pieces of one map: 16 MiB, enough for about ten thousand ranges.
const MAP_PIECES_MAX: usize = 256;
/// Set in the names of members' blobs, next to the range's number.
const REPLICA_BIT: u32 = RangeId::NUMBERS_MAX;

const _: () = assert!(MAP_PIECES as usize + 2 * MAP_PIECES_MAX < REPLICA_BIT as usize);

/// Name of a member's blob.
pub(crate) fn replica_key(range: RangeId) -> u32 {
    assert!(range.0 < REPLICA_BIT, "range numbers stay below 2^31, found {range:?}");
    range.0 | REPLICA_BIT
}

/// The replica of a range, from its log and the stored promise; none is the initial one.
pub(crate) fn replica_of<D: Device>(
    engine: &Engine<D>,
    range: RangeId,
    host: &HostConfig,
) -> Result<Replica, DecodeError> {
    let HostConfig { id, boot, durability, limits } = *host;
    let config = ReplicaConfig { id, boot, range, durability, options: limits.replica };
    let persisted = engine.blob(replica_key(range)).map_or(Ok(PersistedState::default()), decode_state)?;
    let RangeProgress { appended, committed, .. } = engine.progress(range);
    Ok(Replica::new(config, persisted, appended, committed))
}

const fn piece_key(set: u8, piece: usize) -> u32 {
    MAP_PIECES + (set as usize * MAP_PIECES_MAX + piece) as u32
}

/// A version of an item that must become durable. Each new one replaces the older ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PersistedBlob {
    Replica { range: RangeId, number: u64 },
    Map { revision: u64 },
}

impl PersistedBlob {
    /// The item, by the name of its first blob.
    fn item(self) -> u32 {
        match self {
            Self::Replica { range, .. } => replica_key(range),
            Self::Map { .. } => MAP_ROOT,
        }
    }
}

// Shortest and longest pause before a write to a full store is retried; it doubles each time.
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 1_000;

/// Queue of promises and maps to be written, retried until they are durable: a full or slow disk only delays them.
///
/// Bounded: of each item one version is in flight, and only the newest later one waits.
#[derive(Debug, Default)]
pub(crate) struct PersistQueue {
    waiting: VecDeque<(PersistedBlob, Vec<u8>)>,
    in_flight: VecDeque<(BlobTicket, PersistedBlob)>,
    /// Next retry after a full store, and the pause before it.
    retry: Option<(MonoMs, u64)>,
}

impl PersistQueue {
    /// Queues an item; written by the next [`PersistQueue::advance`].
    pub(super) fn put(&mut self, version: PersistedBlob, bytes: Vec<u8>) {
        self.waiting.retain(|(older, _)| older.item() != version.item());
        self.waiting.push_back((version, bytes));
    }

    /// Ends the pause: the store has free space again.
    pub(crate) fn retry_now(&mut self) {
        self.retry = None;
    }

    /// Starts to write waiting items, unless it pauses because the store is full.
    pub(super) fn advance<D: Device>(&mut self, engine: &mut Engine<D>, now: MonoMs) {
        if self.waiting.is_empty() || self.retry.is_some_and(|(at, _)| now < at) {
            return;
        }
        let mut is_full = false;
        for _ in 0..self.waiting.len() {
            let Some((version, bytes)) = self.waiting.pop_front() else { break };
            let in_flight = self.in_flight.iter().any(|(_, earlier)| earlier.item() == version.item());
            if is_full || in_flight {
                self.waiting.push_back((version, bytes));
                continue;
            }
            let put = match version {
                PersistedBlob::Replica { .. } => engine.put_blob(version.item(), &bytes),
                PersistedBlob::Map { .. } => put_map(engine, &bytes),
            };
            match put {
                Ok(ticket) => self.in_flight.push_back((ticket, version)),
                Err(EngineError::StoreFull) => {
                    is_full = true;
                    self.waiting.push_back((version, bytes));
                }
                // A poisoned store writes nothing until a restart, and its members report themselves failed.
                Err(error) => tracing::error!(?version, %error, "a promise or map cannot be written"),
            }
        }
        let pause_ms = self.retry.map_or(RETRY_MS_MIN, |(_, pause_ms)| (pause_ms * 2).min(RETRY_MS_MAX));
        if is_full && self.retry.is_none() {
            tracing::warn!("the disk is full: promises and maps wait for free space");
        }
        self.retry = is_full.then(|| (now.plus_ms(pause_ms), pause_ms));
    }

    /// When [`PersistQueue::advance`] must be called without an event.
    pub(super) fn next_timeout(&self) -> Option<MonoMs> {
        self.retry.filter(|_| !self.waiting.is_empty()).map(|(at, _)| at)
    }

    /// Removes the oldest written item, if it is durable.
    pub(super) fn pop_durable<D: Device>(&mut self, engine: &Engine<D>) -> Option<PersistedBlob> {
        let (ticket, kept) = *self.in_flight.front()?;
        if !engine.is_blob_durable(ticket) {
            return None;
        }
        self.in_flight.pop_front();
        Some(kept)
    }
}

impl<D: Device> MemberHost<D> {
    /// Records the clean shutdown of each member.
    ///
    /// A member's log contains all that it ever acknowledged. So if the log is synced and accepts nothing more, the
    /// next boot has lost nothing.
    pub(crate) fn mark_closed(&mut self) -> Result<(), EngineError> {
        // The log is synced before the mark is written: a crash in between leaves no mark.
        self.engine.sync_all()?;
        for member in self.members.iter() {
            let RangeProgress { appended, synced, .. } = self.engine.progress(member.id);
            let is_whole = appended == member.replica.last() && synced == appended;
            if let Some(state) = member.replica.close().filter(|_| is_whole) {
                self.engine.put_blob(replica_key(member.id), &encode_state(&state))?;
            }
        }
        self.engine.sync_all()
    }
}

/// The current set and its number of pieces, from the root blob.
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

/// The last map written to this store; `None` if there is none.
pub(crate) fn kept_map<D: Device>(engine: &Engine<D>) -> Result<Option<ClusterMap>, NodeError> {
    let Some((set, pieces)) = root_of(engine) else { return Ok(None) };
    let mut image = Vec::new();
    for at in 0..pieces {
        image.extend_from_slice(engine.blob(piece_key(set, at)).unwrap_or_default());
    }
    decode_map(&image).map(Some).map_err(|cause| NodeError::Kept { what: "the cluster map".to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_ds::internals::Options;
    use fawn_flash::{SimDevice, SimDisk, SimOptions};
    use fawn_types::{HashSecret, Now};

    /// A full disk may last for hours: the queue must not grow with every new version of one item.
    #[test]
    fn a_newer_version_replaces_the_one_that_waits() {
        let mut queue = PersistQueue::default();
        for number in 0..3 {
            queue.put(PersistedBlob::Replica { range: RangeId(1), number }, vec![number as u8]);
            queue.put(PersistedBlob::Map { revision: number }, vec![number as u8]);
        }
        assert_eq!(queue.waiting.iter().map(|(_, bytes)| bytes[0]).collect::<Vec<_>>(), [2, 2]);
    }

    /// A hanging disk must not collect the versions of one item: the second waits until the first is durable.
    #[test]
    fn one_version_of_an_item_is_in_flight() {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options { secret: Some(HashSecret([1; 16])), ..Options::default() };
        let Ok((mut engine, _)) = Engine::open(SimDevice::attach(&disk), options, Now::at(1)) else {
            unreachable!("a new disk")
        };
        let mut queue = PersistQueue::default();
        let versions = [1, 2].map(|number| PersistedBlob::Replica { range: RangeId(1), number });
        for version in versions {
            queue.put(version, vec![0]);
            queue.advance(&mut engine, MonoMs(1));
            assert_eq!(queue.pop_durable(&engine), None);
        }
        assert_eq!((queue.in_flight.len(), queue.waiting.len()), (1, 1));
        for version in versions {
            assert!(engine.sync_all().is_ok());
            assert_eq!(queue.pop_durable(&engine), Some(version));
            queue.advance(&mut engine, MonoMs(1));
        }
    }
}
