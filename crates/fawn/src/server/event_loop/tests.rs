//! The event loop over real sockets and a scripted service, one iteration at a time.
mod admission;
mod connections;
mod peers;
mod stores;

use super::*;
use crate::config::{SettingFlags, Settings};
use crate::server::service::{GroupConfig, Service};
use crate::server::store::StoreDevice;
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{ClientService, MessageBatch, Placement, ServerInfo, Shard, ShardGroup, ShardOptions, ShardStatus};
use fawn_types::{HashSecret, ShardId};
use fawn_wire::Protocol;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Bound of a wait for the kernel's loopback, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Real stores with the default settings.
fn open(service: Service, dir: &tempfile::TempDir) -> (ShardGroup<StoreDevice>, ShardLimits) {
    let flags = SettingFlags { dir: Some(dir.path().to_owned()), ..SettingFlags::default() };
    let settings = Settings::resolve(flags, SettingFlags::default()).expect("settings");
    let limits = ShardLimits::of(&settings);
    let config = GroupConfig {
        settings,
        placement: Placement::ALONE,
        secret: None,
        server_info: ServerInfo::default(),
        progress: Arc::default(),
    };
    (service.open(config, clock::now()).expect("stores"), limits)
}

/// A service whose requests are a length (u32, the first bytes counted) and filler; the reply to each is `+`.
struct Scripted {
    /// A real shard, for real session IDs.
    ids: Shard<SimDevice>,
    sessions: HashMap<SessionId, ScriptedSession>,
    effects: VecDeque<ShardOutput>,
    /// Calls with input.
    calls: usize,
    /// The end of a session lets another one continue.
    frees_on_close: bool,
    has_due_work: bool,
    store_due: Option<MonoMs>,
    batches_received: usize,
    batches_to_send: usize,
}

#[derive(Default)]
struct ScriptedSession {
    output: Vec<u8>,
    need_bytes: usize,
    /// Bytes that a request turns out to be longer than its first bytes said.
    longer_by: usize,
    refuses_input: bool,
    executed: usize,
}

impl Scripted {
    fn new() -> Self {
        let secret = Some(HashSecret(*b"a secret of test"));
        let options = Options { segment_bytes: 1 << 20, secret, ..Options::default() };
        let disk = SimDisk::new(SimOptions::default());
        let (engine, _) = Engine::open(SimDevice::attach(&disk), options, clock::now()).expect("a store");
        let ids = Shard::new(engine, Placement::ALONE, ShardOptions::default(), ServerInfo::default());
        Self {
            ids: ids.expect("a shard"),
            sessions: HashMap::new(),
            effects: VecDeque::new(),
            calls: 0,
            frees_on_close: false,
            has_due_work: false,
            store_due: None,
            batches_received: 0,
            batches_to_send: 0,
        }
    }

    fn session(&mut self, id: SessionId) -> &mut ScriptedSession {
        self.sessions.get_mut(&id).expect("the session is open")
    }

    fn reply(&mut self, id: SessionId, bytes: &[u8]) {
        self.session(id).output.extend_from_slice(bytes);
        self.effects.push_back(ShardOutput::Writable(id));
    }
}

impl ClientService for Scripted {
    type Device = StoreDevice;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        let id = self.ids.open_session(protocol);
        self.sessions.insert(id, ScriptedSession::default());
        id
    }
    fn refuse_session(&mut self) {}
    fn close_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.has_due_work |= self.frees_on_close;
    }
    fn end_input(&mut self, session: SessionId) {
        self.effects.push_back(ShardOutput::Close(session));
    }
    fn handle_input(&mut self, _now: Now, id: SessionId, input: &[u8]) -> usize {
        self.calls += 1;
        let (mut used, mut executed) = (0, 0);
        let session = self.sessions.get_mut(&id).expect("the session is open");
        session.need_bytes = 0;
        while let Some(head) = input[used..].first_chunk().filter(|_| !session.refuses_input) {
            let mut len = u32::from_be_bytes(*head) as usize;
            if input.len() - used >= len {
                len += session.longer_by;
            }
            if input.len() - used < len {
                session.need_bytes = len;
                break;
            }
            (used, executed) = (used + len, executed + 1);
        }
        session.executed += executed;
        if executed > 0 {
            self.reply(id, &b"+".repeat(executed));
        }
        used
    }
    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        for (used, (session, input)) in used.iter_mut().zip(inputs) {
            *used = self.handle_input(now, *session, input);
        }
    }
    fn wants_input(&self, session: SessionId) -> bool {
        !self.sessions[&session].refuses_input
    }
    fn need_bytes(&self, session: SessionId) -> usize {
        self.sessions[&session].need_bytes
    }
    fn output(&self, session: SessionId) -> &[u8] {
        self.sessions.get(&session).map_or(&[], |session| &session.output)
    }
    fn wrote(&mut self, session: SessionId, bytes: usize) {
        self.session(session).output.drain(..bytes);
    }
    fn run_once(&mut self, _now: Now) -> Option<MonoMs> {
        self.has_due_work = false;
        self.store_due
    }
    fn has_due_work(&self) -> bool {
        self.has_due_work
    }
    fn poll_output(&mut self) -> Option<ShardOutput> {
        self.effects.pop_front()
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn status(&self) -> ShardStatus {
        let mut status = ShardStatus::default();
        status.counters.commands = self.sessions.values().map(|session| session.executed as u64).sum();
        status
    }
    fn handle_batch(&mut self, _now: Now, _from: ShardId, _batch: MessageBatch) {
        self.batches_received += 1;
    }
    fn take_batch(&mut self, _to: ShardId) -> Option<MessageBatch> {
        self.batches_to_send = self.batches_to_send.checked_sub(1)?;
        Some(MessageBatch::default())
    }
    fn set_peer_stats(&mut self, _others: ShardStatus) {}
    fn engines(&self) -> impl Iterator<Item = &Engine<StoreDevice>> {
        std::iter::empty()
    }
}

