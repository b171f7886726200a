//! Reads of one key at the tail: a value in memory is emitted at once, any other read is parked.
//!
//! A client reads committed values, and its own pending writes: such a value is taken now and the reply waits for its
//! commit. A pipelined `SET a`, `GET a`, `SET a` therefore never stalls, and no client sees a value that could still be
//! undone.
use super::message::{Execution, Parking, RequestMessage};
use super::{Executor, ExecutorCounters, operation_error};
use crate::replica::HostedMember;
use fawn_chain::Replica;
use fawn_ds::internals::{Engine, EngineError, Lookup, View};
use fawn_flash::Device;
use fawn_types::{Now, Reply, Version, limits};

impl Executor {
    /// Hot path: no allocation when the value is in memory.
    #[inline(always)]
    pub(crate) fn read<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        member: &mut HostedMember,
        message: &RequestMessage<'_>,
        key: &[u8],
        now: Now,
        emit: impl FnOnce(&Reply<'_>, Option<Version>),
    ) -> Execution {
        let time = match member.replica.admit_read(now) {
            Ok(time) => time,
            Err(rejection) => return Execution::Refused(rejection),
        };
        if message.is_latest && self.wait_queue.has_queue(message.slot, message.hash) {
            return Execution::Park(Parking::Queue);
        }
        let lookup = match engine.lookup(member.id, message.hash, key, view(message.is_latest), time) {
            Ok(Lookup::Found(entry)) if entry.value.len() > message.grant_bytes => {
                return Execution::Larger { bytes: entry.value.len() };
            }
            // Another key's record: no record has such a key.
            Ok(Lookup::Read(_)) if key.len() > limits::KEY_BYTES_MAX => Ok(Lookup::Absent),
            lookup => lookup,
        };
        reply_to(lookup, &mut self.counters, &member.replica, message.is_latest, emit)
    }
}

pub(super) const fn view(is_latest: bool) -> View {
    if is_latest { View::Latest } else { View::Committed }
}

/// Replies by `emit` with the result of `lookup`, or returns the plan of the device read that it needs.
#[inline]
pub(super) fn reply_to(
    lookup: Result<Lookup<'_>, EngineError>,
    counters: &mut ExecutorCounters,
    replica: &Replica,
    is_latest: bool,
    emit: impl FnOnce(&Reply<'_>, Option<Version>),
) -> Execution {
    let wait = |seen| if is_latest { wait_for_commit(replica, seen) } else { None };
    match lookup {
        Ok(Lookup::Found(entry)) => {
            counters.gets += 1;
            counters.hits += 1;
            emit(&Reply::Value(entry), wait(Some(entry.version)));
        }
        Ok(Lookup::Absent) => {
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
