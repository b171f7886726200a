//! Reply budget: waiting replies are bounded for any number of sessions and any length of values.
//!
//! The same clients use one store (values cached, values on flash) and a cluster in one thread. Bytes are counted, not
//! estimated from the process's memory.
use crate::harness::resp;
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{
    ClientService, LocalCluster, LocalOptions, Placement, ServerInfo, SessionId, Shard, ShardGroup, ShardOptions,
    ShardOutput,
};
use fawn_types::{HashSecret, Now};
use fawn_wire::Protocol;

const START: Now = Now::at(1_700_000_000_000);
const VALUE_BYTES: usize = 1 << 20;
const ROOM_BYTES: usize = 4 << 20;
const REPLY_BYTES: usize = VALUE_BYTES + "$1048576\r\n\r\n".len();
/// The budget, the part reserved for short replies, one reply above it, and short replies.
const PEAK_BYTES_MAX: usize = ROOM_BYTES + ROOM_BYTES / 8 + REPLY_BYTES + (64 << 10);

/// A client that sends all its input when permitted, and counts the bytes it receives.
struct BudgetClient {
    id: SessionId,
    input: Vec<u8>,
    received_bytes: usize,
    reads: bool,
    may_offer: bool,
}

struct Crowd<H> {
    host: H,
    now: Now,
    clients: Vec<BudgetClient>,
}

fn engine(disk: &SimDisk) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 16 << 20,
        memory_bytes: 64 << 20,
        value_bytes_max: VALUE_BYTES as u32,
        secret: Some(HashSecret([9; 16])),
        ..Options::default()
    };
    Engine::open(SimDevice::attach(disk), options, START).unwrap().0
}

fn options() -> ShardOptions {
    ShardOptions { value_bytes_max: VALUE_BYTES as u32, replies_bytes_max: ROOM_BYTES, ..ShardOptions::default() }
}

fn cluster() -> Crowd<ShardGroup<SimDevice>> {
    let engines = (1..=3).map(|seed| engine(&SimDisk::new(SimOptions::instant(seed)))).collect();
    let options = LocalOptions { shard: options(), ..LocalOptions::default() };
    Crowd::new(LocalCluster::start(engines, options, ServerInfo::default(), START).unwrap().1)
}

fn alone(engine: Engine<SimDevice>) -> ShardGroup<SimDevice> {
    ShardGroup::alone(Shard::new(engine, Placement::ALONE, options(), ServerInfo::default()).unwrap())
}

fn shard() -> Crowd<ShardGroup<SimDevice>> {
    let disk = SimDisk::new(SimOptions::instant(1));
    Crowd::new(alone(engine(&disk)))
}

/// A store whose values are on flash and not cached.
fn cold_shard(values: usize) -> Crowd<ShardGroup<SimDevice>> {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut crowd = Crowd::new(alone(engine(&disk)));
    crowd.store(values);
    drop(crowd.host.into_engines().remove(0).close().unwrap());
    Crowd::new(alone(engine(&disk)))
}

impl<H: ClientService> Crowd<H> {
    fn new(host: H) -> Self {
        Self { host, now: START, clients: Vec::new() }
    }

    fn connect(&mut self, reads: bool) -> usize {
        self.connect_with(Protocol::Resp, reads)
    }

    fn connect_with(&mut self, protocol: Protocol, reads: bool) -> usize {
        let id = self.host.open_session(protocol);
        self.clients.push(BudgetClient { id, input: Vec::new(), received_bytes: 0, reads, may_offer: true });
        self.clients.len() - 1
    }

    fn send(&mut self, at: usize, bytes: &[u8]) {
        self.clients[at].input.extend_from_slice(bytes);
        self.offer(at);
    }

    fn offer(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.may_offer && !client.input.is_empty() {
            let consumed = self.host.handle_input(self.now, client.id, &client.input);
            client.input.drain(..consumed);
            client.may_offer = self.host.wants_input(client.id);
        }
    }

