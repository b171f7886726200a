//! Owns putting a shard together from the settings: device, engine, node; and taking it apart with everything synced.
use super::{Places, ServeError};
use crate::config::{DeviceChoice, Settings};
use fawn_ds::{Engine, OpenError, OpenReport, Options};
use fawn_flash::{AnyDevice, Device, DeviceKind, DeviceOptions};
use fawn_node::{ProcessFacts, Shard, ShardOptions};
use fawn_types::{HashSecret, TimeMs};
use std::io::Read;
use std::os::fd::RawFd;

/// The device that production runs on.
pub(super) type StoreDevice = AnyDevice;
/// A shard on it.
pub(super) type NodeShard = Shard<StoreDevice>;

/// Opens the store, or creates one, and puts a shard over it.
pub(super) fn open(settings: &Settings, places: &Places, now: TimeMs) -> Result<NodeShard, ServeError> {
    create_dir(settings)?;
    let data = |error: &dyn std::fmt::Display| ServeError::Data(format!("{}: {error}", settings.dir.display()));
    let mut options = engine_options(settings);
    let opened = match Engine::open(open_device(settings)?, options.clone(), now) {
        // Nothing there yet: only now is a secret drawn, so that an existing store always keeps its own.
        Err(OpenError::SecretMissing) => {
            options.secret = Some(HashSecret(random_bytes()?));
            Engine::open(open_device(settings)?, options, now)
        }
        opened => opened,
    };
    let (engine, report) = opened.map_err(|error| data(&error))?;
    tell(&engine, &report);
    let shard_options = ShardOptions {
        durability: settings.durability.into(),
        value_bytes_max: u32::try_from(settings.value_max.0).unwrap_or(u32::MAX),
        ..ShardOptions::default()
    };
    Shard::new(engine, shard_options, facts(settings, places, now)?).map_err(|error| data(&error))
}

/// Flushes and syncs everything, then lets go of the directory.
pub(super) fn close(shard: NodeShard) -> Result<(), ServeError> {
    shard.into_engine().close().map(drop).map_err(|error| ServeError::Data(error.to_string()))
}

/// The descriptor that wakes an idle loop when the device has completed something.
pub(super) fn wake_fd(shard: &NodeShard) -> Option<RawFd> {
    shard.engine().device().wake_fd()
}

/// Created for its owner alone: the data are nobody else's business.
fn create_dir(settings: &Settings) -> Result<(), ServeError> {
    use std::os::unix::fs::DirBuilderExt;
    let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&settings.dir);
    created.map_err(|error| {
        let dir = settings.dir.display();
        ServeError::Data(format!("{dir}: {error}; choose a directory that this user may write with --dir"))
    })
}

fn open_device(settings: &Settings) -> Result<StoreDevice, ServeError> {
    let kind = match settings.device {
        DeviceChoice::Auto => DeviceKind::Auto,
        DeviceChoice::Uring => DeviceKind::Uring,
        DeviceChoice::Portable => DeviceKind::Portable,
    };
    let options = DeviceOptions { kind, ..DeviceOptions::default() };
    AnyDevice::open(&settings.dir, &options).map_err(|error| ServeError::Data(error.to_string()))
}

fn engine_options(settings: &Settings) -> Options {
    Options {
        // Checked to fit by the settings.
        segment_bytes: u32::try_from(settings.segment.0).unwrap_or(u32::MAX),
        memory_bytes: settings.memory.0,
        durability: settings.durability.into(),
        value_bytes_max: u32::try_from(settings.value_max.0).unwrap_or(u32::MAX),
        capacity_bytes: settings.capacity.map(|size| size.0),
        ..Options::default()
    }
}

fn tell(engine: &Engine<StoreDevice>, report: &OpenReport) {
    for (file, from_bytes) in &report.truncated {
        tracing::warn!(file, from_bytes, "an unfinished end was cut off; nothing in it had been acknowledged");
    }
    for file in &report.orphans_removed {
        tracing::info!(file, "removed a file of an unfinished step");
    }
    tracing::info!(
        device = engine.device().name(),
        created = report.created,
        segments = report.segments,
        records = report.records,
        generation = engine.generation(),
        "store open"
    );
}

/// What clients may ask about the process.
fn facts(settings: &Settings, places: &Places, now: TimeMs) -> Result<ProcessFacts, ServeError> {
    let uname = rustix::system::uname();
    let words = [uname.sysname(), uname.release(), uname.machine()];
    let system: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let run_id: [u8; 20] = random_bytes()?;
    Ok(ProcessFacts {
        started_at_ms: now.0,
        process_id: std::process::id(),
        run_id: run_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        resp_port: places.resp.map_or(0, |place| place.port()),
        memcached_port: places.memcached.map_or(0, |place| place.port()),
        threads: 1,
        sessions_max: settings.max_connections,
        directory: settings.dir.display().to_string(),
        system: system.join(" "),
        settings: settings.pairs(),
    })
}

fn random_bytes<const N: usize>() -> Result<[u8; N], ServeError> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(ServeError::system("reading /dev/urandom"))?;
    Ok(bytes)
}
