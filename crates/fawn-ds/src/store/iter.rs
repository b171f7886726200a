//! Iteration over a store in hash order, several stretches of it at a time.
use super::op::{Op, Response, Stretch};
use super::{Key, Result, Store, Value};
use crate::engine::ScanItem;
use std::collections::VecDeque;

/// Stretches that hash order is divided into: as many device reads are in flight at once.
const STRETCHES: u64 = 16;
/// Longest value that is kept with its key until its turn comes, bytes: bounds an iterator's memory to a few MiB.
const AHEAD_VALUE_BYTES_MAX: u32 = 4096;

/// Every key and value: see [`Store::iter`].
///
/// A damaged record is an `Err` item, as is a failed read; the iteration goes on after it where it can.
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
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let ScanItem { key, version, expires_at_ms, value, .. } = match self.scan.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(error)),
            };
            if let Some(value) = value {
                return Some(Ok((Key::new(key), Value::new(value, version, expires_at_ms))));
            }
            match self.scan.store.get(&key) {
                Ok(Some(value)) => return Some(Ok((Key::new(key), value))),
                // Deleted since the scan met it.
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Iterator for Keys {
    type Item = Result<Key>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.scan.next()?.map(|item| Key::new(item.key)))
    }
}

impl Scanning {
    fn new(store: Store, value_bytes_max: Option<u32>) -> Self {
        let length = 1_u64 << (64 - STRETCHES.ilog2());
        let stretch = |i: u64| Stretch { from: i * length, to: (i + 1).checked_mul(length), value_bytes_max };
        Self { store, stretches: (0..STRETCHES).map(stretch).collect(), ready: VecDeque::new() }
    }

    fn next(&mut self) -> Option<Result<ScanItem>> {
        while self.ready.is_empty() && !self.stretches.is_empty() {
            self.scan_on();
        }
        self.ready.pop_front()
    }

    /// A step on every stretch.
    fn scan_on(&mut self) {
        let stretches = core::mem::take(&mut self.stretches);
        let responses = self.store.handle.shared.call_many(stretches.iter().map(|&stretch| Op::Scan(stretch)));
        for (stretch, response) in stretches.into_iter().zip(responses) {
            match response {
                Ok(Response::Scanned { items, next, damage }) => {
                    self.ready.extend(items.into_iter().map(Ok));
                    self.ready.extend(damage.map(Err));
                    self.stretches.extend(next.map(|from| Stretch { from, ..stretch }));
                }
                Ok(other) => other.unexpected(),
                Err(error) => {
                    // Closed or failed: every other stretch would report the same.
                    self.stretches.clear();
                    self.ready.push_back(Err(error));
                    return;
                }
            }
        }
    }
}

const _: () = assert!(STRETCHES.is_power_of_two(), "stretches of one length make up hash order");