    /// The client reads its output.
    fn take(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let bytes = self.host.output(client.id).len();
        client.received_bytes += bytes;
        self.host.wrote(client.id, bytes);
    }

    fn run_once(&mut self) {
        self.now = self.now.plus_ms(1);
        self.host.run_once(self.now);
        while let Some(output) = self.host.poll_output() {
            let (ShardOutput::Writable(id) | ShardOutput::Resume(id)) = output else {
                panic!("a connection was closed: {output:?}")
            };
            let at = self.clients.iter().position(|client| client.id == id).unwrap();
            if output == ShardOutput::Resume(id) {
                self.clients[at].may_offer = true;
                self.offer(at);
            }
        }
        for at in 0..self.clients.len() {
            if self.clients[at].reads {
                self.take(at);
            }
        }
        let waiting: usize = self.clients.iter().map(|client| self.host.output(client.id).len()).sum();
        assert!(waiting <= self.host.status().replies.held_bytes, "every waiting byte is counted");
    }

    fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if is_so(self) {
                return;
            }
            self.run_once();
        }
        panic!("not {what}: {:#?}", self.host.status());
    }

    /// Stores long values under `long:N` and short ones under `short:N`.
    fn store(&mut self, values: usize) {
        let at = self.connect(true);
        for value in 0..values {
            let long = "v".repeat(VALUE_BYTES);
            self.send(at, &resp(&format!("SET long:{value} {long}")));
            self.send(at, &resp(&format!("SET short:{value} v")));
            let expected = (value + 1) * 2 * "+OK\r\n".len();
            self.run_until("stored", |crowd| crowd.clients[at].received_bytes == expected);
        }
        self.host.close_session(self.clients.remove(at).id);
    }

    /// Connects `sessions` clients that request `gets` long values each and do not read.
    fn greedy(&mut self, sessions: usize, gets: usize, values: usize) {
        for session in 0..sessions {
            let at = self.connect(false);
            let pipeline = |get| resp(&format!("GET long:{}", (session + get) % values));
            self.send(at, &(0..gets).flat_map(pipeline).collect::<Vec<u8>>());
        }
        (0..50).for_each(|_| self.run_once());
    }

    fn assert_bounded(&self, least_bytes: usize) {
        let peak = self.host.status().replies.held_bytes_peak;
        assert!(peak <= PEAK_BYTES_MAX, "{peak} bytes of replies at once, {PEAK_BYTES_MAX} expected at most");
        assert!(peak >= least_bytes, "{peak} bytes of replies: the budget is not used");
    }

    /// Clients that do not read at first use at most the budget, while short reads of another client continue. Then all
    /// clients are served.
    fn crowd_is_bounded_and_served(&mut self, sessions: usize, gets: usize, values: usize) {
        let quick = self.connect(true);
        for round in 1..=20 {
            self.send(quick, &resp("GET short:0"));
            self.run_until("received", |crowd| crowd.clients[quick].received_bytes == round * "$1\r\nv\r\n".len());
        }
        self.greedy(sessions, gets, values);
        self.assert_bounded(ROOM_BYTES / 2);
        for round in 21..=40 {
            self.send(quick, &resp("GET short:0"));
            self.run_until("heard beside", |crowd| crowd.clients[quick].received_bytes == round * "$1\r\nv\r\n".len());
        }
        self.clients.iter_mut().for_each(|client| client.reads = true);
        let is_served = |client: &BudgetClient| client.received_bytes == gets * REPLY_BYTES;
        self.run_until("served", |crowd| crowd.clients[1..].iter().all(is_served));
        self.assert_bounded(ROOM_BYTES / 2);
        self.run_once();
        let left = self.host.status().replies;
        assert_eq!((left.held_bytes, left.reserved_bytes, left.waiting), (0, 0, 0), "the whole budget is free again");
    }
}

#[test]
fn twenty_readers_of_long_values_at_a_cluster_are_bounded() {
    let mut crowd = cluster();
    crowd.store(4);
    crowd.crowd_is_bounded_and_served(20, 8, 4);
}

