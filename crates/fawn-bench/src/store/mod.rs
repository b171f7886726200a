//! The store level: the interface of a store under test, its workloads, and the data directories.
pub mod fawn_ds;
pub mod figures;
pub mod ladder;
pub mod mix;
pub mod peak_load;
pub mod peer;
pub mod raw;
pub mod rocksdb;

use crate::{BenchError, Row};
use mix::Mix;
use peak_load::PeakLoad;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Length of every key, bytes.
pub const KEY_BYTES: usize = 16;

/// The data and memory budget of a store.
#[derive(Clone, Copy, Debug)]
pub struct DataShape {
    /// Number of distinct keys.
    pub keys: u64,
    /// Length of each value, bytes.
    pub value_bytes: usize,
    /// Memory budget of the engine, bytes.
    pub memory_bytes: u64,
}

impl DataShape {
    /// Total size of keys and values, bytes.
    #[must_use]
    pub const fn user_bytes(&self) -> u64 {
        self.keys * (KEY_BYTES + self.value_bytes) as u64
    }
}

/// The end of a fill's measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillEnd {
    /// The last acknowledgement.
    Acknowledged,
    /// All data is in the store's files; comparable with a raw sequential write.
    Written,
}

/// Parameters of random reads.
#[derive(Clone, Copy, Debug)]
pub struct Gets {
    /// Number of lookups in flight.
    pub depth: usize,
    /// Duration of the run.
    pub run: Duration,
    /// Whether the keys are present.
    pub present: bool,
    /// Whether the data may be loaded into memory before the measurement.
    pub warm: bool,
    /// Seed for the choice of keys.
    pub seed: u64,
}

/// Parameters of random writes.
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    /// Number of writers; each waits for its acknowledgement before the next write.
    pub writers: usize,
    /// Duration of the run.
    pub run: Duration,
    /// Seed for the choice of keys.
    pub seed: u64,
}

/// The parts that a load is divided into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadParts {
    /// Number of parts.
    pub count: u32,
    /// The thing that a part is.
    pub unit: PartUnit,
    /// Whether one part is filled after the other, instead of all at the same time.
    pub in_sequence: bool,
}

/// The thing that a part of a load is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartUnit {
    /// A key range of one store.
    Range,
    /// A store, with files of its own.
    Store,
}

/// The space of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceLimit {
    /// Maximum bytes of the store's files.
    pub capacity_bytes: Option<u64>,
    /// Whether the store reclaims the space of dead records.
    pub cleans: bool,
    /// Whether FAWN-DS sorts its segments into runs.
    pub sorts: bool,
}

/// A store under test. It returns rows without a workload name; the caller sets the name.
pub trait Contender {
    /// The store's name in rows.
    fn name(&self) -> &'static str;

    /// Empties the store, then puts every key once, in random order, without syncs (`memory`), with one thread.
    ///
    /// # Errors
    /// If the engine fails.
    fn fill(&mut self, shape: &DataShape, end: FillEnd) -> Result<Row, BenchError>;

    /// Reads every key of the last fill and checks its value.
    ///
    /// # Errors
    /// [`BenchError::Unverified`] with the first wrong key.
    fn verify(&mut self) -> Result<(), BenchError>;

    /// Random lookups in a filled store.
    ///
    /// # Errors
    /// If the engine fails, or a lookup has an unexpected result.
    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError>;

    /// Random overwrites in a filled store, without syncs.
    ///
    /// # Errors
    /// If the engine fails.
    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError>;

    /// Random puts into an empty store, each acknowledged after a sync.
    ///
    /// # Errors
    /// If the engine fails.
    fn durable_puts(&mut self, shape: &DataShape, puts: &Puts) -> Result<Row, BenchError>;

    /// Like [`Contender::fill`] to [`FillEnd::Written`], into several ranges or stores; `None` if this store has none.
    ///
    /// # Errors
    /// If the engine fails.
    fn fill_parts(&mut self, _shape: &DataShape, _parts: LoadParts) -> Result<Option<Row>, BenchError> {
        Ok(None)
    }

    /// Like [`Contender::fill`] to [`FillEnd::Written`] with a limit of space, where writes count once the system has
    /// them (`everysec`); `None` if this store has no such limit.
    ///
    /// # Errors
    /// If the engine fails.
    fn fill_within(&mut self, _shape: &DataShape, _space: SpaceLimit) -> Result<Option<Row>, BenchError> {
        Ok(None)
    }

    /// Gets, puts and deletes in a filled store; `None` if this store cannot run this mix.
    ///
    /// # Errors
    /// If the engine fails, or a lookup has an unexpected result.
    fn mixed(&mut self, _mix: &Mix) -> Result<Option<Row>, BenchError> {
        Ok(None)
    }

    /// A load that follows the peak, in a filled store; `None` if this store has none. Latencies, rate and longest stop are
    /// of the measured phases; bytes and reads of all.
    ///
    /// # Errors
    /// If the engine fails, or a lookup has an unexpected result.
    fn follow_peak(&mut self, _load: &PeakLoad) -> Result<Option<Row>, BenchError> {
        Ok(None)
    }

    /// Lets a filled store do what it does while nothing is written. By default it does nothing.
    ///
    /// # Errors
    /// If the engine fails, or does not end.
    fn rest(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Visits the first keys of a filled store, at least so many, in its own order; `None` if this store has no scan here.
    ///
    /// # Errors
    /// If the engine fails, or there are fewer keys.
    fn scan(&mut self, _keys: u64) -> Result<Option<Row>, BenchError> {
        Ok(None)
    }

    /// Removes the store's files.
    ///
    /// # Errors
    /// If the files cannot be removed.
    fn discard(&mut self) -> Result<(), BenchError>;
}

/// A contender's own directory: created when needed, removed on drop. A directory that existed before is never removed.
#[derive(Debug)]
pub struct OwnDir {
    path: PathBuf,
    made: bool,
}

impl OwnDir {
    /// The directory `name` in `parent`; not created yet.
    #[must_use]
    pub fn new(parent: &Path, name: &str) -> Self {
        Self { path: parent.join(name), made: false }
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory, empty.
    ///
    /// # Errors
    /// If the directory existed before: its content may belong to another program.
    pub fn renew(&mut self) -> Result<&Path, BenchError> {
        self.remove()?;
        std::fs::create_dir_all(self.path.parent().unwrap_or(&self.path)).map_err(|error| self.failed(&error))?;
        std::fs::create_dir(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                self.failed(&"already exists; remove it or choose another --dir (a benchmark empties its directory)")
            }
            _ => self.failed(&error),
        })?;
        self.made = true;
        Ok(&self.path)
    }

    /// Removes the directory with its content, if this owner has created it.
    ///
    /// # Errors
    /// If the system call fails.
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
        // Best effort: if the directory remains, the next run reports it.
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
        assert!(!ours.renew().unwrap().join("x").exists(), "renewing empties the directory");
        drop(ours);
        assert!(!parent.path().join("ours").exists());
    }
}
