//! Iteration over a store in hash order, several stretches of it at a time.
use super::op::{Op, Response, Stretch};
use super::{Error, KeyBytes, Result, Store, Value};
use crate::engine::{CorruptRecord, ScanItem};
use crate::error::EngineError;
use fawn_types::Version;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Stretches that hash order is divided into: as many device reads are in flight at once.
const STRETCHES: u64 = 16;
/// Length of a stretch in hash order.
const STRETCH_LENGTH: u64 = 1 << (64 - STRETCHES.ilog2());
/// Longest value that is kept with its key until its turn comes, bytes: bounds an iterator's memory to a few MiB.
const AHEAD_VALUE_BYTES_MAX: u32 = 4096;

/// Every key and value: see [`Store::iter`].
///
/// A record that is corrupt or cannot be read is an [`Error::Corrupt`] item, once, and the iteration passes it: to save
/// the rest of a corrupt store, take the `Ok` items. It may be one more key's current record, or an old version of a
/// key that also has an item. A failure that is not one record's, as of a store that was closed, is the last item. In a
/// corrupt store that was opened with [`Builder::read_only`](super::Builder::read_only), so is an [`Error::Corrupt`] for what
/// the opening could not read.
#[derive(Debug)]
#[must_use = "iterators are lazy"]
pub struct Iter {
    scan: Scanning,
}

/// Every key: see [`Store::keys`]. Errors are items as those of [`Iter`].
#[derive(Debug)]
#[must_use = "iterators are lazy"]
pub struct Keys {
    scan: Scanning,
}

/// The part of an iteration that both iterators share.
#[derive(Debug)]
struct Scanning {
    store: Store,
    stretches: Vec<Stretch>,
    ready: VecDeque<Result<ScanItem>>,
    /// Corrupt records of the first and the last step of each stretch. A cell that reaches into several stretches is
    /// scanned for each of them, and a record whose key cannot be read may belong to any. Other cells are scanned once,
    /// so this stays small, however many records are corrupt.
    corrupt_at_ends: HashSet<(String, u32), FxBuildHasher>,
    /// The part in runs, which follows when the log was passed.
    runs: Option<Stretch>,
    /// Newest version committed when the first step returned.
    since: Option<Version>,
    /// The last item, if the store was opened read-only past damage: records that it lacks must not pass for absent ones.
    missing: Option<EngineError>,
}

impl Iter {
    pub(super) fn new(store: Store) -> Self {
        Self { scan: Scanning::new(store, Some(AHEAD_VALUE_BYTES_MAX)) }
    }
}

impl Keys {
    pub(super) fn new(store: Store) -> Self {
        Self { scan: Scanning::new(store, None) }
    }
}

impl Iterator for Iter {
    type Item = Result<(KeyBytes, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let ScanItem { key, version, expires_at_ms, value, .. } = match self.scan.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(error)),
            };
            if let Some(value) = value {
                return Some(Ok((KeyBytes::new(key), Value::new(value, version, expires_at_ms))));
            }
            match self.scan.store.get(&key) {
                Ok(Some(value)) => return Some(Ok((KeyBytes::new(key), value))),
                // Deleted since the scan met it.
                Ok(None) => {}
                Err(error) => {
                    if !is_of_one_record(&error) {
                        self.scan.end();
                    }
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Iterator for Keys {
    type Item = Result<KeyBytes>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.scan.next()?.map(|item| KeyBytes::new(item.key)))
    }
}

impl Scanning {
    fn new(store: Store, value_bytes_max: Option<u32>) -> Self {
        let stretch = |i: u64| {
            let (from, to) = (i * STRETCH_LENGTH, (i + 1).checked_mul(STRETCH_LENGTH));
            Stretch { from, to, since: None, value_bytes_max }
        };
        let stretches = (0..STRETCHES).map(stretch).collect();
        let runs = Some(Stretch { from: 0, to: None, since: None, value_bytes_max });
        let (ready, corrupt_at_ends) = (VecDeque::new(), HashSet::default());
        Self { store, stretches, ready, corrupt_at_ends, runs, since: None, missing: None }
    }

    fn next(&mut self) -> Option<Result<ScanItem>> {
        while self.ready.is_empty() {
            if self.stretches.is_empty() {
                let Some(runs) = self.runs.take() else {
                    return self.missing.take().map(|error| Err(error.into()));
                };
                self.stretches.push(Stretch { since: Some(self.since.unwrap_or_default()), ..runs });
            }
            self.scan_on();
        }
        self.ready.pop_front()
    }

    fn end(&mut self) {
        self.ready.clear();
        self.stretches.clear();
        (self.runs, self.missing) = (None, None);
    }

    /// A step on every stretch.
    fn scan_on(&mut self) {
        let stretches = core::mem::take(&mut self.stretches);
        let responses = self.store.handle.shared.call_many(stretches.iter().map(|&stretch| Op::Scan(stretch)));
        for (stretch, response) in stretches.into_iter().zip(responses) {
            match response {
                Ok(Response::Scanned { items, next, corrupt, seen, missing }) => {
                    self.missing = missing;
                    let since = self.since.get_or_insert(seen);
                    *since = seen.min(*since);
                    self.ready.extend(items.into_iter().map(Ok));
                    let is_at_end = stretch.from.is_multiple_of(STRETCH_LENGTH) || next.is_none();
                    corrupt.into_iter().for_each(|record| self.report(record, is_at_end));
                    self.stretches.extend(next.map(|from| Stretch { from, ..stretch }));
                }
                Ok(other) => other.unexpected(),
                Err(error) => {
                    // Closed or out of descriptors: every other stretch would report the same.
                    self.stretches.clear();
                    (self.runs, self.missing) = (None, None);
                    self.ready.push_back(Err(error));
                    return;
                }
            }
        }
    }

    fn report(&mut self, record: CorruptRecord, is_at_end: bool) {
        let CorruptRecord { file, offset_bytes, detail, .. } = record;
        if !is_at_end || self.corrupt_at_ends.insert((file.clone(), offset_bytes)) {
            self.ready.push_back(Err(Error::from(EngineError::Corrupt { file, offset_bytes, detail })));
        }
    }
}

/// Whether other records may be readable all the same.
fn is_of_one_record(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } => true,
        Error::Device { source } => !source.is_retryable(),
        _ => false,
    }
}

const _: () = assert!(STRETCHES.is_power_of_two(), "stretches of one length make up hash order");
