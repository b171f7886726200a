//! Waiting requests of a shard's own sessions: turns of sessions beyond the bound, a failed device, ends of sessions.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use crate::test_harness::seeds;
use fawn_flash::SimOptions;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_node::{ClientService, ShardOptions};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;

/// A shard with values on flash under `key:N`, of this length.
fn cold(keys: usize, value_bytes: usize, sim: SimOptions, options: ShardOptions) -> ShardHarness {
    let mut first = ShardHarness::with(sim, shard_options(Durability::Sync));
    let id = first.connect(Protocol::Resp);
    let set = |at| resp(&format!("SET key:{at} {}", "x".repeat(value_bytes)));
    let pipeline: Vec<u8> = (0..keys).flat_map(set).collect();
    first.send(id, &pipeline);
    first.settle();
    first.options = options;
    first.reopen()
}

/// Sessions that always have input for more requests than may wait leave another session its turn.
#[test]
fn every_session_gets_its_turn_beyond_the_bound() {
    const KEYS: usize = 1000;
    let options = ShardOptions {
        pending_max: 8,
        session_pending_max: 8,
        reads_in_flight_max: 2,
        ..shard_options(Durability::Sync)
    };
    let mut harness = cold(KEYS, 5000, SimOptions::instant(1), options);
    let greedy: Vec<_> = (0..2).map(|_| harness.connect(Protocol::Resp)).collect();
    for (from, id) in greedy.iter().enumerate() {
        let pipeline: Vec<u8> =
            (from * 450..(from + 1) * 450).flat_map(|at| resp(&format!("STRLEN key:{at}"))).collect();
        harness.send(*id, &pipeline);
    }
    harness.run(3);
    let late = harness.connect(Protocol::Resp);
    harness.send(late, &resp("STRLEN key:999"));
    let mut iterations = 0;
    while harness.clients[&late].received.is_empty() {
        harness.run_once();
        iterations += 1;
        let left: usize = greedy.iter().map(|id| harness.clients[id].input.len()).sum();
        assert!(left > 0, "served only after all others, {iterations} iterations");
    }
    harness.settle();
    harness.check_empty();
}

/// Writes that find the log full when the device fails get its error, like those in the log.
#[test]
fn writes_beyond_the_bound_get_the_devices_failure() {
    for command in ["SET key:0 v", "APPEND key:0 v", "GETSET key:0 v", "DEL key:0 key:1", "MSET key:0 v key:1 v"] {
        let options = ShardOptions { uncommitted_max: 4, ..shard_options(Durability::Sync) };
        let mut harness = cold(4, 5000, SimOptions::instant(1), options);
        let ids: Vec<_> = (0..4).map(|_| harness.connect(Protocol::Resp)).collect();
        harness.disks[0].fail_nth(OpKind::Write, 1, DeviceFault::Fail);
        for id in &ids {
            harness.send(*id, &[resp("SET a 1"), resp("SET b 1"), resp(command), resp("SET c 1")].concat());
        }
        harness.run(50);
        assert!(harness.host.status().store.poisoned.is_some());
        for id in &ids {
            let received = String::from_utf8_lossy(&harness.clients[id].received).into_owned();
            assert_eq!(received.matches("-MISCONF").count(), 4, "{command}: {received}");
        }
    }
}

