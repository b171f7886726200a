//! Activation of a shard's replica as the only member of its range, at the start and in each new epoch.
use crate::cluster::{HostConfig, MemberHost, NodeLimits, replica_key, replica_of};
use crate::options::{ServerInfo, ShardOptions};
use crate::replica::{HostedMember, RangeSlot};
use fawn_chain::map::encode_state;
use fawn_chain::replica::LogProgress;
use fawn_chain::{Replica, ReplicaOptions, ReplicaOutput};
use fawn_ds::internals::{Engine, EngineError, RangeProgress};
use fawn_flash::Device;
use fawn_types::{BootId, KeyRange, MemberId, NodeId, Now, RangeId, ShardId};

/// A standalone server is the first node of a cluster of one.
const NODE: NodeId = NodeId(1);

/// Time until an epoch that could not begin is tried again.
const EPOCH_RETRY_MS: u64 = 1_000;

/// Configuration of a standalone server's store.
pub(crate) fn host_config<D: Device>(
    engine: &Engine<D>,
    options: &ShardOptions,
    server_info: &ServerInfo,
    shard: ShardId,
) -> HostConfig {
    let limits = NodeLimits {
        value_bytes_max: options.value_bytes_max,
        parked_max: options.pending_max,
        reads_in_flight_max: options.reads_in_flight_max,
        replica: ReplicaOptions {
            pending_max: options.uncommitted_max,
            epoch_records_max: options.epoch_writes_max,
            ..ReplicaOptions::default()
        },
        ..NodeLimits::default()
    };
    let boot = BootId::new(engine.generation(), server_info.random_part());
    HostConfig { id: MemberId::new(NODE, shard), boot, durability: options.durability, limits }
}

/// Creates the range's replica, which serves in a new epoch.
pub(crate) fn activate<D: Device>(
    engine: &mut Engine<D>,
    (range, keys): (RangeId, KeyRange),
    host: &HostConfig,
) -> Result<Replica, EngineError> {
    let replica = replica_of(engine, range, host).map_err(|cause| EngineError::Corrupt {
        file: "manifest".to_owned(),
        offset_bytes: 0,
        detail: format!("the promise for {range:?}: {cause}; restore the store from a copy"),
    })?;
    in_new_epoch(engine, replica, keys, Now::default())
}

/// The replica, serving in a new epoch. One synced commit of the manifest holds both the promise and the sole epoch,
/// before the epoch's first record.
fn in_new_epoch<D: Device>(
    engine: &mut Engine<D>,
    mut replica: Replica,
    keys: KeyRange,
    now: Now,
) -> Result<Replica, EngineError> {
    let range = replica.range();
    let above_promise = replica.epoch().next();
    let epoch = engine.next_sole_epoch(range).zip(above_promise).map(|(above_log, above)| above_log.max(above));
    let used_up = || EngineError::Poisoned { first: "the range's epochs are used up".to_owned() };
    let epoch = epoch.ok_or_else(used_up)?;
    replica.serve_alone(now, epoch, keys);
    let mut state = None;
    while let Some(output) = replica.poll_output() {
        match output {
            ReplicaOutput::Commit { through } => engine.commit(range, through),
            ReplicaOutput::Persist { state: newest, .. } => state = Some(newest),
            _ => {}
        }
    }
    // A chain that the range joins believes no log whose promise is older than its last epoch.
    let promise = state.map(|state| encode_state(&state));
    engine.begin_sole_epoch(range, epoch, promise.as_deref().map(|bytes| (replica_key(range), bytes)))?;
    Ok(replica)
}

impl<D: Device> MemberHost<D> {
    /// Begins the next epoch of a standalone shard if this one's sequence numbers run out and all of its records are
    /// committed. Returns whether it has begun.
    ///
    /// Blocks on the device, once in 2^36 writes.
    pub(super) fn begin_wanted_epoch(&mut self) -> bool {
        let Self { engine, members, now, .. } = self;
        let HostedMember { id, replica, .. } = &members[RangeSlot::ONLY];
        let is_due = replica.wants_epoch() && self.epoch_retry_at.is_none_or(|at| at <= now.mono);
        if !is_due || replica.uncommitted() > 0 || engine.poisoned().is_some() {
            return false;
        }
        let id = *id;
        let begun = engine.sync_all().and_then(|()| {
            let RangeProgress { appended, flushed, synced, .. } = engine.progress(id);
            // A copy: if the epoch does not begin, this one continues.
            let mut next = members[RangeSlot::ONLY].replica.clone();
            next.handle_progress(*now, LogProgress { appended, flushed, synced });
            let keys = next.entry().map_or(KeyRange::ALL, |entry| entry.keys);
            in_new_epoch(engine, next, keys, *now)
        });
        match begun {
            Ok(next) => {
                tracing::info!(range = ?id, epoch = ?next.epoch(), "a new epoch begins: the last one's versions run out");
                members[RangeSlot::ONLY].replica = next;
                self.epoch_retry_at = None;
                true
            }
            Err(error) => {
                tracing::error!(range = ?id, %error, "no new epoch can begin: it is tried again");
                self.epoch_retry_at = Some(now.mono.plus_ms(EPOCH_RETRY_MS));
                false
            }
        }
    }
}
