//! `UnlinkedFiles`: frees the space of unlinked files on a thread of its own.
//!
//! A file's space is freed when the last of its names and descriptors goes. A file system that discards freed blocks at
//! once makes that call wait for the device, milliseconds per segment. So the caller opens the file, unlinks its name,
//! which is then quick, and leaves the descriptor to the thread.
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Files that may wait for the thread, each with a descriptor; further ones are freed by their callers.
const WAITING_MAX: usize = 32;

/// An unlinked file, and the space that its last descriptor holds, bytes.
type Unlinked = (OwnedFd, u64);

/// Space of the files that wait, bytes.
#[derive(Default)]
struct Pending {
    bytes: Mutex<u64>,
    freed: Condvar,
}

/// Hands unlinked files to the thread. It starts with the first one, and ends after the last one once this is dropped.
#[derive(Default)]
pub(crate) struct UnlinkedFiles {
    thread: Option<SyncSender<Unlinked>>,
    pending: Arc<Pending>,
}

impl UnlinkedFiles {
    /// Frees the space of a file without names, now or soon.
    pub(crate) fn free(&mut self, file: OwnedFd, held_bytes: u64) {
        self.pending.add(held_bytes);
        let unlinked = match self.thread() {
            Some(thread) => match thread.try_send((file, held_bytes)) {
                Ok(()) => return,
                Err(TrySendError::Full(unlinked) | TrySendError::Disconnected(unlinked)) => unlinked,
            },
            None => (file, held_bytes),
        };
        self.pending.free(unlinked);
    }

    /// Space that will be free once the thread is done, bytes.
    pub(crate) fn pending_bytes(&self) -> u64 {
        *self.pending.locked()
    }

    /// Makes a call that needs space. If there is none, repeats it once no file waits, or after `longest`.
    pub(crate) fn with_freed<T>(&self, longest: Duration, call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        // Before the call: the thread may be done when it returns.
        let is_freeing = self.pending_bytes() > 0;
        match call() {
            Err(Errno::NOSPC) if is_freeing => {
                let bytes = self.pending.locked();
                drop(self.pending.freed.wait_timeout_while(bytes, longest, |bytes| *bytes > 0));
                call()
            }
            result => result,
        }
    }

    /// `None`: the system has no more threads.
    fn thread(&mut self) -> Option<&SyncSender<Unlinked>> {
        if self.thread.is_none() {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let pending = Arc::clone(&self.pending);
            let thread = std::thread::Builder::new().name("fawn-unlinked".to_owned());
            self.thread = thread.spawn(move || pending.serve(&receiver)).is_ok().then_some(sender);
        }
        self.thread.as_ref()
    }
}

impl Pending {
    fn serve(&self, unlinked: &Receiver<Unlinked>) {
        while let Ok(unlinked) = unlinked.recv() {
            self.free(unlinked);
        }
    }

    fn add(&self, held_bytes: u64) {
        *self.locked() += held_bytes;
    }

    fn free(&self, (file, held_bytes): Unlinked) {
        drop(file);
        *self.locked() -= held_bytes;
        self.freed.notify_all();
    }

    /// Ignores poisoning: a sum is consistent after a panic, too.
    fn locked(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// The end of a socket shows when the other end is closed.
    #[test]
    fn files_are_closed_by_the_thread_and_counted_until_then() {
        let mut unlinked = UnlinkedFiles::default();
        let mut ends = Vec::new();
        for held_bytes in 1..=2 * WAITING_MAX as u64 {
            let (end, file) = UnixStream::pair().unwrap();
            ends.push(end);
            unlinked.free(file.into(), held_bytes);
        }
        let has_space = || if unlinked.pending_bytes() > 0 { Err(Errno::NOSPC) } else { Ok(()) };
        assert_eq!(unlinked.with_freed(Duration::from_secs(60), has_space), Ok(()));
        for mut end in ends {
            assert_eq!(end.read(&mut [0]).unwrap(), 0, "closed");
        }
    }

    #[test]
    fn a_call_without_space_is_repeated_only_if_some_is_being_freed() {
        let unlinked = UnlinkedFiles::default();
        let calls_until = |longest_ms: u64, freed_at: u32| {
            let calls = Cell::new(0);
            let call = || {
                calls.set(calls.get() + 1);
                if calls.get() == freed_at && unlinked.pending_bytes() > 0 {
                    unlinked.pending.free((UnixStream::pair().unwrap().0.into(), 7));
                }
                if calls.get() < 9 { Err(Errno::NOSPC) } else { Ok(()) }
            };
            assert_eq!(unlinked.with_freed(Duration::from_millis(longest_ms), call), Err(Errno::NOSPC));
            calls.get()
        };
        assert_eq!(calls_until(60_000, 0), 1, "nothing is being freed");
        unlinked.pending.add(7);
        assert_eq!(calls_until(1, 0), 2, "a wait is bounded");
        assert_eq!(calls_until(60_000, 1), 2, "the thread was done before the call returned");
        assert_eq!(unlinked.pending_bytes(), 0);
        assert_eq!(unlinked.with_freed(Duration::ZERO, || Err::<(), _>(Errno::IO)), Err(Errno::IO));
    }

    #[test]
    fn files_that_wait_when_the_store_closes_are_freed() {
        let mut unlinked = UnlinkedFiles::default();
        let pending = Arc::clone(&unlinked.pending);
        let (mut end, file) = UnixStream::pair().unwrap();
        unlinked.free(file.into(), 9);
        drop(unlinked);
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
        let waited = pending.freed.wait_while(pending.locked(), |bytes| *bytes > 0).unwrap();
        assert_eq!(*waited, 0);
    }
}