/// Sessions that end at any moment leave neither requests nor grants behind.
#[test]
fn sessions_that_end_leave_nothing_behind() {
    for seed in 0..21 {
        println!("seed {seed}");
        let mut rng = SplitMix64::new(seed);
        let options = ShardOptions {
            replies_bytes_max: [2 << 10, 24 << 10, 100 << 10][(seed % 3) as usize],
            pending_max: 40,
            session_pending_max: [1, 2, 1024][(seed % 4).min(2) as usize],
            uncommitted_max: 3 + seed % 20,
            requests_bytes_max: 100_000,
            reads_in_flight_max: 1 + (seed % 5) as usize,
            ..shard_options(Durability::Sync)
        };
        let sim = SimOptions { seed, latency_ticks: 0..=9, ..SimOptions::default() };
        let mut harness = cold(12, 300 << (seed % 7), sim, options);
        for _ in 0..4 {
            for _ in 0..60 {
                let protocol = if rng.below(3) == 0 { Protocol::Memcached } else { Protocol::Resp };
                let id = harness.connect(protocol);
                for _ in 0..rng.below(8) {
                    harness.send(id, &command(&mut rng, protocol));
                }
                harness.reads_replies = rng.below(2) == 0;
                harness.run(rng.below(4) as usize);
                let gone: Vec<_> = harness.clients.keys().copied().filter(|_| rng.below(6) == 0).collect();
                for id in gone {
                    harness.host.close_session(id);
                    harness.clients.remove(&id);
                }
            }
            for id in std::mem::take(&mut harness.clients).into_keys() {
                harness.host.close_session(id);
            }
            harness.settle();
            harness.check_empty();
            harness = harness.reopen();
        }
    }
}

fn command(rng: &mut SplitMix64, protocol: Protocol) -> Vec<u8> {
    let (a, b, c) = (rng.below(12), rng.below(12), rng.below(12));
    let long = "y".repeat([1, 700, 9000][rng.below(3) as usize]);
    let at = rng.below(12) as usize;
    if protocol == Protocol::Memcached {
        let lines = [
            format!("get key:{a} key:{b} key:{c}"),
            format!("gat 1000 key:{a} key:{b} key:{c}"),
            format!("append key:{a} 0 0 {} noreply\r\n{long}", long.len()),
            format!("incr key:{a} 1"),
            format!("set key:{a} 0 0 {}\r\n{long}", long.len()),
            format!("delete key:{a} noreply"),
        ];
        return format!("{}\r\n", lines[at % 6]).into_bytes();
    }
    let lines = [
        format!("GET key:{a}"),
        format!("GETSET key:{a} {long}"),
        format!("GETDEL key:{a}"),
        format!("GETEX key:{a} EX 100"),
        format!("MGET key:{a} key:{b} key:{c}"),
        format!("DEL key:{a} key:{b}"),
        format!("MSET key:{a} {long} key:{b} {long}"),
        format!("APPEND key:{a} {long}"),
        format!("SET key:{a} {long}"),
        "DBSIZE".to_owned(),
        "SCAN 0".to_owned(),
        if b == 0 { "FLUSHALL".to_owned() } else { format!("GET key:{c}") },
    ];
    resp(&lines[at])
}

