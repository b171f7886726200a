//! Work of the opening on a second thread: a queue of jobs that are done in order and ahead of it.
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Maximum jobs whose results were not taken: memory is bounded, and neither side of a channel ever waits for room.
pub(super) const JOBS_MAX: usize = 3;

/// Bytes from which on a thread decodes them: that takes several times as long as its start.
pub(super) const THREAD_BYTES_MIN: u64 = 4 << 20;

/// Work that needs nothing of the engine.
pub(super) trait QueuedWork: Send + 'static {
    type Job: Send;
    type Done: Send;

    fn run(&mut self, job: Self::Job) -> Self::Done;
}

/// Jobs in order. Results come in the same order, and each only when it is asked for: the caller's operations on the device
/// do not depend on the speed of a thread.
pub(super) struct WorkQueue<W: QueuedWork> {
    worker: Worker<W>,
    waiting: usize,
}

enum Worker<W: QueuedWork> {
    Caller { work: W, done: VecDeque<W::Done> },
    Thread(WorkThread<W>),
}

struct WorkThread<W: QueuedWork> {
    /// Both are `None` once the thread has to end.
    jobs: Option<SyncSender<W::Job>>,
    done: Option<Receiver<W::Done>>,
    thread: Option<JoinHandle<()>>,
}

impl<W: QueuedWork> WorkQueue<W> {
    /// A queue with a thread, or without one if the work is too short for that or the system has none.
    pub(super) fn new(is_long: bool, work: impl Fn() -> W) -> Self {
        let thread = is_long.then(|| WorkThread::spawn(work())).transpose();
        let thread = thread.unwrap_or_else(|error| {
            tracing::warn!(%error, "no thread for a part of the opening: it takes longer");
            None
        });
        let worker = thread.map_or_else(|| Worker::Caller { work: work(), done: VecDeque::new() }, Worker::Thread);
        Self { worker, waiting: 0 }
    }

    /// Whether another job may be added.
    pub(super) const fn has_room(&self) -> bool {
        self.waiting < JOBS_MAX
    }

    /// Adds a job.
    pub(super) fn push(&mut self, job: W::Job) {
        assert!(self.has_room(), "at most {JOBS_MAX} jobs wait");
        self.waiting += 1;
        match &mut self.worker {
            Worker::Caller { work, done } => done.push_back(work.run(job)),
            Worker::Thread(thread) => thread.push(job),
        }
    }

    /// The result of the oldest job; `None` if there is no job.
    pub(super) fn next(&mut self) -> Option<W::Done> {
        self.waiting = self.waiting.checked_sub(1)?;
        match &mut self.worker {
            Worker::Caller { done, .. } => done.pop_front(),
            Worker::Thread(thread) => Some(thread.next()),
        }
    }
}

impl<W: QueuedWork> WorkThread<W> {
    fn spawn(mut work: W) -> std::io::Result<Self> {
        let (jobs, received) = sync_channel::<W::Job>(JOBS_MAX);
        let (sender, done) = sync_channel::<W::Done>(JOBS_MAX);
        let run = move || {
            for job in received {
                if sender.send(work.run(job)).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("fawn-ds open".to_owned()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), done: Some(done), thread: Some(thread) })
    }

    fn push(&mut self, job: W::Job) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            self.fail();
        }
    }

    fn next(&mut self) -> W::Done {
        match self.done.as_ref().and_then(|done| done.recv().ok()) {
            Some(done) => done,
            None => self.fail(),
        }
    }

    /// The thread has ended, though the queue is in use: its panic is the caller's.
    fn fail(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the thread ends when the queue is dropped"),
        }
    }
}

impl<W: QueuedWork> Drop for WorkThread<W> {
    fn drop(&mut self) {
        // Without its channels the thread ends, at the latest after the job that it is at.
        (self.jobs, self.done) = (None, None);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Doubling;

    impl QueuedWork for Doubling {
        type Job = u32;
        type Done = u32;

        fn run(&mut self, job: u32) -> u32 {
            assert_ne!(job, 13, "an unlucky job");
            2 * job
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs_with_and_without_a_thread() {
        for is_long in [false, true] {
            let mut queue = WorkQueue::new(is_long, || Doubling);
            assert_eq!(queue.next(), None);
            for round in 20..30 {
                (0..JOBS_MAX as u32).for_each(|i| queue.push(100 * round + i));
                assert!(!queue.has_room());
                (0..JOBS_MAX as u32).for_each(|i| assert_eq!(queue.next(), Some(200 * round + 2 * i)));
                assert_eq!(queue.next(), None);
            }
            queue.push(1);
            // The last result is never taken.
        }
    }

    #[test]
    #[should_panic(expected = "an unlucky job")]
    fn a_panic_of_the_thread_reaches_the_caller_with_its_result() {
        let mut queue = WorkQueue::new(true, || Doubling);
        [1, 13, 2].into_iter().for_each(|job| queue.push(job));
        assert_eq!(queue.next(), Some(2));
        queue.next();
    }

    #[test]
    #[should_panic(expected = "an unlucky job")]
    fn a_panic_of_the_thread_reaches_a_caller_that_takes_no_result() {
        let mut queue = WorkQueue::new(true, || Doubling);
        queue.push(13);
    }
}
