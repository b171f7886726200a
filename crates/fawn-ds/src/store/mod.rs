//! The store as other programs embed it: blocking, shared by clones, with its own clock.
mod backup;
mod batch;
mod builder;
mod clock;
mod driver;
mod error;
mod executor;
mod iter;
mod leader;
mod op;
pub(crate) mod partial_copy;
mod put_options;
mod stats;
mod ticker;
mod value;

pub use backup::backup;
pub use batch::WriteBatch;
pub use builder::Builder;
pub use clock::{Clock, ManualClock};
pub use error::{Error, Result};
pub use iter::{Iter, Keys};
pub use put_options::PutOptions;
pub use stats::Stats;
pub use value::{KeyBytes, Value};

use fawn_flash::Device;
use fawn_types::{Condition, RangeId, Version};
use leader::EngineQueue;
use op::{Op, Response};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// The one range of an embedded store.
const RANGE: RangeId = RangeId(0);

/// Whichever device the store is on.
type BoxedDevice = Box<dyn Device + Send>;

/// A durable map from byte strings to byte strings in one directory.
///
/// Clones are handles to the same store and may be used from any thread. Operations block; those of several threads
/// share flushes, syncs and device reads. The last handle that is dropped writes and syncs everything;
/// [`Store::close`] does the same and returns the error if that fails.
///
/// Keys are up to 65,535 bytes, values up to 8 MiB unless [`Builder::value_size_max`] says otherwise.
///
/// ```
/// use fawn_ds::{PutOptions, Store};
/// use std::time::Duration;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path();
/// let store = Store::open(path)?;
/// let version = store.put("colour", "green")?;
/// assert_eq!(store.get("colour")?.as_deref(), Some(&b"green"[..]));
///
/// // Replaces the value only if nothing else has written the key since, and only for a minute.
/// let options = PutOptions::new().if_version(version).ttl(Duration::from_secs(60));
/// assert!(store.put_with("colour", "blue", options)?.is_some());
/// assert!(store.put_with("colour", "red", PutOptions::new().if_version(version))?.is_none());
///
/// assert!(store.delete("colour")?);
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    handle: Arc<StoreHandle>,
}

/// Shared by all clones; its drop closes the store.
#[derive(Debug)]
struct StoreHandle {
    shared: Arc<EngineQueue>,
    ticker: Option<JoinHandle<()>>,
    close_timeout: Duration,
    closed: OnceLock<Result<()>>,
}

impl StoreHandle {
    /// Closes the store, or leaves that to a thread once its time is over: that ends when the device answers.
    fn close(&self) -> Result<()> {
        let close = || {
            let (sender, receiver) = mpsc::channel();
            let shared = Arc::clone(&self.shared);
            let closing = std::thread::Builder::new().name("fawn-ds close".to_owned());
            let closing = closing.spawn(move || drop(sender.send(shared.close())));
            if closing.is_err() {
                return self.shared.close();
            }
            receiver.recv_timeout(self.close_timeout).unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.shared.give_up();
                    Err(Error::StillClosing { after: self.close_timeout })
                }
                RecvTimeoutError::Disconnected => Err(Error::panicked()),
            })
        };
        self.closed.get_or_init(close).clone()
    }
}