/// The first grants of a list's items are what the budget was asked for, not the pages that their reads touch.
#[test]
fn a_long_list_of_short_cold_values_reserves_little() {
    const KEYS: usize = 5000;
    let mut harness = cold(KEYS, 100, SimOptions::instant(1), shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    let names: Vec<String> = (0..KEYS).map(|at| format!("key:{at}")).collect();
    harness.send(id, &resp(&format!("MGET {}", names.join(" "))));
    let status = harness.host.status();
    assert_eq!(
        status.pending,
        ShardOptions::default().session_pending_max,
        "items of a list are bounded like a pipeline"
    );
    let reserved = status.replies.reserved_bytes;
    assert!(reserved <= 3 << 20, "{reserved} bytes are reserved for a reply of 0.5 MB");
    harness.settle();
    assert_eq!(harness.clients[&id].received.len(), "*5000\r\n".len() + KEYS * (100 + "$100\r\n\r\n".len()));
    harness.check_empty();
}

/// The items of a list that begin later than others are executed before the session's next requests, once each.
#[test]
fn a_list_beyond_the_bound_precedes_the_sessions_next_requests() {
    const KEYS: usize = 40;
    for session_pending_max in [1, 2, 7, 39, 40] {
        let options = ShardOptions { session_pending_max, ..shard_options(Durability::Sync) };
        let mut harness = cold(KEYS, 300, SimOptions::instant(1), options);
        let names: Vec<String> = (0..KEYS).map(|at| format!("key:{at}")).collect();
        let names = names.join(" ");
        let id = harness.connect(Protocol::Resp);
        let commands = [
            format!("SET key:{} before", KEYS - 1),
            format!("MGET {names}"),
            format!("SET key:{} after", KEYS - 2),
            format!("EXISTS {names} key:0 absent"),
            format!("DEL {names} key:0"),
            "DBSIZE".to_owned(),
        ];
        commands.iter().for_each(|command| harness.send(id, &resp(command)));
        harness.run(1);
        assert!(harness.host.status().pending <= session_pending_max);
        harness.settle();
        let old = format!("${}\r\n{}\r\n", 300, "x".repeat(300)).repeat(KEYS - 1);
        let expected = format!("+OK\r\n*40\r\n{old}$6\r\nbefore\r\n+OK\r\n:41\r\n:40\r\n:0\r\n");
        assert!(harness.clients[&id].received == expected.as_bytes(), "bound {session_pending_max}");
        harness.check_empty();
    }
}

/// A list under a tiny budget gets its reply, whatever precedes it: also requests whose replies have no bytes.
#[test]
fn lists_behind_silent_requests_get_their_grants() {
    for seed in seeds("lists_behind_silent_requests", 0..60) {
        let mut rng = SplitMix64::new(seed);
        let options = ShardOptions {
            replies_bytes_max: [2 << 10, 8 << 10, 24 << 10][(seed % 3) as usize],
            session_pending_max: 2 + (seed % 3) as usize,
            uncommitted_max: 3 + seed % 20,
            reads_in_flight_max: 1 + (seed % 5) as usize,
            session_output_bytes_max: if seed % 2 == 0 { 3_000 } else { 1 << 20 },
            ..shard_options(Durability::Sync)
        };
        let sim = SimOptions { seed, latency_ticks: 0..=9, ..SimOptions::default() };
        let mut harness = cold(20, 300 << (seed % 6), sim, options);
        for _ in 0..4 {
            let ids: Vec<_> = (0..1 + rng.below(3)).map(|_| harness.connect(Protocol::Memcached)).collect();
            for _ in 0..1 + rng.below(4) {
                for id in &ids {
                    let key = rng.below(20);
                    let list: Vec<String> = (0..1 + rng.below(12)).map(|_| format!("key:{}", rng.below(20))).collect();
                    let list = list.join(" ");
                    let lines = [
                        format!("append key:{key} 0 0 3 noreply\r\nabc\r\nget {list}\r\n"),
                        format!("append key:{key} 0 0 3 noreply\r\nabc\r\ngat 100 {list}\r\n"),
                        format!("incr key:{key} 1 noreply\r\nget {list}\r\n"),
                        format!("get {list}\r\n"),
                    ];
                    harness.send(*id, lines[rng.below(4) as usize].as_bytes());
                }
                harness.run(rng.below(3) as usize);
            }
            harness.settle();
            harness.check_empty();
            harness = harness.reopen();
        }
    }
}

/// A reply that is not granted because a request without a reply precedes it is granted once that request ends.
#[test]
fn a_reply_behind_a_silent_request_is_granted_once_that_ends() {
    let list: Vec<String> = (1..30).map(|at| format!("key:{at}")).collect();
    let (list, touched) = (format!("get {}", list.join(" ")), format!("gat 1000 {}", list.join(" ")));
    // Each reply is more than half of the budget, so it is granted only as its session's next.
    let cases = [
        (60_000, 64 << 10, "get key:1"),
        (60_000, 64 << 10, "gat 1000 key:1"),
        (1_200, 24 << 10, list.as_str()),
        (700, 24 << 10, list.as_str()),
        (1_200, 24 << 10, touched.as_str()),
    ];
    let mut wedged = Vec::new();
    for (value_bytes, replies_bytes_max, get) in cases {
        let options = ShardOptions { replies_bytes_max, session_pending_max: 4, ..shard_options(Durability::Sync) };
        let mut harness = cold(40, value_bytes, SimOptions::instant(1), options);
        let id = harness.connect(Protocol::Memcached);
        harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Hang);
        harness.send(id, b"append key:0 0 0 1 noreply\r\ny\r\n");
        harness.run(1);
        assert_eq!(harness.disks[0].hung(), 1);
        harness.send(id, format!("{get}\r\n").as_bytes());
        harness.run(20);
        let waiting = harness.host.status().replies.waiting;
        harness.disks[0].release_hung();
        harness.run(200);
        let received = harness.clients[&id].received.len();
        assert_eq!(waiting, 1, "the reply is more than half of the budget, and not its session's next");
        if received < value_bytes {
            wedged.push(get);
        }
    }
    assert!(wedged.is_empty(), "without a reply: {wedged:?}");
}

