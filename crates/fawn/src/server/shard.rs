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
        let shards = self.threads.len();
        let (ended, stuck): (Vec<_>, Vec<_>) = self.threads.into_iter().partition(JoinHandle::is_finished);
        join_all(ended)?;
        let (stuck, limit_s) = (stuck.len(), self.stop_limit.as_secs());
        let words = format!(
            "{stuck} of {shards} shards have not closed their stores within {limit_s} s: a disk does not complete its writes; ended as \
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A server whose threads end with `outcomes`; one without an outcome waits for `release`.
    fn server(outcomes: Vec<Option<Result<(), Failure>>>, release: &Arc<std::sync::Barrier>) -> RunningServer {
        let (ending, ended) = mpsc::channel(1);
        let spawn = |outcome: Option<Result<(), Failure>>| {
            let (ending, release) = (ending.clone(), release.clone());
            std::thread::spawn(move || {
                let outcome = outcome.unwrap_or_else(|| {
                    release.wait();
                    Ok(())
                });
                drop(ending);
                outcome
            })
        };
        let threads: Vec<_> = outcomes.into_iter().map(spawn).collect();
        let shards = ShardHandles { controls: Vec::new(), opening: Opening::begin() };
        let (listen_addrs, layout) = (ListenAddrs::default(), Layout::flat(Path::new("unused")));
        RunningServer { shards, threads, ended, listen_addrs, layout, stop_limit: Duration::from_millis(100) }
    }

    fn stop(server: RunningServer) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(server.stop())
    }

    #[test]
    fn a_stop_waits_for_all_shards_and_returns_the_first_failure() {
        let release = Arc::new(std::sync::Barrier::new(1));
        assert!(stop(server(vec![Some(Ok(())), None], &release)).is_ok());
        let failed = stop(server(vec![Some(Ok(())), Some(Err(died("its disk failed")))], &release));
        assert!(failed.expect_err("one failed").to_string().contains("its disk failed"));
    }

    #[test]
    fn a_stop_ends_without_a_shard_that_does_not_close() {
        let release = Arc::new(std::sync::Barrier::new(3));
        let stuck = stop(server(vec![Some(Ok(())), None], &release)).expect_err("one is stuck");
        assert!(stuck.to_string().contains("1 of 2 shards have not closed"), "{stuck}");
        let failed = stop(server(vec![Some(Err(died("its disk failed"))), None], &release)).expect_err("one failed");
        assert!(failed.to_string().contains("its disk failed"), "{failed}");
        release.wait();
    }
}
