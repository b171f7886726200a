//! Settings of an embedded store.
use super::clock::{self, Clock, SystemClock};
use super::driver::Driver;
use super::executor::versions_used_up;
use super::leader::EngineQueue;
use super::partial_copy::{is_unfinished, unfinished_dir};
use super::{BoxedDevice, Error, RANGE, Result, Store, StoreHandle, ticker};
use crate::engine::Engine;
use crate::format::manifest;
use crate::options::{CAPACITY_SEGMENTS_MIN, Options, RecordLayout, segment_bytes_for};
use fawn_flash::{Device, DeviceOptions, FileDevice};
use fawn_types::{Durability, HashSecret, KeyRange, Now};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Largest memory budget, bytes.
const MEMORY_BYTES_MAX: u64 = 1 << 48;

/// Settings of a store, all with sensible defaults. [`Store::builder`] makes one.
///
/// ```
/// use fawn_ds::{Durability, Store};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path();
/// let store = Store::builder(path).memory(64 << 20).durability(Durability::EverySecond).open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder {
    path: Option<PathBuf>,
    options: Options,
    segment_bytes: Option<u32>,
    clock: Arc<dyn Clock>,
    close_timeout: Duration,
}

/// Longest time of a close by default. Service managers wait for half a minute or more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

impl Builder {
    /// Default settings without a directory, for [`Builder::open_on`].
    pub fn new() -> Self {
        let (options, clock) = (Options::default(), Arc::new(SystemClock));
        Self { path: None, options, segment_bytes: None, clock, close_timeout: CLOSE_TIMEOUT }
    }

    pub(super) fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_owned());
        self
    }

    /// Memory for index, cache and buffers together, bytes; 256 MiB by default. The index takes 7 bytes a key, and what
    /// the others leave is the cache's. With more keys than that the index grows past the budget.
    pub const fn memory(mut self, bytes: u64) -> Self {
        // No machine has more, and sums of shares must not overflow.
        self.options.memory_bytes = if bytes < MEMORY_BYTES_MAX { bytes } else { MEMORY_BYTES_MAX };
        self
    }

    /// When writes return; [`Durability::Sync`] by default. It may differ from one opening to the next.
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Most bytes of segment files; by default the store takes what the device has. A store is created for at least eight segments,
    /// 512 KiB with the smallest ones. One that is created for more than 64 GiB may grow to 16 TiB, and its index takes a byte more
    /// per key.
    pub const fn capacity(mut self, bytes: u64) -> Self {
        self.options.capacity_bytes = Some(bytes);
        self
    }

    /// Size of a segment file, a power of two from 64 KiB to 1 GiB. Fixed when a store is created. The default is 64 MiB, less if the
    /// capacity is below 1 GiB: a sixteenth of it, rounded down. A record is at most a quarter of a segment, a batch half.
    pub const fn segment_size(mut self, bytes: u32) -> Self {
        self.segment_bytes = Some(bytes);
        self
    }

    /// Longest value that is taken, bytes; 8 MiB by default.
    pub const fn value_size_max(mut self, bytes: u32) -> Self {
        self.options.value_bytes_max = bytes;
        self
    }

    /// Whether cold records are sorted into runs; [`RecordLayout::Log`] by default. It may differ from one opening to the next: what
    /// was sorted stays so. The count of keys of a store with runs is an upper bound.
    pub const fn layout(mut self, layout: RecordLayout) -> Self {
        self.options.layout = layout;
        self
    }

    /// The clock by which values expire and timers run; the machine's by default. For tests: [`super::ManualClock`].
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Longest time that [`Store::close`], and the drop of the last handle, wait for the device; 30 seconds by default.
    pub const fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Writes nothing, and opens a corrupt store as far as it can be read: for exports. If records are missing, lookups of keys
    /// that are not found fail, and iterations end with an error.
    pub const fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Opens the store; creates the directory and the store if there are none.
    ///
    /// # Errors
    /// As [`Store::open`]; [`Error::InvalidOption`] for a setting that is out of bounds.
    pub fn open(self) -> Result<Store> {
        let Some(path) = &self.path else {
            let (name, found, expected) = ("path", "none".to_owned(), "Store::builder(path), or open_on(device)");
            return Err(Error::InvalidOption { name, found, expected });
        };
        refuse_unfinished_copy("path", path)?;
        if self.options.read_only {
            refuse_missing(path)?;
        }
        let device = FileDevice::open(path, &DeviceOptions::default())?;
        self.open_on(device)
    }

    /// Opens the store on a device instead of a directory: a [`crate::sim::SimDevice`] for crash tests.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_on(self, mut device: impl Device + Send + 'static) -> Result<Store> {
        let Self { mut options, segment_bytes, clock, close_timeout, .. } = self;
        options.segment_bytes = segment_bytes.unwrap_or_else(|| segment_bytes_for(options.capacity_bytes));
        refuse_small_capacity(&mut device, &options)?;
        options.secret_if_new = Some(random_secret());
        let (read_only, durability) = (options.read_only, options.durability);
        let engine = open_engine(Box::new(device), options, clock::read(&*clock))?;
        let shared = Arc::new(EngineQueue::new(Driver::new(engine), clock));
        let ticker = if read_only { None } else { Some(ticker::spawn(&shared, durability)?) };
        Ok(Store { handle: Arc::new(StoreHandle { shared, ticker, close_timeout, closed: OnceLock::new() }) })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("path", &self.path).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Refuses a path without a directory: a device would create it.
