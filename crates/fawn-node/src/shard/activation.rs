//! Activation of a shard's replica as the only member of its range, before the shard serves.
use crate::cluster::{HostConfig, NodeLimits, replica_key, replica_of};
use crate::options::{ServerInfo, ShardOptions};
use fawn_chain::map::encode_state;
use fawn_chain::{Replica, ReplicaOptions, ReplicaOutput};
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{BootId, KeyRange, MemberId, NodeId, Now, RangeId, ShardId};

/// A standalone server is the first node of a cluster of one.
const NODE: NodeId = NodeId(1);

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
        replica: ReplicaOptions { pending_max: options.uncommitted_max, ..ReplicaOptions::default() },
        ..NodeLimits::default()
    };
    let boot = BootId::new(engine.generation(), server_info.random_part());
    HostConfig { id: MemberId::new(NODE, shard), boot, durability: options.durability, limits }
}

/// Creates the range's replica, which serves in a new epoch. One synced commit of the manifest holds both the promise
/// and the sole epoch, before the epoch's first record.
pub(crate) fn activate<D: Device>(
    engine: &mut Engine<D>,
    (range, keys): (RangeId, KeyRange),
    host: &HostConfig,
) -> Result<Replica, EngineError> {
    let mut replica = replica_of(engine, range, host).map_err(|cause| EngineError::Corrupt {
        file: "manifest".to_owned(),
        offset_bytes: 0,
        detail: format!("the promise for {range:?}: {cause}; restore the store from a copy"),
    })?;
    let above_promise = replica.epoch().next();
    let epoch = engine.next_sole_epoch(range).zip(above_promise).map(|(above_log, above)| above_log.max(above));
    let used_up = || EngineError::Poisoned { first: "the range's epochs are used up".to_owned() };
    let epoch = epoch.ok_or_else(used_up)?;
    replica.serve_alone(Now::default(), epoch, keys);
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
