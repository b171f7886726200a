//! Owns the store rung: what every contender must be able to do, and the workloads of the ladder in turn.
pub mod fawn_ds;
pub mod ladder;
pub mod raw;
pub mod rocksdb;

use crate::{BenchError, Row};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Length of every key, bytes.
pub const KEY_BYTES: usize = 16;

/// What lies in a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Distinct keys.
    pub keys: u64,
    /// Length of each value.
    pub value_bytes: usize,
    /// The engine's memory budget.
    pub memory_bytes: u64,
}

impl Shape {
    /// Key and value bytes in all.
    #[must_use]
    pub const fn user_bytes(&self) -> u64 {
        self.keys * (KEY_BYTES + self.value_bytes) as u64
    }
}

/// What ends the time of a fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillEnd {
    /// The last acknowledgement.
    Acknowledged,
    /// Everything is in the store's files: what a raw sequential write may be compared with.
    Written,
}

/// Random reads.
#[derive(Clone, Copy, Debug)]
pub struct Gets {
    /// Lookups in flight.
    pub depth: usize,
    /// How long.
    pub run: Duration,
    /// Whether the keys asked for are there.
    pub present: bool,
    /// Whether the data may be brought into memory first, outside the time.
    pub warm: bool,
    /// Decides which keys.
    pub seed: u64,
}

/// Random writes.
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    /// Writers that wait for their acknowledgement before they write again.
    pub writers: usize,
    /// How long.
    pub run: Duration,
    /// Decides which keys.
    pub seed: u64,
}

/// A store under test. Rows come without a workload's name; the ladder gives it.
pub trait Contender {
    /// Its name in rows.
    fn name(&self) -> &'static str;

    /// Empties the store, then puts every key once, in no order, without syncs (`memory`), by one thread.
    ///
    /// # Errors
    /// When the engine fails.
    fn fill(&mut self, shape: &Shape, end: FillEnd) -> Result<Row, BenchError>;

    /// Reads every key of the last fill back and checks its value.
    ///
    /// # Errors
    /// [`BenchError::Unverified`] with the first key that differs.
    fn verify(&mut self) -> Result<(), BenchError>;

    /// Random lookups of a filled store.
    ///
    /// # Errors
    /// When the engine fails, or a lookup finds other than it must.
    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError>;

    /// Random overwrites of a filled store, without syncs.
    ///
    /// # Errors
    /// When the engine fails.
    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError>;

    /// Random puts into an empty store, each acknowledged after a sync.
    ///
    /// # Errors
    /// When the engine fails.
    fn durable_puts(&mut self, shape: &Shape, puts: &Puts) -> Result<Row, BenchError>;

    /// Removes its files.
    ///
    /// # Errors
    /// When they cannot be removed.
    fn discard(&mut self) -> Result<(), BenchError>;
}

/// A directory that a contender has for itself: made when needed, removed with its owner, never one that was there.
#[derive(Debug)]
pub struct OwnDir {
    path: PathBuf,
    made: bool,
}

impl OwnDir {
    /// `name` within `parent`; nothing is made yet.
    #[must_use]
    pub fn new(parent: &Path, name: &str) -> Self {
        Self { path: parent.join(name), made: false }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, empty.
    ///
    /// # Errors
    /// When it was there before: what others left is not ours to remove.
    pub fn renew(&mut self) -> Result<&Path, BenchError> {
        self.remove()?;
        std::fs::create_dir_all(self.path.parent().unwrap_or(&self.path)).map_err(|error| self.failed(&error))?;
        std::fs::create_dir(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                self.failed(&"is there already; remove it or choose another --dir (a benchmark empties its directory)")
            }
            _ => self.failed(&error),
        })?;
        self.made = true;
        Ok(&self.path)
    }

    /// Removes it with all that it holds, if this owner made it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(&mut self) -> Result<(), BenchError> {
        if std::mem::take(&mut self.made) {
            std::fs::remove_dir_all(&self.path).map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> BenchError {
        BenchError::failed(self.path.display().to_string(), error)
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        // Best effort: the next run says so if something stayed.
        let _ = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_there_is_neither_emptied_nor_removed() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::create_dir(parent.path().join("theirs")).unwrap();
        let mut theirs = OwnDir::new(parent.path(), "theirs");
        assert!(theirs.renew().unwrap_err().to_string().contains("--dir"));
        drop(theirs);
        assert!(parent.path().join("theirs").exists());
        let mut ours = OwnDir::new(parent.path(), "ours");
        std::fs::write(ours.renew().unwrap().join("x"), "y").unwrap();
        assert!(!ours.renew().unwrap().join("x").exists(), "renewed means emptied");
        drop(ours);
        assert!(!parent.path().join("ours").exists());
    }
}
