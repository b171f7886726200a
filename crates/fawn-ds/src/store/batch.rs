//! Atomic batches of writes.
use super::op::{KeyWrite, Op};
use super::put_options::PutExpiry;
use super::{Error, PutOptions, Result, Store};
use fawn_types::{Condition, Version};

/// Writes that are made together: after a crash all of them are there, or none.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = fawn_ds::Store::open(dir.path())?;
/// let mut batch = store.batch();
/// batch.put("from", "90").put("to", "110").delete("pending");
/// batch.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a batch writes nothing until it is committed"]
pub struct WriteBatch {
    store: Store,
    writes: Vec<KeyWrite>,
    has_condition: bool,
}

impl WriteBatch {
    pub(super) fn new(store: Store) -> Self {
        Self { store, writes: Vec::new(), has_condition: false }
    }

    /// Adds a write. Later writes of the same key win.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.put_with(key, value, PutOptions::new())
    }

    /// Adds a write that expires. A batch takes no conditions: [`WriteBatch::commit`] refuses them.
    pub fn put_with(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: PutOptions) -> &mut Self {
        self.has_condition |= options.condition != Condition::Always;
        self.push(key.as_ref(), Some(value.as_ref()), options.expiry)
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.push(key.as_ref(), None, PutExpiry::Never)
    }

    /// Number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Makes all writes; returns when they are as durable as any write. The version of the last one, `None` if the
    /// batch is empty.
    ///
    /// # Errors
    /// As [`Store::put`]; nothing is written then. [`Error::TooLarge`] if all together are longer than half a segment
    /// or need more than a quarter of the memory budget until they are committed, [`Error::InvalidOption`] if a write has a condition.
    pub fn commit(self) -> Result<Option<Version>> {
        if self.has_condition {
            return Err(Error::InvalidOption {
                name: "condition",
                found: "a condition in a batch".to_owned(),
                expected: "put_with of the store for conditional writes",
            });
        }
        if self.writes.is_empty() {
            return Ok(None);
        }
        self.store.write(Op::Batch(self.writes))
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>, expiry: PutExpiry) -> &mut Self {
        self.writes.push(KeyWrite { key: key.to_vec(), value: value.map(<[u8]>::to_vec), expiry });
        self
    }
}
