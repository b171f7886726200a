//! fjall: a log-structured merge tree with a block cache of the whole budget, and a journal in every mode.
use crate::{Setup, copy, must};
use fjall::{CompressionType, Config, Keyspace, PartitionCreateOptions, PartitionHandle, PersistMode};
use std::path::Path;

/// An open keyspace with its one partition.
pub struct PeerStore {
    keyspace: Keyspace,
    partition: PartitionHandle,
    sync: bool,
}

/// One thread's access.
pub struct PeerSession<'s> {
    store: &'s PeerStore,
}

impl PeerStore {
    pub(crate) fn open(dir: &Path, setup: &Setup) -> Self {
        let keyspace = must(Config::new(dir.join("data")).cache_size(setup.memory_bytes).open());
        let options = PartitionCreateOptions::default().compression(CompressionType::None);
        let partition = must(keyspace.open_partition("data", options));
        Self { keyspace, partition, sync: setup.sync != 0 }
    }

    pub(crate) fn flush(&self) {
        must(self.keyspace.persist(PersistMode::Buffer));
    }
}

impl<'s> PeerSession<'s> {
    pub(crate) fn open(store: &'s PeerStore) -> Self {
        Self { store }
    }

    pub(crate) fn begin(&mut self) {}

    pub(crate) fn end(&mut self) {}

    fn written(&self) {
        if self.store.sync {
            must(self.store.keyspace.persist(PersistMode::SyncData));
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        must(self.store.partition.insert(key, value));
        self.written();
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        must(self.store.partition.remove(key));
        self.written();
    }

    pub(crate) fn get(&mut self, key: &[u8], out: &mut [u8]) -> Option<usize> {
        must(self.store.partition.get(key)).map(|value| copy(&value, out))
    }
}
