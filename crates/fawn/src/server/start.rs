//! Start of a server: addresses, directory, one thread per shard that opens its store, then clients.
//!
//! Every step that can fail for an address or a directory precedes the opening of stores, and no client can
//! connect before all stores are open.
use super::control::{self, Control};
use super::event_loop::{self, EventLoop};
use super::limits::ShardLimits;
use super::listener::{Bound, Listener};
use super::opening::Opening;
use super::peer_shards::PeerShards;
use super::process_state::ProcessState;
use super::ready_file::ReadyFile;
use super::service::{GroupConfig, Service};
use super::shard::died;
use super::{ListenAddrs, RunningServer, ShardHandles, descriptors, mailbox, store};
use crate::config::{SegmentOrigin, Settings};
use crate::data_dir::{self, Layout};
use crate::failure::{Exit, Failure};
use fawn_flash::clock;
use fawn_wire::Protocol;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Longest time for flushing, syncing and checkpoints, once the clients have their replies.
const CLOSE_MAX: Duration = Duration::from_secs(30);

/// A shard's thread before it starts.
struct ShardThread {
    service: Service,
    config: GroupConfig,
    queue: mio::Poll,
    shared: Arc<ProcessState>,
    peers: Option<PeerShards>,
    control_receiver: mpsc::Receiver<Control>,
    /// Signalled once the store is open; dropped unsignalled if it cannot be opened.
    opened: mpsc::Sender<()>,
    ending: ThreadEnd,
}

/// Channels from the shards' threads to the starting thread.
struct ThreadSignals {
    opened: mpsc::Sender<()>,
    ending: mpsc::Sender<()>,
    opening: Arc<Opening>,
}

/// Signals the end of a thread, also after a panic.
struct ThreadEnd(mpsc::Sender<()>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // A full queue has already announced the end of a thread.
        let _: Result<(), _> = self.0.try_send(());
    }
}

/// A server whose stores are being opened.
pub(super) struct StartingServer {
    pub(super) server: RunningServer,
    bound: Vec<Bound>,
    openings: mpsc::Receiver<()>,
}

impl StartingServer {
    /// Waits until every shard has opened its store, or one has ended instead.
    pub(super) async fn wait(&mut self) -> bool {
        for _ in 0..self.server.shards.controls.len() {
            let opened = tokio::select! {
                opened = self.openings.recv() => opened,
                // Without waiting for the other shards, which may open for long.
                _ = self.server.ended.recv() => None,
            };
            if opened.is_none() {
                return false;
            }
        }
        true
    }

    /// Lets clients connect, if `is_open`; otherwise ends with the reason of the shard that did not open.
    pub(super) async fn finish(self, is_open: bool) -> Result<RunningServer, Failure> {
        let Self { mut server, bound, .. } = self;
        let shards = server.layout.shards();
        let listening = match is_open {
            true => server.layout.finish().and_then(|()| listen(bound, shards)),
            // The shard that did not open returns the reason.
            false => Err(died("a shard ended while it started")),
        };
        match listening {
            Ok(listeners) => {
                for (control, listeners) in server.shards.controls.iter().zip(listeners) {
                    // The queue is new and has space. A shard that ended meanwhile has signalled it.
                    drop(control.try_send(Control::Listen(listeners)));
                }
                server.shards.opening.end();
                Ok(server)
            }
            Err(error) => {
                server.stop().await?;
                Err(error)
            }
        }
    }
}

/// Binds the addresses, and begins to open the stores, each in its thread.
pub(super) fn start(service: Service, settings: &Settings) -> Result<StartingServer, Failure> {
    let (bound, listen_addrs) = bind(settings)?;
    service.check_disk(settings)?;
    if data_dir::is_new(&settings.dir) {
        settings.check_value_max()?;
    }
    store::create_dir(&settings.dir)?;
    let layout = service.layout(settings)?;
    let settings = &of_existing(settings, &layout)?;
    let shards = layout.shards();
    settings.check_shards(shards)?;
    let (ending, ended) = mpsc::channel(1);
    let (opened, openings) = mpsc::channel(usize::from(shards));
    let opening = Opening::begin();
    let signals = ThreadSignals { opened, ending, opening: opening.clone() };
    let (starting, controls) = prepare((service, settings), &listen_addrs, &layout, &signals)?;
    if let Some(path) = &settings.ready_file {
        // It may be the file of a server that has the addresses or the directory.
        service.refuse_in_use(settings, &layout)?;
        ReadyFile::clear(path)?;
    }
    // The remaining senders belong to the threads, so their ends are noticed.
    drop(signals);
    let threads = starting.into_iter().map(spawn).collect::<Result<_, _>>()?;
    let shards = ShardHandles { controls, opening };
    let stop_limit = settings.shutdown_timeout.0 + CLOSE_MAX;
    Ok(StartingServer {
        server: RunningServer { shards, threads, ended, listen_addrs, layout, stop_limit },
        bound,
        openings,
    })
}

