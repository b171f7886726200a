//! `SimDevice`: the `Device` trait over a [`SimDisk`], with checks for misuse that real devices cannot afford.
use super::directory::{DIR_INODE, InodeId};
use super::faults::{DeviceFault, OpKind};
use super::queue::SimOperation;
use super::state::{DiskState, full, io};
use super::{DIR, Loss, SimDisk, SimOptions};
use crate::buffer::PAGE_BYTES;
use crate::request::{IoRequest, Work};
use crate::{Completion, Device, DeviceError, FileId, IoClass, IoOperation, IoStats};
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct OpenFileState {
    inode: InodeId,
    name: Arc<str>,
    is_writable: bool,
}

/// A process's access to a simulated disk. Dropping it is like killing the process: writes in flight arrive in part.
#[derive(Debug)]
pub struct SimDevice {
    disk: SimDisk,
    id: u64,
    power_cycles: u64,
    files: Vec<Option<OpenFileState>>,
    /// Mapped files, with the length of the mapped part.
    mapped: Vec<(FileId, usize)>,
    in_flight: usize,
    stats: IoStats,
    poison: Option<DeviceError>,
}

impl SimDevice {
    /// A device over a new, empty disk, which [`SimDevice::disk`] returns.
    #[must_use]
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self::attach(&SimDisk::new(SimOptions { seed, ..options }))
    }

    /// A device over `disk`.
    #[must_use]
    pub fn attach(disk: &SimDisk) -> Self {
        let mut state = disk.state();
        state.devices += 1;
        let (id, power_cycles) = (state.devices, state.power_cycles);
        drop(state);
        let (files, mapped, stats) = (Vec::new(), Vec::new(), IoStats::default());
        Self { disk: disk.clone(), id, power_cycles, files, mapped, in_flight: 0, stats, poison: None }
    }

    /// The disk.
    #[must_use]
    pub const fn disk(&self) -> &SimDisk {
        &self.disk
    }

    fn handle(&self, file: FileId) -> &OpenFileState {
        let handle = self.files.get(file.0 as usize).and_then(Option::as_ref);
        handle.unwrap_or_else(|| panic!("{file:?} is not open"))
    }

    /// The disk, unless power was lost after this device was attached.
    fn alive(&self) -> Result<MutexGuard<'_, DiskState>, DeviceError> {
        let state = self.disk.state();
        if state.power_cycles == self.power_cycles {
            return Ok(state);
        }
        Err(io(IoOperation::Metadata("use"), DIR, 0, "power was lost; attach a new device"))
    }

    /// As [`SimDevice::alive`], for operations that change the disk.
    fn healthy(&self) -> Result<MutexGuard<'_, DiskState>, DeviceError> {
        match &self.poison {
            Some(first) => Err(DeviceError::Poisoned { first: first.to_string() }),
            None => self.alive(),
        }
    }

    /// Counts a metadata operation, then fails it if a fault is ordered, else applies it. A crash image may follow.
    fn change<T>(
        &self,
        kind: OpKind,
        name: &str,
        change: impl FnOnce(&mut DiskState) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut state = self.healthy()?;
        let result = state.metadata(kind, name).and_then(|()| change(&mut state));
        state.count_op();
        result
    }

    fn inspect<T>(&self, name: &str, look: impl FnOnce(&mut DiskState) -> T) -> Result<T, DeviceError> {
        let mut state = self.alive()?;
        state.metadata(OpKind::Inspect, name)?;
        Ok(look(&mut state))
    }

    fn set_writable(&mut self, file: FileId, is_writable: bool) {
        let handle = self.files.get_mut(file.0 as usize).and_then(Option::as_mut);
        let handle = handle.unwrap_or_else(|| panic!("{file:?} is not open"));
        handle.is_writable = is_writable;
    }

    fn add_file(&mut self, inode: InodeId, name: &str, is_writable: bool) -> FileId {
        self.files.push(Some(OpenFileState { inode, name: name.into(), is_writable }));
        FileId(self.files.len() as u32 - 1)
    }

    fn poison<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result
            && !matches!(error, DeviceError::Poisoned { .. })
        {
            self.poison.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Blocks until an operation of this device can complete.
    fn block(&self, limit: Option<Duration>) {
        let start = Instant::now();
        let hangs = || self.in_flight > 0 && self.alive().is_ok_and(|state| state.next_due(Some(self.id)).is_none());
        while hangs() && limit.is_none_or(|limit| start.elapsed() < limit) {
            std::thread::yield_now();
        }
    }

    fn deliver(&mut self, out: &mut VecDeque<Completion>) {
        if self.alive().is_err() {
            // The disk has dropped the operations in flight. Operations submitted from now on complete with an error.
            self.in_flight = self.disk.state().queue.iter().filter(|operation| operation.device == self.id).count();
        }
        let before = out.len();
        self.poison = self.disk.state().deliver(self.id, self.poison.take(), out);
        self.in_flight -= out.len() - before;
    }
}

