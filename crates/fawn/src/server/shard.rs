//! The running shards of a process: detects their end, queries all, stops all.
use super::control::{Control, ShardReport};
use super::opening::Opening;
use crate::data_dir::Layout;
use crate::failure::{Exit, Failure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long a query waits for a shard's reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Addresses of a server.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct ListenAddrs {
    /// For Redis clients.
    pub(crate) resp: Option<SocketAddr>,
    /// For memcached clients.
    pub(crate) memcached: Option<SocketAddr>,
    /// For operators.
    pub(crate) admin: Option<SocketAddr>,
}

/// The running shards.
#[derive(Debug)]
pub(crate) struct RunningServer {
    pub(super) shards: ShardHandles,
    pub(super) threads: Vec<JoinHandle<Result<(), Failure>>>,
    pub(super) ended: mpsc::Receiver<()>,
    pub(super) listen_addrs: ListenAddrs,
    pub(super) layout: Layout,
    /// Longest time for a stop.
    pub(super) stop_limit: Duration,
}

/// A handle for queries to the shards.
#[derive(Clone, Debug)]
pub(crate) struct ShardHandles {
    pub(super) controls: Vec<mpsc::Sender<Control>>,
    pub(super) opening: Arc<Opening>,
}

impl RunningServer {
    /// Stops every shard: received requests are answered, then everything is flushed and synced. Returns the first
    /// failure of a shard. Bounded in time, whatever the disks do.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let stopped = async {
            for control in &self.shards.controls {
                // A shard that has ended already reports its result below.
                drop(control.send(Control::Stop).await);
            }
            // Each thread holds a sender until its end.
            while self.ended.recv().await.is_some() {}
        };
        if tokio::time::timeout(self.stop_limit, stopped).await.is_ok() {
            return join_all(self.threads);
        }
        let (ended, stuck): (Vec<_>, Vec<_>) = self.threads.into_iter().partition(JoinHandle::is_finished);
        join_all(ended)?;
        let (stuck, limit_s) = (stuck.len(), self.stop_limit.as_secs());
        let words = format!(
            "{stuck} shards have not closed their stores within {limit_s} s: a disk does not complete its writes; ended as \
             by `kill -9`"
        );
        Err(Failure::new(Exit::Failed, words))
    }
}

impl ShardHandles {
    /// Progress of the opening in words, until all stores are open.
    pub(crate) fn opening(&self) -> Option<String> {
        self.opening.words()
    }

    /// State of each shard; the error names the shard that does not reply in time.
    pub(crate) async fn report(&self) -> Result<Vec<ShardReport>, String> {
        if let Some(words) = self.opening() {
            return Err(words);
        }
        let mut reports = Vec::with_capacity(self.controls.len());
        for (shard, control) in self.controls.iter().enumerate() {
            let (answer, report) = oneshot::channel();
            let busy = |_| format!("shard {shard} is too busy to report; ask again");
            control.try_send(Control::Report(answer)).map_err(busy)?;
            let report = tokio::time::timeout(ANSWER_TIMEOUT, report).await;
            match report {
                Ok(Ok(report)) => reports.push(report),
                Ok(Err(_)) => return Err(format!("shard {shard} is stopping")),
                Err(_) => return Err(format!("shard {shard} has not answered for {ANSWER_TIMEOUT:?}")),
            }
        }
        Ok(reports)
    }
}

/// Waits for all shards to end; returns the first failure.
fn join_all(threads: Vec<JoinHandle<Result<(), Failure>>>) -> Result<(), Failure> {
    threads.into_iter().map(join).fold(Ok(()), Result::and)
}

fn join(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    let name = thread.thread().name().unwrap_or("a shard").to_owned();
    thread.join().unwrap_or_else(|_| Err(died(&format!("{name} panicked"))))
}

/// The failure of a server whose shard ended on its own.
pub(super) fn died(what: &str) -> Failure {
    let remedy = "see the log above; restart, and run `fawn check` on the data directory if it happens again";
    Failure::new(Exit::Failed, format!("{what}; {remedy}"))
}