/// One event loop with a listener.
struct Rig {
    event_loop: EventLoop<Scripted>,
    events: Events,
    address: SocketAddr,
    /// When the last iteration wants the next one.
    due: Option<Instant>,
}

impl Rig {
    /// With this bound on incomplete requests.
    fn new(input_bytes_max: usize) -> Self {
        let (queue, shared) = (mio::Poll::new().expect("a queue"), Arc::new(ProcessState::new(1, 100)));
        Self::on(queue, input_bytes_max, shared, None)
    }

    fn on(queue: mio::Poll, input_bytes_max: usize, shared: Arc<ProcessState>, peers: Option<PeerShards>) -> Self {
        let limits = ShardLimits {
            input_bytes_max,
            output_bytes_max: 256 << 20,
            stall_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(60),
        };
        let mut event_loop = EventLoop::new(queue, Scripted::new(), limits, shared, peers);
        let socket = mio::net::TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = socket.local_addr().expect("an address");
        event_loop.listen(vec![Listener { socket, protocol: Protocol::Resp }]).expect("it listens");
        Self { event_loop, events: Events::with_capacity(EVENTS_MAX), address, due: None }
    }

    fn step(&mut self) {
        self.event_loop.queue.poll(&mut self.events, Some(Duration::ZERO)).expect("a poll");
        self.due = self.event_loop.run_once(&self.events);
    }

    /// An iteration without events.
    fn step_without_events(&mut self) {
        self.events.clear();
        self.due = self.event_loop.run_once(&self.events);
    }

    fn until(&mut self, what: &str, is_due: impl Fn(&EventLoop<Scripted>) -> bool) {
        let start = Instant::now();
        while !is_due(&self.event_loop) {
            assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            self.step();
        }
    }

    /// Iterates until an iteration finds nothing to do.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.step();
            if self.events.is_empty()
                && !self.event_loop.needs_another_iteration
                && self.event_loop.read_queue.is_empty()
            {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    /// A connected client and its slot.
    fn connect(&mut self) -> (TcpStream, usize) {
        let (client, serial) = (TcpStream::connect(self.address).expect("it listens"), self.event_loop.serial);
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        self.until("a connection", |event_loop| event_loop.serial > serial);
        let slots = self.event_loop.conns.iter();
        let slot = slots.max_by_key(|(_, conn)| conn.serial).map(|(slot, _)| slot).expect("it was accepted");
        self.settle();
        (client, slot)
    }

    /// Sends bytes, and iterates until the loop has read them.
    fn send(&mut self, client: &mut TcpStream, bytes: &[u8]) {
        for bytes in bytes.chunks(60_000) {
            let before = self.event_loop.counters.input_bytes;
            client.write_all(bytes).expect("the kernel takes it");
            let read = before + bytes.len() as u64;
            self.until("input", |event_loop| event_loop.counters.input_bytes >= read);
        }
        self.settle();
    }

    /// Sends bytes that the loop does not read now.
    fn send_unread(&mut self, client: &mut TcpStream, bytes: &[u8]) {
        client.write_all(bytes).expect("the kernel takes it");
        self.settle();
    }

    fn conn(&mut self, slot: usize) -> &mut Conn {
        &mut self.event_loop.conns[slot]
    }

    fn service(&mut self, slot: usize) -> &mut ScriptedSession {
        let id = self.event_loop.conns[slot].session;
        self.event_loop.shard.session(id)
    }

    fn held_bytes(&self) -> usize {
        self.event_loop.counters.input_held_bytes as usize
    }
}

/// The first `sent` bytes of a request of `len` bytes.
fn part(len: usize, sent: usize) -> Vec<u8> {
    let mut request = u32::try_from(len).expect("short enough").to_be_bytes().to_vec();
    request.resize(sent, b'.');
    request
}

/// The rest of a request of which `sent` bytes were sent.
fn rest(len: usize, sent: usize) -> Vec<u8> {
    vec![b'.'; len - sent]
}