/// Checks a duty of the caller that no real device checks: at most one write in flight per block.
fn assert_apart(state: &DiskState, inode: InodeId, write: &IoRequest) {
    let page = PAGE_BYTES as u64;
    let blocks = |write: &IoRequest| write.offset / page..(write.offset + write.len_bytes as u64).div_ceil(page);
    let mine = blocks(write);
    let others = state.queue.iter().filter(|operation| operation.inode == inode);
    for operation in others.filter(|operation| matches!(operation.request.work, Work::Write { .. })) {
        let other = blocks(&operation.request);
        assert!(mine.end <= other.start || other.end <= mine.start, "two writes in flight at block {}", mine.start);
    }
}

impl Device for SimDevice {
    fn list(&mut self) -> Result<Vec<String>, DeviceError> {
        self.inspect(DIR, |state| state.directory.names())
    }

    fn lock(&mut self) -> Result<(), DeviceError> {
        let id = self.id;
        let holder = self.inspect(DIR, |state| *state.lock_holder.get_or_insert(id))?;
        if holder == id {
            return Ok(());
        }
        Err(DeviceError::Locked { dir: DIR.to_owned(), holder: format!(" (device {holder})") })
    }

    fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        let inode = self.change(OpKind::Create, name, |state| {
            if state.directory.get(name).is_some() {
                return Err(DeviceError::Exists { name: name.to_owned(), dir: DIR.to_owned() });
            }
            if state.full {
                return Err(full());
            }
            let inode = state.create(name);
            *state.handles.entry(inode).or_default() += 1;
            Ok(inode)
        })?;
        Ok(self.add_file(inode, name, true))
    }

    fn open(&mut self, name: &str) -> Result<FileId, DeviceError> {
        let mut state = self.alive()?;
        state.metadata(OpKind::Open, name)?;
        let inode = state.directory.get(name).ok_or_else(|| not_found(name))?;
        *state.handles.entry(inode).or_default() += 1;
        drop(state);
        Ok(self.add_file(inode, name, false))
    }

    fn begin_writes(&mut self, file: FileId) -> Result<(), DeviceError> {
        self.set_writable(file, true);
        Ok(())
    }

    fn end_writes(&mut self, file: FileId) {
        self.set_writable(file, false);
    }

    fn close(&mut self, file: FileId) {
        let inode = self.handle(file).inode;
        self.files[file.0 as usize] = None;
        self.mapped.retain(|(mapped, _)| *mapped != file);
        if let Ok(mut state) = self.alive() {
            let busy = state.queue.iter().any(|operation| operation.device == self.id && operation.inode == inode);
            let open_twice = state.handles.get(&inode).is_some_and(|&count| count > 1);
            assert!(!busy || open_twice, "{file:?} closed with operations in flight");
            state.release(inode);
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.change(OpKind::Rename, from, |state| {
            let inode = state.directory.get(from).ok_or_else(|| not_found(from))?;
            state.directory.rename(from, to, inode);
            Ok(())
        })
    }

    fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError> {
        self.change(OpKind::Rename, one, |state| {
            let named = [one, other].map(|name| state.directory.get(name).ok_or_else(|| not_found(name)));
            let [of_one, of_other] = named;
            state.directory.exchange((one, of_one?), (other, of_other?));
            Ok(true)
        })
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.change(OpKind::Link, from, |state| {
            let inode = state.directory.get(from).ok_or_else(|| not_found(from))?;
            if state.directory.get(to).is_some() {
                return Err(DeviceError::Exists { name: to.to_owned(), dir: DIR.to_owned() });
            }
            state.directory.set(to, inode);
            Ok(())
        })
    }

    fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        self.change(OpKind::Unlink, name, |state| {
            state.directory.get(name).ok_or_else(|| not_found(name))?;
            state.directory.remove(name);
            Ok(())
        })
    }

    fn sync_dir(&mut self) -> Result<(), DeviceError> {
        self.stats.count_sync(IoClass::Manifest);
        let result = self.change(OpKind::SyncDir, DIR, |state| {
            state.directory.sync();
            state.collect();
            Ok(())
        });
        self.poison(result)
    }

    fn len(&mut self, file: FileId) -> Result<u64, DeviceError> {
        let handle = self.handle(file);
        self.inspect(&handle.name, |state| state.inode(handle.inode).len())
    }

    fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        let handle = self.handle(file);
        let result = self.change(OpKind::Truncate, &handle.name, |state| {
            let (inode, seq) = state.change(handle.inode);
            inode.truncate(seq, len_bytes);
            Ok(())
        });
        match result {
            Err(error) if error.is_retryable() => Err(error),
            result => self.poison(result),
        }
    }

    fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let handle = self.handle(file);
        self.change(OpKind::Allocate, &handle.name, |state| {
            if state.overflows(handle.inode, offset, len_bytes) {
                return Err(full());
            }
            let (inode, seq) = state.change(handle.inode);
            inode.allocate(seq, offset, len_bytes);
            Ok(())
        })
    }

    fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let handle = self.handle(file);
        self.change(OpKind::Punch, &handle.name, |state| {
            let (inode, seq) = state.change(handle.inode);
            inode.punch(seq, offset, len_bytes);
            Ok(())
        })
    }

    fn map(&mut self, file: FileId, len_bytes: usize) -> Result<(), DeviceError> {
        let handle = self.handle(file);
        let inode = handle.inode;
        self.change(OpKind::Map, &handle.name, |state| {
            assert!(state.inode(inode).len() >= len_bytes as u64, "a mapping past the end of the file");
            Ok(())
        })?;
        self.mapped.push((file, len_bytes));
        Ok(())
    }

    fn store(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        let mapped = self.mapped.iter().find(|(mapped, _)| *mapped == file);
        let Some(&(_, len_bytes)) = mapped else { panic!("{file:?} is not mapped") };
        assert!(offset as usize + bytes.len() <= len_bytes, "a store outside of the mapping");
        let inode = self.handle(file).inode;
        // The process may end in the middle of the copy.
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        for (offset, part) in [(offset, first), (offset + first.len() as u64, rest)] {
            let Ok(mut state) = self.alive() else { return };
            let (inode, seq) = state.change(inode);
            inode.write(seq, offset, part);
            state.count_op();
        }
    }

    fn free_bytes(&mut self) -> Result<u64, DeviceError> {
        self.inspect(DIR, |state| state.free_bytes())
    }

    fn submit(&mut self, request: IoRequest) {
        self.in_flight += 1;
        self.stats.count(&request);
        let is_of_dir = request.work == Work::SyncDir;
        let (inode, name) = if is_of_dir {
            (DIR_INODE, Arc::from(DIR))
        } else {
            let handle = self.handle(request.file);
            // A real device may have no descriptor for it.
            assert!(handle.is_writable || request.work == Work::Read, "{}: not prepared for writes", handle.name);
            (handle.inode, Arc::clone(&handle.name))
        };
        let kind = OpKind::of(request.work);
        let refused = match request.work {
            Work::Read => self.alive().err(),
            Work::Write { .. } | Work::Sync | Work::SyncDir => self.healthy().err(),
        };
        let mut state = self.disk.state();
        let fault = if refused.is_none() { state.faults.count(kind) } else { None };
        if matches!(request.work, Work::Write { .. }) {
            assert_apart(&state, inode, &request);
        }
        let covered_seq = if is_of_dir { state.directory.edited() } else { state.seq };
        state.queue.push(SimOperation {
            device: self.id,
            inode,
            name,
            request,
            covered_seq,
            fault,
            refused,
            due: None,
        });
        state.count_op();
    }

    fn kick(&mut self) {
        self.stats.system_calls += 1;
        self.disk.state().kick(self.id);
    }

    fn reap(&mut self, out: &mut VecDeque<Completion>) {
        let mut state = self.disk.state();
        state.tick += state.options.ticks_per_reap;
        drop(state);
        self.deliver(out);
    }

    fn wait_at_most(&mut self, limit: Option<Duration>, out: &mut VecDeque<Completion>) {
        self.kick();
        if self.disk.state().options.blocking_waits {
            self.block(limit);
        }
        let mut state = self.disk.state();
        if let Some(due) = state.next_due(Some(self.id)) {
            state.tick = state.tick.max(due);
        }
        drop(state);
        self.deliver(out);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn has_unsignalled(&self) -> bool {
        // As on real devices: such an operation never reached the system.
        let is_unsignalled = |operation: &SimOperation| {
            operation.device == self.id
                && (operation.refused.is_some() || operation.fault == Some(DeviceFault::Exhausted))
        };
        self.disk.state().queue.iter().any(is_unsignalled)
    }

    fn stats(&self) -> &IoStats {
        &self.stats
    }

    fn poisoned(&self) -> Option<&DeviceError> {
        self.poison.as_ref()
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        let Ok(mut state) = self.alive() else { return };
        let mut rng = state.rng.fork(self.id);
        let id = self.id;
        let mine: Vec<SimOperation> = state.queue.extract_if(.., |operation| operation.device == id).collect();
        for operation in &mine {
            state.overtake(operation, Loss::Process, &mut rng);
        }
        for handle in self.files.iter().flatten() {
            state.release(handle.inode);
        }
        if state.lock_holder == Some(id) {
            state.lock_holder = None;
        }
    }
}

fn not_found(name: &str) -> DeviceError {
    DeviceError::NotFound { name: name.to_owned(), dir: DIR.to_owned() }
}