impl Store {
    /// Opens the store in `path` with default settings; creates the directory and the store if there are none.
    ///
    /// # Errors
    /// [`Error::InUse`] if the directory is open already, [`Error::Corrupt`] if stored bytes are not as they were
    /// written, or the device's failure. A corrupt store is never replaced by an empty one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Settings for a store in `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new().path(path)
    }

    /// The value of `key`; `None` if there is none or it has expired.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if bytes are corrupt that may be the key's, or a failed read. An absent key gets it too if the page of a
    /// sorted run that would have the key is corrupt.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        match self.call(Op::Get { key: key.as_ref().to_vec() })? {
            Response::Value(value) => Ok(value),
            other => other.unexpected(),
        }
    }

    /// The values of several keys in the order of the keys. Their device reads go in parallel.
    ///
    /// # Errors
    /// As [`Store::get`], of the first key that fails.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        let ops = keys.into_iter().map(|key| Op::Get { key: key.as_ref().to_vec() });
        let value_of = |response: Result<Response>| match response? {
            Response::Value(value) => Ok(value),
            other => other.unexpected(),
        };
        self.handle.shared.call_many(ops).into_iter().map(value_of).collect()
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        match self.call(Op::Contains { key: key.as_ref().to_vec() })? {
            Response::Found(is_there) => Ok(is_there),
            other => other.unexpected(),
        }
    }

    /// Sets the value of `key`; the version that this write got.
    ///
    /// Returns when the write is as durable as [`Builder::durability`] says.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::TooLarge`], [`Error::Full`]; nothing has changed then. [`Error::Poisoned`]
    /// after a failed write: whether this one will be there after a restart is unknown.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Version> {
        match self.put_with(key, value, PutOptions::new())? {
            Some(version) => Ok(version),
            None => unreachable!("a put without a condition writes or fails"),
        }
    }

    /// As [`Store::put`], with an expiry, a condition, or both. `None`: the condition did not hold, nothing changed.
    ///
    /// A refused condition is as durable as a write: it never reports a value that a crash can still undo.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Result<Option<Version>> {
        let (key, value) = (key.as_ref().to_vec(), value.as_ref().to_vec());
        self.write(Op::Put { key, value, options })
    }

    /// Removes `key`; whether it had a value. One that is corrupt counts.
    ///
    /// # Errors
    /// As [`Store::put`]. On a full device deletes still succeed. As [`Store::get`] where it is not known whether the key has a value,
    /// and nothing is removed: a put, or a delete in a batch, needs no value.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let op = Op::Delete { key: key.as_ref().to_vec(), condition: Condition::Always };
        Ok(self.write(op)?.is_some())
    }

    /// Removes `key` if its value is still of `version`; whether it was.
    ///
    /// # Errors
    /// As [`Store::delete`].
    pub fn delete_if_version(&self, key: impl AsRef<[u8]>, version: Version) -> Result<bool> {
        let op = Op::Delete { key: key.as_ref().to_vec(), condition: Condition::VersionIs(version) };
        Ok(self.write(op)?.is_some())
    }

    /// An empty batch of writes on this store.
    pub fn batch(&self) -> WriteBatch {
        WriteBatch::new(self.clone())
    }

    /// Every key and value, in no particular order, while writes continue.
    ///
    /// A key that is there throughout is returned exactly once, with a value that it had at some time during the
    /// iteration. A key that is written or deleted during the iteration is returned once or not at all. In a store with sorted
    /// runs ([`Builder::layout`]) a key that is overwritten or sorted meanwhile may be returned twice.
    pub fn iter(&self) -> Iter {
        Iter::new(self.clone())
    }

    /// Every key, as [`Store::iter`] returns them, without the values.
    pub fn keys(&self) -> Keys {
        Keys::new(self.clone())
    }

    /// About how many keys there are: expired ones count until they are found to be, and keys that were just
    /// overwritten or deleted may be counted late.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Poisoned`] after a panic.
    pub fn len(&self) -> Result<u64> {
        Ok(self.stats()?.keys)
    }

    /// Whether there are no keys, by the same estimate.
    ///
    /// # Errors
    /// As [`Store::len`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes every key, atomically.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn clear(&self) -> Result<()> {
        self.write(Op::Clear).map(drop)
    }

    /// Contents of the store, work since it was opened, and its use of memory.
    ///
    /// # Errors
    /// As [`Store::len`].
    pub fn stats(&self) -> Result<Stats> {
        match self.call(Op::Stats)? {
            Response::Stats(stats) => Ok(*stats),
            other => other.unexpected(),
        }
    }

    /// Returns when everything written before is durable, whatever the durability mode.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when that failed.
    pub fn sync(&self) -> Result<()> {
        self.write(Op::Sync).map(drop)
    }

    /// Writes and syncs everything and gives the directory back. Operations of other clones fail with
    /// [`Error::Closed`] from then on, and so do their reads in flight; writes that only wait to be durable return once they are, or fail so when
    /// this returns. Closing again returns the same result.
    ///
    /// # Errors
    /// When writing or syncing failed: what was not durable yet may be lost. [`Error::StillClosing`] after
    /// [`Builder::close_timeout`]: a thread goes on, and the directory is in use until the device answers.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }

    fn call(&self, op: Op) -> Result<Response> {
        self.handle.shared.call(op)
    }

    fn write(&self, op: Op) -> Result<Option<Version>> {
        match self.call(op)? {
            Response::Written(version) => Ok(version),
            other => other.unexpected(),
        }
    }
}

impl IntoIterator for &Store {
    type Item = Result<(KeyBytes, Value)>;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        self.iter()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        let closed = self.close();
        // The ticker may wait for the device as well.
        let is_closing = matches!(closed, Err(Error::StillClosing { .. }));
        if let Some(ticker) = self.ticker.take().filter(|_| !is_closing) {
            // A panic of the ticker has failed the store, which `closed` reports.
            let _ = ticker.join();
        }
        if let Err(error) = closed {
            tracing::error!(%error, "the last handle of a store was dropped and its data could not be made durable");
        }
    }
}