/// The settings with the size of segments that existing stores have.
fn of_existing(settings: &Settings, layout: &Layout) -> Result<Settings, Failure> {
    let Some(made) = layout.segment() else { return Ok(settings.clone()) };
    if settings.segment_origin == SegmentOrigin::Given && settings.segment != made {
        let words = format_args!(
            "was made for segments of {made}, and segment = {} is asked for; start it without that setting, or choose a \
             new directory and load the data into it",
            settings.segment
        );
        return data_dir::refuse(&settings.dir, words);
    }
    settings.with_segment(made)
}

/// Binds the addresses; no client can connect yet.
fn bind(settings: &Settings) -> Result<(Vec<Bound>, ListenAddrs), Failure> {
    let wanted = [(Protocol::Resp, settings.resp), (Protocol::Memcached, settings.memcached)];
    let wanted = wanted.into_iter().filter_map(|(protocol, endpoint)| Some((protocol, endpoint.address()?)));
    let bound: Vec<Bound> = wanted.map(|(protocol, at)| Bound::new(protocol, at)).collect::<Result<_, _>>()?;
    let address = |protocol| bound.iter().find(|bound| bound.protocol == protocol).map(|bound| bound.address);
    let (resp, memcached) = (address(Protocol::Resp), address(Protocol::Memcached));
    Ok((bound, ListenAddrs { resp, memcached, admin: None }))
}

/// Arguments of all threads, in the order of their shards, and the queues of control messages to them.
fn prepare(
    (service, settings): (Service, &Settings),
    listen_addrs: &ListenAddrs,
    layout: &Layout,
    signals: &ThreadSignals,
) -> Result<(Vec<ShardThread>, Vec<mpsc::Sender<Control>>), Failure> {
    let shards = layout.shards();
    let connections_max = descriptors::make_room(settings.max_connections, shards);
    let shared = Arc::new(ProcessState::new(shards, connections_max as usize));
    let server_info = store::server_info(settings, listen_addrs, shards, clock::now().wall)?;
    let queues: Vec<mio::Poll> = (0..shards).map(|_| mio::Poll::new()).collect::<Result<_, _>>().map_err(setting_up)?;
    let peer_shards = peer_shards(&queues, &shared)?;
    let (controls, control_receivers): (Vec<_>, Vec<_>) =
        (0..shards).map(|_| mpsc::channel(control::QUEUE_LEN)).unzip();
    let own = layout.shard_dirs().zip(queues).zip(peer_shards).zip(control_receivers);
    let starting = own.map(|((((placement, dir), queue), peers), control_receiver)| ShardThread {
        service,
        config: GroupConfig {
            settings: settings.part(shards, dir),
            placement,
            secret: layout.secret(),
            server_info: server_info.clone(),
            progress: signals.opening.progress().clone(),
        },
        queue,
        shared: shared.clone(),
        peers,
        control_receiver,
        opened: signals.opened.clone(),
        ending: ThreadEnd(signals.ending.clone()),
    });
    Ok((starting.collect(), controls))
}

/// Each shard's connection to the others; none for a shard that is alone.
fn peer_shards(queues: &[mio::Poll], shared: &Arc<ProcessState>) -> Result<Vec<Option<PeerShards>>, Failure> {
    if queues.len() == 1 {
        return Ok(vec![None]);
    }
    let waker = |queue: &mio::Poll| mio::Waker::new(queue.registry(), event_loop::WAKER_TOKEN);
    let wakers = queues.iter().map(waker).collect::<Result<_, _>>().map_err(setting_up)?;
    let peers = |(shard, mailbox)| Some(PeerShards::new(shard, mailbox, shared.clone()));
    Ok(mailbox::connect(wakers).into_iter().enumerate().map(peers).collect())
}

fn setting_up(error: std::io::Error) -> Failure {
    Failure::about(Exit::Failed, "setting up the readiness queue")(error)
}

fn spawn(starting: ShardThread) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
    let name = format!("shard-{}", starting.config.placement.shard().0);
    let thread = std::thread::Builder::new().name(name).spawn(move || serve(starting));
    thread.map_err(Failure::about(Exit::Failed, "starting a shard's thread"))
}

/// A shard's thread: opens, signals, serves, closes.
fn serve(starting: ShardThread) -> Result<(), Failure> {
    let ShardThread { service, config, queue, shared, peers, control_receiver, opened, ending: _ending } = starting;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::about(Exit::Failed, "starting a runtime"))?;
    let limits = ShardLimits::of(&config.settings);
    let shard = service.open(config, clock::now())?;
    let mut event_loop = EventLoop::new(queue, shard, limits, shared, peers);
    // If the starting thread has ended, the control queue is closed and the shard stops at once.
    let _: Result<(), _> = opened.try_send(());
    drop(opened);
    runtime.block_on(event_loop.run(control_receiver)).map_err(Failure::about(Exit::Failed, "waiting for sockets"))?;
    store::close(event_loop.into_shard())
}

/// One listener of each protocol per shard.
fn listen(bound: Vec<Bound>, shards: u16) -> Result<Vec<Vec<Listener>>, Failure> {
    let mut listeners: Vec<Vec<Listener>> = (0..shards).map(|_| Vec::new()).collect();
    for bound in bound {
        for (own, listener) in listeners.iter_mut().zip(bound.listen(shards)?) {
            own.push(listener);
        }
    }
    Ok(listeners)
}
