//! Thread pool: blocking calls, a job queue, a completion queue, and a descriptor that wakes the event loop.
use crate::data_dir::{sync_all, sync_data};
use crate::request::{IoRequest, Work};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// An operation; the thread that executes it owns the buffer.
pub(super) struct PoolJob {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) request: IoRequest,
}

/// A completed operation.
pub(super) struct PoolCompletion {
    pub(super) job: PoolJob,
    pub(super) result: Result<(), Errno>,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<PoolJob>,
    closed: bool,
}

struct PoolState {
    inbox: Mutex<JobQueue>,
    arrived: Condvar,
    outbox: Mutex<VecDeque<PoolCompletion>>,
    ended: Condvar,
    wake_tx: UnixStream,
}

/// The threads and both queues. Dropping the pool finishes the submitted jobs, then joins the threads.
pub(super) struct Pool {
    shared: Arc<PoolState>,
    /// The other end of `wake_tx`: readable while the outbox has new completions.
    wake_rx: UnixStream,
    threads: Vec<JoinHandle<()>>,
}

/// Ignores poisoning: the queues are only pushed to and popped from, so a panic leaves them consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn start(threads: usize) -> std::io::Result<Self> {
        let (wake_tx, wake_rx) = UnixStream::pair()?;
        wake_tx.set_nonblocking(true)?;
        wake_rx.set_nonblocking(true)?;
        let shared = Arc::new(PoolState {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            outbox: Mutex::default(),
            ended: Condvar::new(),
            wake_tx,
        });
        let mut pool = Self { shared, wake_rx, threads: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("fawn-io-{number}"));
            pool.threads.push(thread.spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    pub(super) fn run(&self, jobs: &mut Vec<PoolJob>) {
        let count = jobs.len();
        locked(&self.shared.inbox).jobs.extend(jobs.drain(..));
        if count == 1 { self.shared.arrived.notify_one() } else { self.shared.arrived.notify_all() }
    }

    /// All completions.
    pub(super) fn take(&mut self) -> VecDeque<PoolCompletion> {
        let mut outbox = locked(&self.shared.outbox);
        empty(&mut outbox, &self.wake_rx)
    }

    /// Waits for completions and returns them: at least one, unless the limit has passed.
    pub(super) fn wait_at_most(&mut self, limit: Option<Duration>) -> VecDeque<PoolCompletion> {
        let (outbox, ended) = (locked(&self.shared.outbox), &self.shared.ended);
        let is_empty = |outbox: &mut VecDeque<PoolCompletion>| outbox.is_empty();
        let mut waited = match limit {
            Some(limit) => ended.wait_timeout_while(outbox, limit, is_empty).unwrap_or_else(PoisonError::into_inner).0,
            None => ended.wait_while(outbox, is_empty).unwrap_or_else(PoisonError::into_inner),
        };
        empty(&mut waited, &self.wake_rx)
    }

    pub(super) fn wake_fd(&self) -> RawFd {
        self.wake_rx.as_raw_fd()
    }
}

/// Takes all completions and drains the wake-up socket. The caller holds the outbox's lock, so no later wake-up is
/// lost.
fn empty(outbox: &mut VecDeque<PoolCompletion>, mut wake_rx: &UnixStream) -> VecDeque<PoolCompletion> {
    let mut bytes = [0; 64];
    if !outbox.is_empty() {
        // One byte was written each time that the outbox had been empty. If bytes remain, the loop wakes once for
        // nothing.
        let _ = wake_rx.read(&mut bytes);
    }
    std::mem::take(outbox)
}

impl Drop for Pool {
    fn drop(&mut self) {
        locked(&self.shared.inbox).closed = true;
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // The panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    fn serve(&self) {
        while let Some(mut job) = self.next() {
            let result = run(&mut job);
            let mut outbox = locked(&self.outbox);
            let was_empty = outbox.is_empty();
            outbox.push_back(PoolCompletion { job, result });
            if was_empty {
                // If the socket is full, the loop is about to wake anyway.
                let _ = (&self.wake_tx).write(&[1]);
            }
            drop(outbox);
            self.ended.notify_one();
        }
    }

    fn next(&self) -> Option<PoolJob> {
        let inbox = locked(&self.inbox);
        let waited = self.arrived.wait_while(inbox, |inbox| inbox.jobs.is_empty() && !inbox.closed);
        waited.unwrap_or_else(PoisonError::into_inner).jobs.pop_front()
    }
}

fn run(job: &mut PoolJob) -> Result<(), Errno> {
    let fd = job.fd.as_fd();
    let IoRequest { work, offset, len_bytes, memory, .. } = &mut job.request;
    match (*work, memory.buf_mut()) {
        (Work::Read, Some(buf)) => read_full(fd, *offset, buf),
        (Work::Write { durable }, _) => {
            write_full(fd, *offset, &memory.bytes()[..*len_bytes])?;
            if durable { sync_data(fd) } else { Ok(()) }
        }
        (Work::Sync, _) => sync_data(fd),
        (Work::SyncDir, _) => sync_all(fd),
        (Work::Read, None) => unreachable!("a read owns its buffer"),
    }
}

fn read_full(fd: BorrowedFd<'_>, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(Errno::INTR) => (),
            // Direct I/O past a file end that is not aligned.
            Err(Errno::INVAL) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    buf[done..].fill(0);
    Ok(())
}

fn write_full(fd: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(fd, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(moved) => done += moved,
            Err(Errno::INTR) => (),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
