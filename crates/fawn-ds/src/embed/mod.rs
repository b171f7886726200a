//! Owns the blocking store for programs that embed it: `Send + Sync`, one leader at a time drives the engine for all.
//!
//! Callers hand their operations in; whoever finds no leader becomes it, executes what has gathered, submits once,
//! waits once, and commits for everyone: concurrent durable puts share one flush and one sync, and device reads of
//! several callers go in parallel. There is no background thread but a ticker that syncs an idle `everysec` store.
mod driver;

use crate::engine::{Engine, WARM_KEYS_MAX};
use crate::error::OpenError;
use crate::options::Options;
use crate::recovery::OpenReport;
use driver::{Driver, Op, Response};
use fawn_flash::{AnyDevice, Device, DeviceOptions, clock};
use fawn_types::{
    Condition, Durability, Entry, HashSecret, KeyRange, OperationError, RangeId, StoreError, TimeMs, Version,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The one range of an embedded store.
pub const RANGE: RangeId = RangeId(0);
/// How often an idle store that does not sync at every write is looked after.
const TICK: Duration = Duration::from_millis(250);

/// One write of an atomic batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchWrite {
    /// The key.
    pub key: Vec<u8>,
    /// The value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
    /// Absolute expiry, ms since the Unix epoch; 0: never.
    pub expires_at_ms: u64,
}

/// What callers share.
#[derive(Debug, Default)]
struct Inbox {
    queue: VecDeque<(u64, Op)>,
    done: HashMap<u64, Response, FxBuildHasher>,
    has_leader: bool,
    is_closing: bool,
    /// A leader panicked: the engine's state is unknown, so no operation reaches it any more.
    failed: bool,
    next_id: u64,
}

impl Inbox {
    fn push(&mut self, op: Op) -> u64 {
        self.next_id += 1;
        self.queue.push_back((self.next_id, op));
        self.next_id
    }
}

struct Inner<D: Device> {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Locked by the leader alone.
    driver: Mutex<Driver<D>>,
}

/// The right to drive the engine. When a panic drops it, every caller's operation fails: no other thread would wake
/// the callers, and an engine that stopped in the middle of a change must not be used again.
struct Leadership<'i> {
    inbox: &'i Mutex<Inbox>,
    changed: &'i Condvar,
    is_done: bool,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.has_leader = false;
        if !self.is_done {
            inbox.failed = true;
            inbox.queue.clear();
        }
        drop(inbox);
        self.changed.notify_all();
    }
}

/// A blocking key-value store on one device. Share it by reference or `Arc`.
///
/// ```
/// use fawn_ds::{Options, embed::Store};
/// use fawn_flash::{SimDevice, SimOptions};
/// use fawn_types::{Store as _, TimeMs};
///
/// let device = SimDevice::new(1, SimOptions::default());
/// let store = Store::open_on(device, Options::default())?;
/// store.put(b"key", b"value", 0, 0)?;
/// let entry = store.get(b"key", TimeMs(0))?;
/// assert_eq!(entry.map(|entry| entry.value), Some(b"value".to_vec()));
/// assert!(store.delete(b"key", TimeMs(0))?);
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store<D: Device + Send + 'static> {
    inner: Arc<Inner<D>>,
    ticker: Option<JoinHandle<()>>,
    report: OpenReport,
}

impl Store<AnyDevice> {
    /// Opens the store in `dir`, which must exist, on the best device that the system offers; creates one if the
    /// directory has none.
    ///
    /// ```
    /// use fawn_ds::{Options, embed::Store};
    /// use fawn_types::{Store as _, TimeMs};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let store = Store::open(dir.path(), Options::default())?;
    /// store.put(b"key", b"value", 0, 0)?;
    /// store.close()?;
    ///
    /// let store = Store::open(dir.path(), Options::default())?;
    /// assert_eq!(store.get(b"key", TimeMs(0))?.map(|entry| entry.value), Some(b"value".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Store::open_on`].
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_on(AnyDevice::open(dir, &DeviceOptions::default())?, options)
    }
}