#[test]
fn two_hundred_readers_of_long_values_at_a_cluster_are_bounded() {
    let mut crowd = cluster();
    crowd.store(2);
    crowd.crowd_is_bounded_and_served(200, 1, 2);
}

#[test]
fn readers_of_long_cached_values_are_bounded() {
    let mut crowd = shard();
    crowd.store(4);
    crowd.crowd_is_bounded_and_served(40, 4, 4);
}

#[test]
fn readers_of_long_values_on_flash_are_bounded() {
    let mut crowd = cold_shard(12);
    crowd.crowd_is_bounded_and_served(40, 4, 12);
}

#[test]
fn one_reader_of_many_long_values_has_its_own_bound() {
    let mut crowd = cluster();
    crowd.store(4);
    crowd.greedy(1, 64, 4);
    let held = crowd.host.status().replies.held_bytes;
    assert!(held <= 2 * REPLY_BYTES, "{held} bytes for one session");
}

/// Sessions with short replies all request many long ones. A read that waits is repeated if its value is longer than
/// its grant.
fn long_values_after_short_ones_are_bounded<H: ClientService>(mut crowd: Crowd<H>) {
    for at in 0..30 {
        crowd.connect(true);
        crowd.send(at, &resp("GET short:0").repeat(60));
    }
    let short_bytes = 60 * "$1\r\nv\r\n".len();
    crowd.run_until("warm", |crowd| crowd.clients.iter().all(|client| client.received_bytes == short_bytes));
    for at in 0..30 {
        crowd.clients[at].reads = false;
        let key = |get| resp(&format!("GET long:{}", (at + get) % 12));
        crowd.send(at, &(0..8).flat_map(key).collect::<Vec<u8>>());
    }
    (0..50).for_each(|_| crowd.run_once());
    crowd.assert_bounded(ROOM_BYTES / 2);
    assert!(crowd.host.status().counters.rereads > 0, "reads were repeated");
    assert!(crowd.host.status().replies.waiting > 0, "replies wait for grants");
    crowd.clients.iter_mut().for_each(|client| client.reads = true);
    let bytes = short_bytes + 8 * REPLY_BYTES;
    crowd.run_until("served", |crowd| crowd.clients.iter().all(|client| client.received_bytes == bytes));
    crowd.assert_bounded(ROOM_BYTES / 2);
}

#[test]
fn long_values_after_short_ones_are_bounded_at_a_cluster() {
    let mut crowd = cluster();
    crowd.store(12);
    long_values_after_short_ones_are_bounded(crowd);
}

#[test]
fn long_values_after_short_ones_are_bounded_on_flash() {
    long_values_after_short_ones_are_bounded(cold_shard(12));
}

/// Many greedy sessions do not use the whole budget: a session without replies is still served.
#[test]
fn the_greedy_leave_something() {
    let mut crowd = shard();
    let at = crowd.connect(true);
    crowd.send(at, &resp(&format!("SET middle {}", "v".repeat(64 << 10))));
    crowd.run_until("stored", |crowd| crowd.clients[at].received_bytes > 0);
    for _ in 0..5 {
        let greedy = crowd.connect(false);
        crowd.send(greedy, &resp("GET middle").repeat(64));
    }
    (0..50).for_each(|_| crowd.run_once());
    let held = crowd.host.status().replies.held_bytes;
    assert!((ROOM_BYTES / 2..ROOM_BYTES).contains(&held), "{held} bytes");
    let fresh = crowd.connect(true);
    crowd.send(fresh, &resp("GET middle"));
    crowd.run_until("received", |crowd| crowd.clients[fresh].received_bytes > 64 << 10);
}

