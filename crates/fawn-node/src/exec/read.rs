//! Reads of one key at the tail: a value in memory is emitted at once, any other read is parked.
//!
//! A client reads committed values, and its own pending writes: such a value is taken now and the reply waits for its
//! commit. A pipelined `SET a`, `GET a`, `SET a` therefore never stalls, and no client sees a value that could still be
//! undone.
//!
//! An expiry is judged by [`ReadTime`]: a pending update of the key, or one that has not arrived yet, may keep a key
//! that has expired by the committed entry. In the first case a read takes the newest entry and its reply waits for the
//! commit; in the second it is blocked until the update has arrived.
use super::{Emit, ExecContext, operation_error};
use crate::request::{Execution, Parking, RequestMessage};
use crate::status::ShardCounters;
use fawn_chain::{ReadTime, Replica};
use fawn_ds::internals::{Engine, EngineError, Lookup, View};
use fawn_flash::Device;
use fawn_types::{EntryRef, KeyHash, RangeId, Reply, TimeMs, Version};

impl<D: Device> ExecContext<'_, D> {
    /// Hot path: no allocation when the value is in memory.
    #[inline(always)]
    pub(crate) fn read(&mut self, message: &RequestMessage<'_>, key: &[u8], emit: impl Emit) -> Execution {
        let Self { exec, engine, member, now } = self;
        let time = match member.replica.admit_read(*now) {
            Ok(time) => time,
            Err(rejection) => return Execution::Refused(rejection),
        };
        if message.is_latest && exec.wait_queue.has_queue(message.slot, message.hash) {
            return Execution::Park(Parking::Queue);
        }
        let mut is_latest = message.is_latest;
        let mut lookup = engine.lookup(member.id, message.hash, key, view(is_latest), lookup_time(time, is_latest));
        if let Ok(Lookup::Unsettled) = lookup {
            (is_latest, lookup) = (true, look_up_newest(engine, member.id, message.hash, key, time));
        }
        let lookup = match lookup {
            Ok(Lookup::Found(entry)) if !is_latest && is_unsettled(&entry, time) => return Execution::Blocked,
            Ok(Lookup::Found(entry)) if entry.value.len() > message.grant_bytes => {
                return Execution::Larger { bytes: entry.value.len() };
            }
            lookup => lookup,
        };
        reply_to(lookup, &mut exec.counters, &member.replica, is_latest, emit)
    }
}

/// The time for a lookup: the newest entry is judged by chain time, because the reply waits for what it depends on.
#[inline]
pub(super) const fn lookup_time(time: ReadTime, is_latest: bool) -> TimeMs {
    if is_latest { time.now } else { time.settled }
}

/// Looks up the newest entry of a key whose committed one has expired.
#[cold]
pub(super) fn look_up_newest<'e, D: Device>(
    engine: &'e mut Engine<D>,
    range: RangeId,
    hash: KeyHash,
    key: &[u8],
    time: ReadTime,
) -> Result<Lookup<'e>, EngineError> {
    engine.lookup(range, hash, key, View::Latest, time.now)
}

/// Whether the entry has expired unless an update keeps it that has not arrived yet.
#[inline]
pub(super) const fn is_unsettled(entry: &EntryRef<'_>, time: ReadTime) -> bool {
    entry.expires_at_ms != 0 && entry.expires_at_ms <= time.now.0
}

pub(super) const fn view(is_latest: bool) -> View {
    if is_latest { View::Latest } else { View::Committed }
}

/// Replies by `emit` with the result of `lookup`, or returns the plan of the device read that it needs.
#[inline]
pub(super) fn reply_to(
    lookup: Result<Lookup<'_>, EngineError>,
    counters: &mut ShardCounters,
    replica: &Replica,
    is_latest: bool,
    emit: impl Emit,
) -> Execution {
    let wait = |seen| if is_latest { wait_for_commit(replica, seen) } else { None };
    match lookup {
        Ok(Lookup::Found(entry)) => {
            counters.gets += 1;
            counters.hits += 1;
            emit(&Reply::Value(entry), wait(Some(entry.version)));
        }
        Ok(Lookup::Absent | Lookup::Unsettled) => {
            counters.gets += 1;
            counters.misses += 1;
            emit(&Reply::Absent, wait(None));
        }
        Ok(Lookup::Read(plan)) => return Execution::Park(Parking::Read(plan)),
        Err(error) => {
            counters.gets += 1;
            emit(&Reply::Error(operation_error(&error)), None);
        }
    }
    Execution::Replied
}

/// The version whose commit a reply waits for that depends on the version `seen`; none if it is committed. A pending
/// absence has no version (a pending tombstone may be the reason), so it waits for the newest one.
#[inline]
pub(super) fn wait_for_commit(replica: &Replica, seen: Option<Version>) -> Option<Version> {
    let seen = seen.unwrap_or(replica.last());
    (seen > replica.committed()).then_some(seen)
}