impl<D: Device + Send + 'static> Store<D> {
    /// Opens the store in the device's directory, or creates it (with a random hash secret unless one is given).
    ///
    /// # Errors
    /// [`OpenError`] says what is damaged and what to do; it never starts empty instead.
    pub fn open_on(device: D, mut options: Options) -> Result<Self, OpenError> {
        let durability = options.durability;
        options.secret_if_new = options.secret.or_else(|| Some(random_secret()));
        let (mut engine, report) = Engine::open(device, options, clock::now())?;
        if !engine.options().read_only {
            engine.add_range(RANGE, KeyRange::ALL)?;
            // Nobody else has a copy, so nobody can object to what is here.
            engine.commit(RANGE, engine.progress(RANGE).appended);
            let epoch = engine.next_sole_epoch(RANGE).ok_or_else(driver::versions_used_up)?;
            engine.begin_sole_epoch(RANGE, epoch, None)?;
        }
        let inner = Arc::new(Inner {
            inbox: Mutex::new(Inbox::default()),
            changed: Condvar::new(),
            driver: Mutex::new(Driver::new(engine)),
        });
        let ticker = (durability != Durability::Sync).then(|| spawn_ticker(&inner));
        Ok(Self { inner, ticker, report })
    }

    /// What opening found.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Writes if `condition` holds of what is there now; the version assigned, or `None` if it did not hold.
    ///
    /// # Errors
    /// As [`fawn_types::Store::put`].
    pub fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        condition: Condition,
    ) -> Result<Option<Version>, StoreError> {
        let (key, value, now) = (key.to_vec(), value.to_vec(), clock::now().wall);
        let op = Op::PutIf { key, value, flags: 0, expires_at_ms, condition, now };
        match self.inner.call(op)? {
            Response::Written(version) => Ok(version),
            other => Err(other.unexpected()),
        }
    }

    /// Writes all or none, whatever happens; returns the last version.
    ///
    /// # Errors
    /// As [`fawn_types::Store::put`]; all together must fit half a segment.
    pub fn batch(&self, writes: Vec<BatchWrite>) -> Result<Option<Version>, StoreError> {
        if writes.is_empty() {
            return Ok(None);
        }
        match self.inner.call(Op::Batch(writes))? {
            Response::Written(version) => Ok(version),
            other => Err(other.unexpected()),
        }
    }

    /// The entries of several keys, in the keys' order, each as [`fawn_types::Store::get`] would give it. Lookups in memory
    /// wait for main memory together, device reads go in parallel.
    ///
    /// # Errors
    /// As [`fawn_types::Store::get`], of the first key that has one.
    pub fn get_many(&self, keys: &[&[u8]], now: TimeMs) -> Result<Vec<Option<Entry>>, StoreError> {
        let ids: Vec<u64> = {
            let mut inbox = self.inner.inbox();
            keys.iter().map(|key| inbox.push(Op::Get { key: key.to_vec(), now })).collect()
        };
        // All are taken before the first error is: what nobody takes would stay.
        let answers: Vec<_> = ids.into_iter().map(|id| self.inner.answer(self.inner.inbox(), id)).collect();
        let entry_of = |answer: Result<Response, StoreError>| match answer? {
            Response::Entry(entry) => Ok(entry),
            other => Err(other.unexpected()),
        };
        answers.into_iter().map(entry_of).collect()
    }

    /// Looks at the engine's counters, between operations.
    pub fn inspect<T>(&self, look: impl FnOnce(&Engine<D>) -> T) -> T {
        look(self.inner.driver().engine())
    }

    /// Writes and syncs everything, and gives the device back.
    ///
    /// # Errors
    /// When that failed: what was not acknowledged as synced may be lost.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.stop_ticker();
        let engine = self.inner.driver().take_engine();
        match engine {
            _ if self.inner.inbox().failed => Err(OperationError::Poisoned.into()),
            Some(engine) => engine.close().map(drop).map_err(StoreError::from),
            None => Ok(()),
        }
    }

    fn stop_ticker(&mut self) {
        self.inner.inbox().is_closing = true;
        self.inner.changed.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // A ticker that panicked has nothing more to say.
            let _ = ticker.join();
        }
    }
}

impl<D: Device + Send + 'static> Drop for Store<D> {
    fn drop(&mut self) {
        self.stop_ticker();
    }
}

