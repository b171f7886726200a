//! `Box<dyn Device>` as a device, for callers that choose the device at run time.
use crate::{Completion, Device, DeviceError, FileId, IoRequest, IoStats};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

impl<D: Device + ?Sized> Device for Box<D> {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        (**self).list()
    }

    fn lock(&mut self) -> Result<(), DeviceError> {
        (**self).lock()
    }

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        (**self).create(name)
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        (**self).open(name)
    }

    fn begin_writes(&mut self, file: FileId) -> Result<(), DeviceError> {
        (**self).begin_writes(file)
    }

    fn end_writes(&mut self, file: FileId) {
        (**self).end_writes(file);
    }

    fn close(&mut self, file: FileId) {
        (**self).close(file);
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        (**self).rename(from, to)
    }

    fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError> {
        (**self).exchange(one, other)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        (**self).link(from, to)
    }

    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        (**self).unlink(name)
    }

    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        (**self).sync_dir()
    }

    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        (**self).len(file)
    }

    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        (**self).truncate(file, len_bytes)
    }

    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        (**self).allocate(file, offset, len_bytes)
    }

    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        (**self).punch(file, offset, len_bytes)
    }

    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError> {
        (**self).map(file, len_bytes)
    }

    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        (**self).store(file, offset, bytes);
    }

    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        (**self).free_bytes()
    }

    fn submit(&mut self, request: IoRequest) {
        (**self).submit(request);
    }

    fn kick(&mut self) {
        (**self).kick();
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        (**self).reap(out);
    }

    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        (**self).wait_at_most(limit, out);
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn wake_fd(&self) -> Option<RawFd> {
        (**self).wake_fd()
    }

    fn has_unsignalled(&self) -> bool {
        (**self).has_unsignalled()
    }

    fn stats(&self) -> &IoStats {
        (**self).stats()
    }

    fn poisoned(&self) -> Option<&DeviceError> {
        (**self).poisoned()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}
