//! Thread pool: blocking calls, a job queue, a completion queue, and a descriptor that wakes the event loop. Threads whose call hangs,
//! because the disk cannot read a page, are replaced: they would stop all other reads and writes.
use crate::data_dir::{sync_all, sync_data};
use crate::request::{IoRequest, Work};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after which a thread's call hangs.
const HANGING: Duration = Duration::from_millis(500);
/// Threads at most, those that hang included.
const THREADS_MAX: usize = 64;

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
    /// Writes and syncs: they come first, since few are in flight and many wait for each.
    writes: VecDeque<PoolJob>,
    reads: VecDeque<PoolJob>,
    /// Threads that read.
    reading: usize,
    /// The threads by their numbers, with the beginning of the call that each one makes.
    threads: BTreeMap<usize, Option<Instant>>,
    closed: bool,
}

impl JobQueue {
    fn push(&mut self, job: PoolJob) {
        let is_read = job.request.work == Work::Read;
        if is_read { self.reads.push_back(job) } else { self.writes.push_back(job) }
    }

    /// The next job for a thread. One of several threads takes no reads: all of them may hang.
    fn pop(&mut self) -> Option<PoolJob> {
        let may_read = self.reading + 1 < self.threads.len().max(2);
        let job = self.writes.pop_front().or_else(|| if may_read { self.reads.pop_front() } else { None })?;
        self.reading += usize::from(job.request.work == Work::Read);
        Some(job)
    }

    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Whether fewer threads are free or work than there are while none hangs.
    fn needs_thread(&self, threads_min: usize) -> bool {
        self.threads.len() < (threads_min + self.hanging()).min(THREADS_MAX)
    }

    fn hanging(&self) -> usize {
        self.threads.values().flatten().filter(|since| since.elapsed() >= HANGING).count()
    }
}

/// Executes a job: by the system's calls, but for tests.
type ExecuteJob = fn(&mut PoolJob) -> Result<(), Errno>;

struct PoolState {
    run: ExecuteJob,
    /// Threads while none hangs.
    threads_min: usize,
    inbox: Mutex<JobQueue>,
    arrived: Condvar,
    outbox: Mutex<VecDeque<PoolCompletion>>,
    ended: Condvar,
    wake_tx: UnixStream,
}

