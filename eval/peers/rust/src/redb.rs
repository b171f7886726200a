//! redb: a copy-on-write B-tree in one file, with a cache of the whole budget.
use crate::{Setup, copy, must};
use redb::{Database, Durability, ReadableDatabase, TableDefinition, WriteTransaction};
use std::path::Path;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");

/// An open database.
pub struct PeerStore {
    database: Database,
    sync: bool,
}

/// One thread's access.
pub struct PeerSession<'s> {
    store: &'s PeerStore,
    batch: Option<WriteTransaction>,
}

impl PeerStore {
    pub(crate) fn open(dir: &Path, setup: &Setup) -> Self {
        let mut builder = Database::builder();
        builder.set_cache_size(setup.memory_bytes as usize);
        let store = Self { database: must(builder.create(dir.join("data.redb"))), sync: setup.sync != 0 };
        let transaction = must(store.database.begin_write());
        must(transaction.open_table(TABLE).map(drop));
        must(transaction.commit());
        store
    }

    pub(crate) fn flush(&self) {
        let mut transaction = must(self.database.begin_write());
        must(transaction.set_durability(Durability::Immediate));
        must(transaction.commit());
    }
}

impl<'s> PeerSession<'s> {
    pub(crate) fn open(store: &'s PeerStore) -> Self {
        Self { store, batch: None }
    }

    pub(crate) fn begin(&mut self) {
        self.batch = Some(self.transaction());
    }

    pub(crate) fn end(&mut self) {
        if let Some(batch) = self.batch.take() {
            must(batch.commit());
        }
    }

    fn transaction(&self) -> WriteTransaction {
        let mut transaction = must(self.store.database.begin_write());
        must(transaction.set_durability(if self.store.sync { Durability::Immediate } else { Durability::None }));
        transaction
    }

    fn write(&mut self, operation: impl FnOnce(&WriteTransaction)) {
        match &self.batch {
            Some(batch) => operation(batch),
            None => {
                let transaction = self.transaction();
                operation(&transaction);
                must(transaction.commit());
            }
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.write(|transaction| {
            let mut table = must(transaction.open_table(TABLE));
            must(table.insert(key, value).map(drop));
        });
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.write(|transaction| {
            let mut table = must(transaction.open_table(TABLE));
            must(table.remove(key).map(drop));
        });
    }

    pub(crate) fn get(&mut self, key: &[u8], out: &mut [u8]) -> Option<usize> {
        let table = must(must(self.store.database.begin_read()).open_table(TABLE));
        must(table.get(key)).map(|value| copy(value.value(), out))
    }
}
