//! A simulated device whose next wait for completions can be made to panic, as a fault inside the engine would.
use fawn_flash::{Completion, Device, DeviceError, FileId, IoRequest, IoStats, SimDevice};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) struct PanickingDevice {
    pub(crate) inner: SimDevice,
    pub(crate) panics: Arc<AtomicBool>,
}

impl Device for PanickingDevice {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }
    fn lock(&mut self) -> Result<(), DeviceError> {
        self.inner.lock()
    }
    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.inner.create(name)
    }
    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        self.inner.open(name)
    }
    fn begin_writes(&mut self, file: FileId) -> Result<(), DeviceError> {
        self.inner.begin_writes(file)
    }
    fn end_writes(&mut self, file: FileId) {
        self.inner.end_writes(file);
    }
    fn close(&mut self, file: FileId) {
        self.inner.close(file);
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.inner.rename(from, to)
    }
    fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError> {
        self.inner.exchange(one, other)
    }
    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.inner.link(from, to)
    }
    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        self.inner.unlink(name)
    }
    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        self.inner.sync_dir()
    }
    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        self.inner.len(file)
    }
    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.truncate(file, len_bytes)
    }
    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.allocate(file, offset, len_bytes)
    }
    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.inner.punch(file, offset, len_bytes)
    }
    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError> {
        self.inner.map(file, len_bytes)
    }
    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        self.inner.store(file, offset, bytes);
    }
    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.inner.free_bytes()
    }
    fn submit(&mut self, request: IoRequest) {
        self.inner.submit(request);
    }
    fn kick(&mut self) {
        self.inner.kick();
    }
    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        assert!(!self.panics.load(Ordering::SeqCst), "the test ordered this panic");
        self.inner.reap(out);
    }
    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        assert!(!self.panics.load(Ordering::SeqCst), "panic requested by the test");
        self.inner.wait_at_most(limit, out);
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
    fn stats(&self) -> &IoStats {
        self.inner.stats()
    }
    fn poisoned(&self) -> Option<&DeviceError> {
        self.inner.poisoned()
    }
    fn name(&self) -> &'static str {
        "panicking"
    }
}