/// The threads and both queues. Dropping the pool finishes the submitted writes, then joins the threads.
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
        Self::start_with(threads, run)
    }

    fn start_with(threads_min: usize, run: ExecuteJob) -> std::io::Result<Self> {
        let (wake_tx, wake_rx) = UnixStream::pair()?;
        wake_tx.set_nonblocking(true)?;
        wake_rx.set_nonblocking(true)?;
        let shared = Arc::new(PoolState {
            run,
            threads_min,
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            outbox: Mutex::default(),
            ended: Condvar::new(),
            wake_tx,
        });
        let mut pool = Self { shared, wake_rx, threads: Vec::new() };
        for _ in 0..threads_min {
            pool.add_thread()?;
        }
        Ok(pool)
    }

    fn add_thread(&mut self) -> std::io::Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(&self.shared);
        let mut inbox = locked(&self.shared.inbox);
        let number = (0..).find(|number| !inbox.threads.contains_key(number)).unwrap_or(0);
        let thread = std::thread::Builder::new().name(format!("fawn-io-{number}"));
        self.threads.push(thread.spawn(move || shared.serve(number))?);
        inbox.threads.insert(number, None);
        Ok(())
    }

    /// Begins other threads for the jobs that wait behind ones that hang.
    fn replace_hanging(&mut self) {
        let threads_min = self.shared.threads_min;
        let needs_thread = |inbox: &JobQueue| !inbox.is_empty() && inbox.needs_thread(threads_min);
        while needs_thread(&locked(&self.shared.inbox)) {
            if let Err(error) = self.add_thread() {
                tracing::warn!(%error, "calls of the device's threads hang, and no other thread can begin");
                return;
            }
        }
    }

    pub(super) fn run(&self, jobs: &mut Vec<PoolJob>) {
        let count = jobs.len();
        let mut inbox = locked(&self.shared.inbox);
        jobs.drain(..).for_each(|job| inbox.push(job));
        drop(inbox);
        if count == 1 { self.shared.arrived.notify_one() } else { self.shared.arrived.notify_all() }
    }

    /// All completions.
    pub(super) fn take(&mut self) -> VecDeque<PoolCompletion> {
        self.replace_hanging();
        let mut outbox = locked(&self.shared.outbox);
        empty(&mut outbox, &self.wake_rx)
    }

    /// Waits for completions and returns them: at least one, unless the limit has passed.
    pub(super) fn wait_at_most(&mut self, limit: Option<Duration>) -> VecDeque<PoolCompletion> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            self.replace_hanging();
            let left = end.map_or(HANGING, |end| end.saturating_duration_since(Instant::now()));
            let outbox = locked(&self.shared.outbox);
            let waited = self.shared.ended.wait_timeout_while(outbox, left.min(HANGING), |outbox| outbox.is_empty());
            let mut outbox = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !outbox.is_empty() || end.is_some_and(|end| Instant::now() >= end) {
                return empty(&mut outbox, &self.wake_rx);
            }
        }
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
        let mut inbox = locked(&self.shared.inbox);
        // Nobody takes their results, and each may hang.
        inbox.reads.clear();
        inbox.closed = true;
        drop(inbox);
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // The panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    fn serve(&self, number: usize) {
        let mut has_read = false;
        while let Some(mut job) = self.next(number, has_read) {
            has_read = job.request.work == Work::Read;
            let result = (self.run)(&mut job);
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

    /// Waits for the thread's next job. `None`: it ends, because the pool does, or since it replaced one that hangs no more.
    fn next(&self, number: usize, has_read: bool) -> Option<PoolJob> {
        let mut inbox = locked(&self.inbox);
        inbox.threads.insert(number, None);
        inbox.reading -= usize::from(has_read);
        loop {
            if let Some(job) = inbox.pop() {
                inbox.threads.insert(number, Some(Instant::now()));
                return Some(job);
            }
            if inbox.closed || inbox.threads.len() > self.threads_min + inbox.hanging() {
                inbox.threads.remove(&number);
                return None;
            }
            inbox = self.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, FileId, IoClass, Token};

    /// How many reads at offset 0 may end.
    static RELEASED: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

    fn hang_at_0(job: &mut PoolJob) -> Result<(), Errno> {
        if job.request.offset == 0 {
            let waited = RELEASED.1.wait_while(locked(&RELEASED.0), |left| *left == 0);
            *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        }
        Ok(())
    }

    fn read(offset: u64) -> PoolJob {
        let Ok(null) = std::fs::File::open("/dev/null") else { panic!("no file") };
        let buf = AlignedBuf::zeroed(4096);
        let request = IoRequest::read(FileId(0), offset, buf, IoClass::Foreground, Token(offset));
        PoolJob { fd: Arc::new(OwnedFd::from(null)), request }
    }

    #[test]
    fn threads_that_hang_are_replaced_until_they_end() {
        let Ok(mut pool) = Pool::start_with(2, hang_at_0) else { panic!("no pool") };
        let wait = |pool: &mut Pool, jobs: &[u64], endings: usize| {
            pool.run(&mut jobs.iter().map(|offset| read(*offset)).collect());
            let begun = Instant::now();
            let mut ended = 0;
            while ended < endings && begun.elapsed() < Duration::from_secs(30) {
                ended += pool.wait_at_most(Some(Duration::from_secs(1))).len();
            }
            ended
        };
        let threads = |pool: &Pool| locked(&pool.shared.inbox).threads.len();
        let beside = wait(&mut pool, &[0, 0, 0, 4096, 8192], 2);
        let threads_hanging = threads(&pool);
        *locked(&RELEASED.0) = 3;
        RELEASED.1.notify_all();
        let released = wait(&mut pool, &[], 3);
        assert_eq!((beside, released), (2, 3));
        assert!(threads_hanging >= 5, "two beside three that hang: {threads_hanging}");
        // Each one ends that finds no job, while there are more than two.
        let begun = Instant::now();
        while threads(&pool) > 2 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{} threads", threads(&pool));
            std::thread::yield_now();
        }
        assert_eq!((wait(&mut pool, &[4096; 10], 10), threads(&pool)), (10, 2));
    }

    #[test]
    fn writes_do_not_wait_for_reads() {
        let mut inbox = JobQueue { threads: (0..4).map(|number| (number, None)).collect(), ..JobQueue::default() };
        (1..=4).for_each(|at| inbox.push(read(4096 * at)));
        let write = IoRequest::sync(FileId(0), IoClass::Flush, Token(9));
        inbox.push(PoolJob { request: write, ..read(0) });
        let taken: Vec<_> = std::iter::from_fn(|| inbox.pop()).map(|job| job.request.token).collect();
        assert_eq!(taken, [9, 4096, 8192, 12_288].map(Token), "the write first, and one thread of four takes no read");
        assert!(!inbox.is_empty(), "a read waits for a thread");
    }
}