impl<D: Device + Send + 'static> fawn_types::Store for Store<D> {
    fn get(&self, key: &[u8], now: TimeMs) -> Result<Option<Entry>, StoreError> {
        match self.inner.call(Op::Get { key: key.to_vec(), now })? {
            Response::Entry(entry) => Ok(entry),
            other => Err(other.unexpected()),
        }
    }

    fn put(&self, key: &[u8], value: &[u8], flags: u32, expires_at_ms: u64) -> Result<Version, StoreError> {
        let (key, value, now) = (key.to_vec(), value.to_vec(), clock::now().wall);
        let op = Op::PutIf { key, value, flags, expires_at_ms, condition: Condition::Always, now };
        match self.inner.call(op)? {
            Response::Written(Some(version)) => Ok(version),
            other => Err(other.unexpected()),
        }
    }

    fn delete(&self, key: &[u8], now: TimeMs) -> Result<bool, StoreError> {
        match self.inner.call(Op::Delete { key: key.to_vec(), now })? {
            Response::Written(version) => Ok(version.is_some()),
            other => Err(other.unexpected()),
        }
    }

    fn len(&self) -> u64 {
        self.inspect(|engine| engine.len(RANGE))
    }

    fn scan(&self, cursor: u64, count: usize, now: TimeMs) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
        match self.inner.call(Op::Scan { cursor, count, now })? {
            Response::Scanned(cursor, keys) => Ok((cursor, keys)),
            other => Err(other.unexpected()),
        }
    }
}

impl<D: Device> Inner<D> {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // No code that can panic runs under this lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driver(&self) -> MutexGuard<'_, Driver<D>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, op: Op) -> Result<Response, StoreError> {
        let mut inbox = self.inbox();
        let id = inbox.push(op);
        self.answer(inbox, id)
    }

    /// Has the operation done by the leader, or becomes it.
    fn answer<'i>(&'i self, mut inbox: MutexGuard<'i, Inbox>, id: u64) -> Result<Response, StoreError> {
        loop {
            if let Some(response) = inbox.done.remove(&id) {
                return response.into_result();
            }
            if inbox.failed {
                return Err(OperationError::Poisoned.into());
            }
            if !inbox.has_leader {
                inbox.has_leader = true;
                drop(inbox);
                return self.lead(id).into_result();
            }
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drives the engine for all until `id` is done; then whoever still waits takes over.
    fn lead(&self, id: u64) -> Response {
        let mut leadership = Leadership { inbox: &self.inbox, changed: &self.changed, is_done: false };
        let mut driver = self.driver();
        loop {
            let mut queued = core::mem::take(&mut self.inbox().queue);
            while !queued.is_empty() {
                let together = queued.len().min(WARM_KEYS_MAX);
                driver.warm(queued.iter().take(together).map(|(_, op)| op));
                for (id, op) in queued.drain(..together) {
                    driver.start(id, op, clock::now());
                }
            }
            driver.turn(clock::now());
            let mut inbox = self.inbox();
            let mut mine = None;
            for (done, response) in driver.take_done() {
                if done == id {
                    mine = Some(response);
                } else {
                    inbox.done.insert(done, response);
                }
            }
            if let Some(mine) = mine {
                drop(inbox);
                leadership.is_done = true;
                return mine;
            }
            let is_news = !inbox.done.is_empty();
            drop(inbox);
            if is_news {
                self.changed.notify_all();
            }
            driver.wait(clock::now());
        }
    }
}

fn spawn_ticker<D: Device + Send + 'static>(inner: &Arc<Inner<D>>) -> JoinHandle<()> {
    let inner = Arc::clone(inner);
    std::thread::spawn(move || {
        let mut inbox = inner.inbox();
        while !inbox.is_closing {
            let (guard, _) = inner.changed.wait_timeout(inbox, TICK).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            // A failure poisons the engine, and the next writer hears of it.
            let _ = inner.call(Op::Tick);
            inbox = inner.inbox();
        }
    })
}

/// A secret from the standard library's per-process random keys: nobody outside can guess it.
fn random_secret() -> HashSecret {
    let mut secret = [0; 16];
    for half in secret.chunks_exact_mut(8) {
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u64(clock::now().mono.0);
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    HashSecret(secret)
}