/// The replies of one visit count against the budget one by one: behind the first, no reply is granted from half of it
/// on.
#[test]
fn replies_of_one_visit_stay_within_half_of_the_budget() {
    const BYTES: usize = 64 << 10;
    let mut crowd = shard();
    let at = crowd.connect(true);
    crowd.send(at, &resp(&format!("SET middle {}", "v".repeat(BYTES))));
    crowd.run_until("stored", |crowd| crowd.clients[at].received_bytes > 0);
    // Two sessions leave a quarter of the half, each within its own limit.
    for gets in [12, 12, 14] {
        let at = crowd.connect(false);
        crowd.send(at, &resp("GET middle").repeat(gets));
        (0..5).for_each(|_| crowd.run_once());
    }
    let held = crowd.host.status().replies.held_bytes;
    assert!((ROOM_BYTES / 2 - BYTES..ROOM_BYTES / 2 + BYTES).contains(&held), "{held} bytes");
}

/// A new session requests many short values at once: their first grants together must not cause a rejection.
#[test]
fn many_short_values_at_once_are_never_too_much() {
    let mut crowd = cluster();
    crowd.store(1);
    let at = crowd.connect(true);
    crowd.send(at, &resp(&format!("MGET{}", " short:0".repeat(500))));
    let bytes = "*500\r\n".len() + 500 * "$1\r\nv\r\n".len();
    crowd.run_until("received", |crowd| crowd.clients[at].received_bytes >= bytes);
    assert_eq!(crowd.clients[at].received_bytes, bytes);
}

/// Items whose values are longer than their first grants come back and are asked for one after another, as space
/// allows.
#[test]
fn many_long_multi_key_replies_are_bounded() {
    const ITEM: &str = "VALUE long:0 0 1048576\r\n\r\n";
    let of_resp = "*6\r\n".len() + 6 * REPLY_BYTES;
    let of_memcached = 6 * (VALUE_BYTES + ITEM.len()) + "END\r\n".len();
    let keys = "long:0 long:1 long:2 long:3 long:4 long:5";
    for (protocol, request, bytes) in [
        (Protocol::Resp, resp(&format!("MGET {keys}")), of_resp),
        // Reads that are updates, too.
        (Protocol::Memcached, format!("gat 1000 {keys}\r\n").into_bytes(), of_memcached),
    ] {
        let mut crowd = cluster();
        crowd.store(8);
        let written = updates_done(&crowd);
        for at in 0..20 {
            crowd.connect_with(protocol, false);
            crowd.send(at, &request);
        }
        (0..50).for_each(|_| crowd.run_once());
        let peak = crowd.host.status().replies.held_bytes_peak;
        assert!(peak <= 2 * ROOM_BYTES + 2 * REPLY_BYTES, "{protocol:?}: {peak} bytes of replies at once");
        crowd.clients.iter_mut().for_each(|client| client.reads = true);
        crowd.run_until("answered", |crowd| crowd.host.is_idle());
        let is_whole = |client: &BudgetClient| client.received_bytes == bytes;
        assert!(crowd.clients.iter().all(is_whole), "{protocol:?}: every reply is whole");
        let done = updates_done(&crowd) - written;
        assert_eq!(done, if protocol == Protocol::Memcached { 20 * 6 } else { 0 });
    }
}

/// Updates are in flight up to the number of requests that a session may have.
#[test]
fn updates_are_sent_in_one_go() {
    let mut crowd = cluster();
    crowd.store(1);
    let at = crowd.connect(true);
    let pipeline = |count| -> Vec<u8> { (0..count).flat_map(|at| resp(&format!("DEL none:{at}"))).collect() };
    crowd.send(at, &pipeline(100));
    crowd.run_until("warm", |crowd| crowd.clients[at].received_bytes == 100 * ":0\r\n".len());
    crowd.send(at, &pipeline(2000));
    assert_eq!(crowd.host.status().pending, ShardOptions::default().session_pending_max);
}

/// A closed connection frees its part of the budget, including reservations for pending replies.
#[test]
fn whoever_leaves_gives_its_room_back() {
    let mut crowd = cluster();
    crowd.store(2);
    crowd.greedy(50, 4, 2);
    for _ in 0..3 {
        let status = crowd.host.status().replies;
        assert!(status.held_bytes > 0 && status.waiting > 0, "{status:?}");
        let half = crowd.clients.len() / 2;
        for client in crowd.clients.drain(..half) {
            crowd.host.close_session(client.id);
        }
        (0..20).for_each(|_| crowd.run_once());
    }
    crowd.clients.drain(..).for_each(|client| crowd.host.close_session(client.id));
    (0..20).for_each(|_| crowd.run_once());
    let status = crowd.host.status().replies;
    assert_eq!((status.held_bytes, status.reserved_bytes, status.waiting), (0, 0, 0));
}

