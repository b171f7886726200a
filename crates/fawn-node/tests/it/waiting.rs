//! Waiting requests of a shard's own sessions: turns of sessions beyond the bound, a failed device, ends of sessions.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
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
