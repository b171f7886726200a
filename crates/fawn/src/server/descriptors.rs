//! Limit on open descriptors: raised to what the connections need, else the connections are reduced to it.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors besides client connections: segments, rings, listeners, logs, the admin port.
const RESERVE: u64 = 512;
/// Additional descriptors per further shard.
const SHARD_RESERVE: u64 = 64;
/// The same where the system allows it: then each store keeps 384 files open, the least that it does by itself. With fewer,
/// stores close files and open them again.
const SHARD_RESERVE_WANTED: u64 = 448;

/// Limit with which a store keeps every segment open that it can have: it takes a sixty-fourth of the limit.
const LIMIT_WANTED: u64 = 1 << 20;

/// Raises the limit as far as the system allows.
pub(crate) fn raise() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without it, files are closed and opened again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Raises the limit for `connections` and returns how many fit.
pub(super) fn make_room(connections: u32, shards: u16) -> u32 {
    let further = u64::from(shards.saturating_sub(1));
    let reserve = RESERVE + SHARD_RESERVE * further;
    let wanted = (u64::from(connections) + RESERVE + SHARD_RESERVE_WANTED * further).max(LIMIT_WANTED);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let has = current.unwrap_or(u64::MAX);
    let allowed = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let is_raised = has < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum }).is_ok();
    let left = (if is_raised { allowed } else { has }).saturating_sub(reserve);
    let fit = u32::try_from(left).unwrap_or(connections).clamp(1, connections);
    if fit < connections {
        tracing::warn!(
            asked = connections,
            fit,
            "the limit on open files allows fewer connections than asked for; raise it (ulimit -n, LimitNOFILE=)"
        );
    }
    fit
}