fn refuse_missing(path: &Path) -> Result<()> {
    // The device reports one that cannot be looked at.
    if path.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let expected = "the directory of a store: a read-only opening creates none";
    Err(Error::InvalidOption { name: "path", found: path.display().to_string(), expected })
}

/// Refuses to create a store that could never be cleaned. An existing one stays usable with any capacity: its segments are as large for
/// good, and its records can be read and deleted.
fn refuse_small_capacity(device: &mut impl Device, options: &Options) -> Result<()> {
    let Some(capacity_bytes) = options.capacity_bytes else { return Ok(()) };
    let is_enough = capacity_bytes / u64::from(options.segment_bytes.max(1)) >= CAPACITY_SEGMENTS_MIN;
    if is_enough || options.read_only || device.list()?.iter().any(|name| name == manifest::FILE_NAME) {
        return Ok(());
    }
    let (found, expected) = (format!("{capacity_bytes} bytes"), "at least eight segments for a new store");
    Err(Error::InvalidOption { name: "capacity", found, expected })
}

/// Refuses to create or copy a store where a copy is being made or was interrupted.
pub(super) fn refuse_unfinished_copy(name: &'static str, path: &Path) -> Result<()> {
    if !is_unfinished(path, &[manifest::FILE_NAME]) {
        return Ok(());
    }
    let expected = "no unfinished copy: if none is being made, it was interrupted, and can be removed";
    Err(Error::InvalidOption { name, found: unfinished_dir(path).display().to_string(), expected })
}

/// The engine of an embedded store, with its one range; in an epoch of this opening unless it is read-only.
pub(super) fn open_engine(device: BoxedDevice, options: Options, now: Now) -> Result<Engine<BoxedDevice>> {
    let read_only = options.read_only;
    let (mut engine, _) = Engine::open(device, options, now)?;
    if !read_only {
        engine.add_range(RANGE, KeyRange::ALL)?;
        // The store is the only copy, so all of its log is committed.
        engine.commit(RANGE, engine.progress(RANGE).appended);
        let epoch = engine.next_sole_epoch(RANGE).ok_or_else(versions_used_up)?;
        engine.begin_sole_epoch(RANGE, epoch, None)?;
    }
    Ok(engine)
}

/// A secret from the standard library's per-process random keys, which other processes cannot guess.
pub(super) fn random_secret() -> HashSecret {
    let mut secret = [0; 16];
    for half in secret.chunks_exact_mut(8) {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(fawn_flash::clock::now().mono.0);
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    HashSecret(secret)
}
