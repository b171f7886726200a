//! Owns a stand-in for the page cache until the device crate has its own.
use fawn_flash::FileId;
use fawn_flash::buffer::PAGE_BYTES;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct PageCache {
    pages: HashMap<(u32, u32), Box<[u8; PAGE_BYTES]>, FxBuildHasher>,
    order: VecDeque<(u32, u32)>,
    budget_bytes: usize,
}

impl PageCache {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Self { budget_bytes, ..Self::default() }
    }
    pub(crate) fn set_budget_bytes(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
        self.shrink();
    }
    pub(crate) fn resident_bytes(&self) -> usize {
        self.pages.len() * (PAGE_BYTES + 32)
    }
    pub(crate) fn get(&mut self, file: FileId, page: u32) -> Option<&[u8; PAGE_BYTES]> {
        self.pages.get(&(file.0, page)).map(|page| &**page)
    }
    pub(crate) fn insert(&mut self, file: FileId, page: u32, bytes: &[u8]) {
        let mut copy = Box::new([0; PAGE_BYTES]);
        copy.copy_from_slice(bytes);
        if self.pages.insert((file.0, page), copy).is_none() {
            self.order.push_back((file.0, page));
        }
        self.shrink();
    }
    pub(crate) fn invalidate_file(&mut self, file: FileId) {
        self.pages.retain(|key, _| key.0 != file.0);
        self.order.retain(|key| key.0 != file.0);
    }
    fn shrink(&mut self) {
        while self.pages.len() * PAGE_BYTES > self.budget_bytes {
            let Some(key) = self.order.pop_front() else { return };
            self.pages.remove(&key);
        }
    }
}
