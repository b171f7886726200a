//! Owns the threads that run shards: opening each, knowing when one ends, asking all, stopping all.
use super::backing::Backing;
use super::control::{self, Control, Report};
use super::limits::Limits;
use super::listener::Bound;
use super::turn::{Turn, wall_clock};
use super::{ServeError, descriptors};
use crate::config::Settings;
use fawn_wire::Protocol;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long whoever asks a shard waits for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a server listens.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Places {
    /// For Redis clients.
    pub(crate) resp: Option<SocketAddr>,
    /// For memcached clients.
    pub(crate) memcached: Option<SocketAddr>,
    /// For operators.
    pub(crate) admin: Option<SocketAddr>,
}

/// Running shards.
#[derive(Debug)]
pub(crate) struct Server {
    shards: Shards,
    threads: Vec<JoinHandle<Result<(), ServeError>>>,
    ended: mpsc::Receiver<()>,
    places: Places,
}

/// A way to ask the shards, for whoever needs one.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    controls: Vec<mpsc::Sender<Control>>,
}

impl Server {
    /// Opens the store and serves it; returns once clients can connect.
    pub(crate) fn start<B: Backing + 'static>(settings: &Settings) -> Result<Self, ServeError> {
        let connections_max = descriptors::make_room(settings.max_connections) as usize;
        let limits = Limits::of(settings, connections_max, 1);
        let wanted = [(Protocol::Resp, settings.resp), (Protocol::Memcached, settings.memcached)];
        let wanted = wanted.into_iter().filter_map(|(protocol, endpoint)| Some((protocol, endpoint.address()?)));
        let bound: Result<Vec<Bound>, _> = wanted.map(|(protocol, at)| Bound::new(protocol, at, false)).collect();
        let bound = bound?;
        let mut places = Places::default();
        for (protocol, address) in bound.iter().map(Bound::place) {
            match protocol {
                Protocol::Resp => places.resp = Some(address),
                Protocol::Memcached => places.memcached = Some(address),
                // Shards of one process need no address.
                Protocol::Native => {}
            }
        }
        let (control, orders) = mpsc::channel(control::QUEUE_LEN);
        let (ending, ended) = mpsc::channel(1);
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let settings = settings.clone();
        let body = move || {
            // Dropped when the thread ends, however it ends: that is the news.
            let _ending = ending;
            serve::<B>(&settings, &places, bound, limits, orders, &started)
        };
        let thread = std::thread::Builder::new().name("shard-0".to_owned()).spawn(body);
        let thread = thread.map_err(ServeError::system("starting a shard's thread"))?;
        if start.recv().is_err() {
            // It ended before it served: its result says why.
            join(thread)?;
            return Err(ServeError::Died("shard 0 ended while it started".to_owned()));
        }
        Ok(Self { shards: Shards { controls: vec![control] }, threads: vec![thread], ended, places })
    }

    /// Where it listens.
    pub(crate) const fn places(&self) -> Places {
        self.places
    }

    /// A way to ask its shards.
    pub(crate) fn shards(&self) -> Shards {
        self.shards.clone()
    }

    /// Returns when some shard has ended, which none does unasked while all is well.
    pub(crate) async fn ended(&mut self) {
        // No message is ever sent: this returns when the last sender is dropped.
        let nothing: Option<()> = self.ended.recv().await;
        debug_assert!(nothing.is_none());
    }

    /// Stops every shard: what was read is answered, then everything is flushed and synced.
    pub(crate) async fn stop(self) -> Result<(), ServeError> {
        for control in &self.shards.controls {
            // A shard that has ended already is told apart by its result below.
            drop(control.send(Control::Stop).await);
        }
        self.threads.into_iter().try_for_each(join)
    }
}

impl Shards {
    /// How things stand with each; an error names the shard that does not answer in time.
    pub(crate) async fn report(&self) -> Result<Vec<Report>, String> {
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

fn join(thread: JoinHandle<Result<(), ServeError>>) -> Result<(), ServeError> {
    let name = thread.thread().name().unwrap_or("a shard").to_owned();
    thread.join().unwrap_or_else(|_| Err(ServeError::Died(format!("{name} panicked"))))
}

/// A shard's thread: opens, says so, serves, closes.
fn serve<B: Backing>(
    settings: &Settings,
    places: &Places,
    bound: Vec<Bound>,
    limits: Limits,
    orders: mpsc::Receiver<Control>,
    started: &std::sync::mpsc::SyncSender<()>,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::system("starting a runtime"))?;
    let shard = B::open(settings, places, wall_clock())?;
    let listeners: Result<Vec<_>, _> = bound.into_iter().map(Bound::listen).collect();
    let mut turn =
        Turn::new(shard, listeners?, limits).map_err(ServeError::system("setting up the readiness queue"))?;
    // Whoever started us waits for this; if it has gone, the queue of orders is closed and we stop at once.
    let _: Result<(), _> = started.send(());
    runtime.block_on(turn.run(orders)).map_err(ServeError::system("waiting for sockets"))?;
    turn.into_shard().close()
}
