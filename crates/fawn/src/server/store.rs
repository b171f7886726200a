//! Assembly of a shard from the settings: device, engine, node; and its orderly close.
use super::ListenAddrs;
use super::limits::ShardLimits;
use super::service::{GroupConfig, ServerGroup};
use crate::config::{DeviceChoice, Settings};
use crate::data_dir;
use crate::failure::{Exit, Failure};
use fawn_ds::internals::{Engine, OpenReport, Options};
use fawn_flash::{Device, DeviceKind, DeviceOptions, FileDevice};
use fawn_node::{ServerInfo, Shard, ShardOptions};
use fawn_types::{Durability, HashSecret, Now, TimeMs};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time for checkpoints at a stop: service managers wait for half a minute or more.
const CHECKPOINTS_AT_CLOSE_MAX: Duration = Duration::from_secs(10);

/// The production device.
pub(crate) type StoreDevice = FileDevice;

/// Opens or creates the store of a standalone shard.
pub(super) fn open(config: GroupConfig, now: Now) -> Result<ServerGroup, Failure> {
    let GroupConfig { settings, placement, secret, server_info, progress } = config;
    let number = u32::from(placement.shard().0);
    let options = Options { secret, number_if_new: number, progress: Some(progress), ..engine_options(&settings)? };
    let engine = open_engine(&settings, &settings.dir, options, now)?;
    let opened = Shard::new(engine, placement, shard_options(&settings), server_info);
    opened.map(ServerGroup::alone).map_err(|error| Failure::new(Exit::Data, placed(&settings.dir, &error.to_string())))
}

/// Bounds of the clients' sessions.
pub(super) fn shard_options(settings: &Settings) -> ShardOptions {
    ShardOptions {
        durability: settings.durability.into(),
        value_bytes_max: u32::try_from(settings.value_max.0).unwrap_or(u32::MAX),
        replies_bytes_max: ShardLimits::held_bytes(settings),
        requests_bytes_max: ShardLimits::held_bytes(settings),
        ..ShardOptions::default()
    }
}

/// Flushes and syncs everything, then releases the directories. Checkpoints are left out if they take long.
pub(super) fn close(group: ServerGroup) -> Result<(), Failure> {
    let begun = Instant::now();
    let close = |engine: Engine<StoreDevice>| {
        engine.close_with_deadline(&mut || begun.elapsed() > CHECKPOINTS_AT_CLOSE_MAX).map(drop)
    };
    group.into_engines().into_iter().try_for_each(close).map_err(|error| Failure::new(Exit::Data, error))
}

/// Opens or creates the engine in `dir`.
pub(super) fn open_engine(
    settings: &Settings,
    dir: &Path,
    options: Options,
    now: Now,
) -> Result<Engine<StoreDevice>, Failure> {
    create_dir(dir)?;
    let opened = Engine::open(open_device(settings, dir)?, options, now);
    let (engine, report) = opened.map_err(|error| Failure::new(Exit::Data, placed(dir, &error.to_string())))?;
    log_opened(&engine, &report);
    Ok(engine)
}

/// Prefixes the text with the directory, unless it begins with it.
fn placed(dir: &Path, words: &str) -> String {
    let place = dir.display().to_string();
    if words.starts_with(&place) { words.to_owned() } else { format!("{place}: {words}") }
}

/// Creates the directory with mode 0700, durably in its parents.
pub(super) fn create_dir(dir: &Path) -> Result<(), Failure> {
    data_dir::refuse_file(dir)?;
    fawn_flash::create_dirs(dir, 0o700).map_err(|error| {
        let dir = dir.display();
        Failure::new(Exit::Data, format!("{dir}: {error}; choose a directory that this user may write with --dir"))
    })
}

fn open_device(settings: &Settings, dir: &Path) -> Result<StoreDevice, Failure> {
    let kind = match settings.device {
        DeviceChoice::Auto => DeviceKind::Auto,
        DeviceChoice::Uring => DeviceKind::Uring,
        DeviceChoice::Portable => DeviceKind::Portable,
    };
    let options = DeviceOptions { kind, ..DeviceOptions::default() };
    FileDevice::open(dir, &options).map_err(|error| Failure::new(Exit::Data, error))
}

pub(super) fn engine_options(settings: &Settings) -> Result<Options, Failure> {
    Ok(Options {
        // The settings have checked the range.
        segment_bytes: u32::try_from(settings.segment.0).unwrap_or(u32::MAX),
        memory_bytes: ShardLimits::store_bytes(settings),
        durability: settings.durability.into(),
        value_bytes_max: u32::try_from(settings.value_max.0).unwrap_or(u32::MAX),
        capacity_bytes: settings.capacity.map(|size| size.0),
        space_amplification_max_percent: settings.space_amplification_max.percent,
        layout: settings.layout.into(),
        scrub_period_ms: u64::try_from(settings.scrub_period.0.as_millis()).unwrap_or(u64::MAX),
        // An existing store keeps its own.
        secret_if_new: Some(HashSecret(random_bytes()?)),
        ..Options::default()
    })
}

fn log_opened(engine: &Engine<StoreDevice>, report: &OpenReport) {
    for (file, from_bytes) in &report.truncated {
        tracing::warn!(
            file,
            from_bytes,
            "cut off an unfinished end of the log; in `sync` mode nothing in it had been acknowledged"
        );
    }
    for file in &report.orphans_removed {
        tracing::info!(file, "removed a file left by an interrupted step");
    }
    if let Some(reason) = &report.tail_refused {
        tracing::warn!(reason, "no tail file: small writes of `everysec` are written to the log one by one");
    }
    if !report.is_end_recorded && engine.options().durability != Durability::Sync {
        tracing::warn!(
            "the store was not closed: the last writes that `memory` had acknowledged may be missing, and those of `everysec` if the \
             machine lost power"
        );
    }
    tracing::info!(
        device = engine.device().name(),
        created = report.created,
        segments = report.segments,
        records = report.records,
        tail_bytes = report.tail_bytes,
        generation = engine.generation(),
        "store open"
    );
}

/// Facts that clients may query.
pub(super) fn server_info(
    settings: &Settings,
    listen_addrs: &ListenAddrs,
    shards: u16,
    now: TimeMs,
) -> Result<ServerInfo, Failure> {
    let uname = rustix::system::uname();
    let words = [uname.sysname(), uname.release(), uname.machine()];
    let system: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let run_id: [u8; 20] = random_bytes()?;
    Ok(ServerInfo {
        started_at_ms: now.0,
        process_id: std::process::id(),
        run_id: run_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        resp_port: listen_addrs.resp.map_or(0, |place| place.port()),
        memcached_port: listen_addrs.memcached.map_or(0, |place| place.port()),
        threads: shards,
        sessions_max: settings.max_connections,
        directory: settings.dir.display().to_string(),
        system: system.join(" "),
    })
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(Failure::about(Exit::Failed, "reading /dev/urandom"))?;
    Ok(bytes)
}