/// Device reads of long values: the first one per lookup finds the length, the rest is read once, when it is granted.
#[test]
fn a_long_value_is_read_once_from_flash() {
    const VALUES: usize = 12;
    let mut crowd = cold_shard(VALUES + 1);
    let reads = |crowd: &Crowd<ShardGroup<SimDevice>>| {
        let stats = crowd.host.server().engine().stats();
        (stats.reads - stats.second_reads, stats.second_reads)
    };
    let alone = crowd.connect(true);
    crowd.send(alone, &resp(&format!("GET long:{VALUES}")));
    crowd.run_until("served", |crowd| crowd.clients[alone].received_bytes == REPLY_BYTES);
    assert_eq!((reads(&crowd), crowd.host.status().counters.rereads), ((1, 1), 0), "granted at once");
    for value in 0..VALUES {
        let at = crowd.connect(false);
        crowd.send(at, &resp(&format!("GET long:{value}")));
    }
    (0..50).for_each(|_| crowd.run_once());
    crowd.assert_bounded(ROOM_BYTES / 2);
    let (first, second) = reads(&crowd);
    assert_eq!(first, 1 + VALUES as u64, "each value's length is found");
    assert!((4..=6).contains(&second), "{second} long reads within the budget");
    assert!(crowd.host.status().replies.waiting > 0);
    crowd.clients.iter_mut().for_each(|client| client.reads = true);
    crowd.run_until("served", |crowd| crowd.clients.iter().all(|client| client.received_bytes == REPLY_BYTES));
    let values = 1 + VALUES as u64;
    assert_eq!(reads(&crowd), (values, values), "a repeated lookup finds the first part in the cache");
    let rereads = crowd.host.status().counters.rereads;
    assert!(rereads <= VALUES as u64, "{rereads} lookups were repeated");
}

/// An update that returns a long value reads it once, too: the grant that its second read has is the update's.
#[test]
fn an_update_that_returns_a_long_value_reads_it_once_from_flash() {
    for command in ["GETSET long:0 v", "GETDEL long:0", "SET long:0 v GET", "GETEX long:0 EX 1000"] {
        let mut crowd = cold_shard(1);
        let at = crowd.connect(true);
        crowd.send(at, &resp(command));
        crowd.run_until("served", |crowd| crowd.clients[at].received_bytes == REPLY_BYTES);
        let stats = crowd.host.server().engine().stats();
        let rereads = crowd.host.status().counters.rereads;
        assert_eq!((stats.reads, stats.second_reads, rereads), (2, 1, 0), "{command}");
    }
}

/// A session over the limit whose next reply waits for a grant holds bytes that can leave only after that grant. It
/// keeps neither itself nor another session from a grant.
#[test]
fn a_session_over_the_limit_that_waits_keeps_no_other_from_its_grant() {
    let mut crowd = cold_shard(1);
    // A value in memory: its readers need no device.
    let writer = crowd.connect(true);
    crowd.send(writer, &resp(&format!("SET cached {}", "v".repeat(VALUE_BYTES))));
    crowd.run_until("stored", |crowd| crowd.clients[writer].received_bytes > 0);
    // Its device read starts while the budget is free.
    let over = crowd.connect(false);
    crowd.send(over, &resp("GET long:0"));
    // Meanwhile other replies exceed the limit, and a further session is queued.
    let others: Vec<usize> = (0..4).map(|_| crowd.connect(false)).collect();
    others.iter().for_each(|at| crowd.send(*at, &resp("GET cached")));
    let waits = crowd.connect(true);
    crowd.send(waits, &resp("GET cached"));
    crowd.run_until("queued", |crowd| crowd.host.status().replies.waiting == 2);
    assert_eq!(crowd.clients[waits].received_bytes, 0);
    // Values in memory need no grants: now the session with the waiting read is over the limit, and no other.
    others.iter().for_each(|at| crowd.take(*at));
    crowd.send(over, &resp("MGET cached cached cached cached cached"));
    crowd.run_until("granted", |crowd| crowd.clients[waits].received_bytes == REPLY_BYTES);
    crowd.clients[over].reads = true;
    let bytes = REPLY_BYTES + "*5\r\n".len() + 5 * REPLY_BYTES;
    crowd.run_until("served", |crowd| crowd.clients[over].received_bytes == bytes);
    let peak = crowd.host.status().replies.held_bytes_peak;
    assert!(peak > ROOM_BYTES, "{peak} bytes: the limit was not exceeded");
}