/// A reply that fits is sent, however many of its items begin later, whose lengths are not known before.
#[test]
fn a_list_whose_reply_fits_is_not_refused() {
    for session_pending_max in [1024, 4, 1] {
        let options = ShardOptions { session_pending_max, reply_bytes_max: 10_000, ..shard_options(Durability::Sync) };
        let mut harness = cold(6, 1_500, SimOptions::instant(1), options);
        let id = harness.connect(Protocol::Resp);
        let reply = harness.redis(id, "MGET key:0 key:1 key:2 key:3 key:4 key:5");
        assert!(reply.starts_with("*6|$1500|"), "bound {session_pending_max}: {reply}");
    }
}

/// Items that begin later are no dearer than the first: they reserve what the budget was asked for, and come back for no
/// larger grant than their values need.
#[test]
fn later_items_of_a_list_of_short_values_reserve_little() {
    const KEYS: usize = 3000;
    let mut harness = cold(KEYS, 100, SimOptions::instant(1), shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    let names: Vec<String> = (0..KEYS).map(|at| format!("key:{at}")).collect();
    harness.send(id, &resp(&format!("MGET {}", names.join(" "))));
    let mut reserved = 0;
    while harness.clients[&id].received.is_empty() {
        harness.run_once();
        reserved = reserved.max(harness.host.status().replies.reserved_bytes);
    }
    let rereads = harness.host.status().counters.rereads;
    assert!(
        reserved <= 3 << 20 && rereads == 0,
        "{reserved} bytes are reserved, {rereads} values were requested again"
    );
}

/// A session that ends in the middle of a list: nothing is left, and others use what it had.
#[test]
fn sessions_behind_a_list_of_an_ended_one_continue() {
    let options = ShardOptions {
        session_pending_max: 2,
        requests_bytes_max: 500,
        replies_bytes_max: 8 << 10,
        ..shard_options(Durability::Sync)
    };
    for hung in [true, false] {
        let mut harness = cold(40, 3_000, SimOptions::instant(1), options);
        let (reader, id, other) =
            (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
        harness.reads_replies = false;
        harness.send(reader, &resp("MGET key:30 key:31 key:32 key:33"));
        harness.run(30);
        if hung {
            harness.disks[0].fail_nth(OpKind::Read, 2, DeviceFault::Hang);
        }
        let names: Vec<String> = (0..30).map(|at| format!("key:{at}")).collect();
        harness.send(id, &resp(&format!("MGET {}", names.join(" "))));
        harness.send(id, &resp("GET key:1"));
        harness.run(20);
        harness.send(other, &resp("STRLEN key:39"));
        harness.run(20);
        assert!(harness.clients[&other].received.is_empty(), "the list's keys use the bytes of requests");
        harness.host.close_session(id);
        harness.clients.remove(&id);
        harness.run(20);
        harness.reads_replies = true;
        harness.take(reader);
        harness.disks[0].release_hung();
        harness.take(other);
        harness.settle();
        assert_eq!(harness.clients[&other].received, b":3000\r\n", "{hung}");
        harness.check_empty();
    }
}

/// The end of a session lets another one continue that keeps an unread reply, so it is in no queue: the next iteration
/// is due at once.
#[test]
fn the_end_of_a_session_is_announced_to_one_that_keeps_a_reply() {
    let options = ShardOptions { replies_bytes_max: 32 << 10, ..shard_options(Durability::Sync) };
    let mut harness = cold(4, 5_000, SimOptions::instant(1), options);
    let (kept, ended) = (harness.connect(Protocol::Resp), harness.connect(Protocol::Resp));
    harness.reads_replies = false;
    for (id, key) in [(kept, "key:0"), (ended, "key:1")] {
        harness.send(id, &resp(&format!("GET {key}")));
        harness.run(20);
    }
    harness.send(kept, &resp("GET key:2"));
    harness.run(20);
    assert!(!harness.host.wants_input(kept), "a third reply is above half of the budget");
    assert_eq!(harness.host.status().replies.waiting, 0, "it waits for its own client");
    harness.host.close_session(ended);
    let is_due = harness.host.has_due_work();
    harness.run(1);
    assert!(harness.host.wants_input(kept), "it may continue");
    assert!(is_due, "a host that runs due iterations only would not let it continue");
}

/// Keys of lists that have not begun count against the memory of requests.
#[test]
fn the_keys_of_waiting_lists_are_bounded() {
    const SESSIONS: usize = 20;
    let options =
        ShardOptions { session_pending_max: 1, requests_bytes_max: 20_000, ..shard_options(Durability::Sync) };
    let mut harness = cold(400, 5_000, SimOptions::instant(1), options);
    harness.disks[0].hang(OpKind::Read);
    let absent: Vec<String> = (0..100).map(|at| format!("{at:0>100}")).collect();
    let list = resp(&format!("MGET key:0 {}", absent.join(" ")));
    let ids: Vec<_> = (0..SESSIONS).map(|_| harness.connect(Protocol::Resp)).collect();
    for id in &ids {
        harness.send(*id, &list);
    }
    let begun = ids.iter().filter(|id| harness.clients[*id].input.is_empty()).count();
    assert!((1..=3).contains(&begun), "{begun} lists of 10,000 bytes each were taken");
    harness.disks[0].end_faults(OpKind::Read);
    harness.disks[0].release_hung();
    harness.settle();
    let expected = format!("*101\r\n$5000\r\n{}\r\n{}", "x".repeat(5_000), "$-1\r\n".repeat(100));
    assert!(ids.iter().all(|id| harness.clients[id].received == expected.as_bytes()));
    harness.check_empty();
}

/// Such a key could be overwritten, but not be deleted.
#[test]
fn a_key_whose_record_is_corrupt_is_deleted() {
    let mut harness = cold(8, 5000, SimOptions::instant(1), shard_options(Durability::Sync));
    let name = harness.disks[0].names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    harness.disks[0].flip_bits(&name, 4096 * 3, 1);
    let id = harness.connect(Protocol::Resp);
    let mut ask = |line: &str| {
        harness.clients.get_mut(&id).unwrap().received.clear();
        harness.send(id, &resp(line));
        harness.settle();
        String::from_utf8_lossy(&harness.clients[&id].received).into_owned()
    };
    let lost: Vec<usize> = (0..8).filter(|at| ask(&format!("STRLEN key:{at}")).starts_with('-')).collect();
    let [lost] = lost[..] else { panic!("{lost:?}") };
    assert!(ask(&format!("GETDEL key:{lost}")).starts_with('-'), "its value is lost");
    assert_eq!(ask(&format!("DEL key:{lost}")), ":1\r\n");
    assert_eq!(ask(&format!("DEL key:{lost}")), ":0\r\n");
    assert_eq!(ask(&format!("EXISTS key:{lost} key:{}", (lost + 1) % 8)), ":1\r\n");
}

/// A read that the device refuses is not in flight in the system, so its completion wakes no loop.
#[test]
fn a_refused_read_is_answered_without_an_event() {
    let mut harness = cold(4, 5000, SimOptions::instant(1), shard_options(Durability::Sync));
    let id = harness.connect(Protocol::Resp);
    harness.settle();
    harness.disks[0].fail_nth(OpKind::Read, 1, DeviceFault::Exhausted);
    harness.send(id, &resp("STRLEN key:1"));
    let due = harness.host.run_once(harness.now);
    assert!(due.is_some_and(|due| due <= harness.now.mono.plus_ms(1)), "due at {due:?}, now {:?}", harness.now);
    harness.settle();
    assert!(harness.clients[&id].received.starts_with(b"-"), "{:?}", harness.clients[&id]);
}