/// An update that returns a value waits before it is evaluated: its write is not visible while it waits.
#[test]
fn an_update_that_returns_a_long_value_waits_unevaluated() {
    let mut crowd = shard();
    crowd.store(8);
    crowd.greedy(8, 1, 7);
    let writes = crowd.host.status().counters.writes;
    let at = crowd.connect(false);
    crowd.send(at, &resp("SET long:7 new GET"));
    let after = crowd.connect(true);
    (0..20).for_each(|_| crowd.run_once());
    assert_eq!(crowd.host.status().counters.writes, writes, "it is not evaluated");
    crowd.assert_bounded(ROOM_BYTES / 2);
    crowd.clients.iter_mut().for_each(|client| client.reads = true);
    crowd.run_until("served", |crowd| crowd.clients[at].received_bytes == REPLY_BYTES);
    crowd.send(after, &resp("GET long:7"));
    crowd.run_until("updated", |crowd| crowd.clients[after].received_bytes == "$3\r\nnew\r\n".len());
    crowd.run_once();
    let left = crowd.host.status().replies;
    assert_eq!((left.held_bytes, left.reserved_bytes, left.waiting), (0, 0, 0), "the whole budget is free again");
}

/// Updates that the heads of all chains have done.
fn updates_done(crowd: &Crowd<ShardGroup<SimDevice>>) -> u64 {
    crowd.host.shards().map(|shard| shard.node_status().counters.writes).sum()
}

/// Updates that return long values at a chain are granted before they are evaluated, like reads. All are done once.
#[test]
fn updates_that_return_long_values_at_a_cluster_are_bounded() {
    let mut crowd = cluster();
    crowd.store(24);
    let written = updates_done(&crowd);
    for at in 0..24 {
        crowd.connect(false);
        let command = ["SET long:{} v GET", "GETDEL long:{}", "GETSET long:{} v", "GETEX long:{} EX 1000"][at % 4];
        crowd.send(at, &resp(&command.replace("{}", &at.to_string())));
    }
    // Longer than an operation may take.
    (0..6_000).for_each(|_| crowd.run_once());
    crowd.assert_bounded(ROOM_BYTES / 2);
    let done = updates_done(&crowd) - written;
    assert!((3..=6).contains(&done), "{done} updates: as many as were granted");
    // The value of a client that left is not sent, but its update is done.
    crowd.clients.drain(16..).for_each(|client| crowd.host.close_session(client.id));
    crowd.run_until("done", |crowd| updates_done(crowd) - written >= done + 8);
    crowd.assert_bounded(ROOM_BYTES / 2);
    crowd.clients.iter_mut().for_each(|client| client.reads = true);
    crowd.run_until("served", |crowd| crowd.clients.iter().all(|client| client.received_bytes == REPLY_BYTES));
    crowd.assert_bounded(ROOM_BYTES / 2);
    assert_eq!(updates_done(&crowd) - written, 24);
    (0..5).for_each(|_| crowd.run_once());
    let left = crowd.host.status();
    let replies = left.replies;
    assert_eq!((replies.held_bytes, replies.reserved_bytes, replies.waiting, left.pending), (0, 0, 0, 0));
}
