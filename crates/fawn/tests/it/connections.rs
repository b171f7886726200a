//! Bounds of connections: too many, half-closed, slow, garbled, idle ones. Other clients are not affected.
use crate::harness::{Server, connect, eventually, exchange, read_to_end};
use rustix::process::{Resource, Rlimit};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

#[test]
fn too_many_are_told_so_in_their_protocol() {
    let server = Server::start(&["--max-connections", "2"]);
    let mut kept = [connect(server.resp), connect(server.resp)];
    kept.iter_mut().for_each(|stream| exchange(stream, b"PING\r\n", b"+PONG\r\n"));
    assert_eq!(read_to_end(&mut connect(server.resp)), b"-ERR max number of clients reached\r\n");
    assert_eq!(read_to_end(&mut connect(server.memcached)), b"SERVER_ERROR max number of clients reached\r\n");
    assert_eq!(server.metric("fawn_connections_refused_total"), 2);
    let [mut stays, goes] = kept;
    drop(goes);
    // A permit is free again, and the remaining connection was not disturbed.
    eventually("room for another", || {
        let mut next = connect(server.resp);
        next.write_all(b"PING\r\n").ok()?;
        let mut reply = [0; 7];
        next.read_exact(&mut reply).ok().filter(|()| reply == *b"+PONG\r\n")
    });
    exchange(&mut stays, b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn a_half_closed_connection_hears_every_reply() {
    let server = Server::start(&[]);
    let mut stream = connect(server.resp);
    stream.write_all(&b"*1\r\n$4\r\nPING\r\n".repeat(20_000)).expect("it reads");
    stream.shutdown(Shutdown::Write).expect("half closed");
    assert_eq!(read_to_end(&mut stream), b"+PONG\r\n".repeat(20_000));
    // An incomplete request before the end of the stream is dropped with the connection.
    let mut stream = connect(server.resp);
    stream.write_all(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET").expect("it reads");
    stream.shutdown(Shutdown::Write).expect("half closed");
    assert_eq!(read_to_end(&mut stream), b"+PONG\r\n");
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let server = Server::start(&[]);
    let mut stream = connect(server.resp);
    stream.set_nodelay(true).expect("set");
    let value = vec![b'x'; 300_000];
    let mut request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n".to_vec();
    request.extend_from_slice(&value);
    request.extend_from_slice(b"\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    let (head, tail) = request.split_at(40);
    head.iter().for_each(|byte| stream.write_all(&[*byte]).expect("it reads"));
    tail.chunks(70_001).for_each(|piece| stream.write_all(piece).expect("it reads"));
    let mut reply = b"+OK\r\n$300000\r\n".to_vec();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\n");
    exchange(&mut stream, b"", &reply);
    assert_eq!(server.metric("fawn_input_held_bytes"), 0, "no buffer outlives its request");
}

#[test]
fn a_slow_reader_is_paused_then_dropped_and_others_go_on() {
    let server = Server::start(&["--stall-timeout", "500ms"]);
    let mut other = connect(server.resp);
    let mut set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n".to_vec();
    set.extend_from_slice(&[b'v'; 100_000]);
    set.extend_from_slice(b"\r\n");
    exchange(&mut other, &set, b"+OK\r\n");
    // An endless pipeline whose replies are not read: the server stops reading it.
    let mut slow = connect(server.resp);
    slow.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let requests = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(1000);
    let mut sent = 0_usize;
    while slow.write_all(&requests).is_ok() {
        sent += requests.len();
        assert!(sent < 64 << 20, "the server keeps reading from a client that reads nothing");
        exchange(&mut other, b"PING\r\n", b"+PONG\r\n");
    }
    eventually("the slow reader to be dropped", || {
        (server.metric("fawn_connections_dropped_total") == 1).then_some(())
    });
    assert_eq!(server.metric("fawn_output_held_bytes"), 0);
    exchange(&mut other, b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn a_reader_that_pauses_but_comes_back_gets_everything() {
    let server = Server::start(&[]);
    let mut stream = connect(server.resp);
    let mut set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n".to_vec();
    set.extend_from_slice(&[b'v'; 100_000]);
    set.extend_from_slice(b"\r\n");
    exchange(&mut stream, &set, b"+OK\r\n");
    let mut writer = stream.try_clone().expect("a second handle");
    let gets = 300;
    let sending = std::thread::spawn(move || {
        writer.write_all(&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(gets)).expect("it reads on once we read");
        writer.shutdown(Shutdown::Write).expect("half closed");
    });
    eventually("replies to be held back", || (server.metric("fawn_output_held_bytes") > 0).then_some(()));
    let replies = read_to_end(&mut stream);
    sending.join().expect("all was sent");
    assert_eq!(replies.len(), gets * (100_000 + 11));
}

#[test]
fn garbage_is_answered_and_closed_alone() {
    let server = Server::start(&[]);
    let mut other = connect(server.resp);
    for garbage in [&b"*-5\r\n"[..], b"*1\r\n$-7\r\n", b"*1\r\n:3\r\n", b"*99999999999\r\n"] {
        let mut stream = connect(server.resp);
        stream.write_all(garbage).expect("it reads");
        // Further input that the server never reads must not turn its reply into a reset.
        let _ = stream.write_all(&[0; 200_000]);
        let _ = stream.shutdown(Shutdown::Write);
        let reply = read_to_end(&mut stream);
        assert!(garbage == b"*-5\r\n" || reply.starts_with(b"-ERR"), "{garbage:?}: {}", reply.escape_ascii());
        exchange(&mut other, b"PING\r\n", b"+PONG\r\n");
    }
}

#[test]
fn idle_connections_cost_little() {
    let server = Server::start(&[]);
    let connections = 4000;
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let mut first = connect(server.resp);
    exchange(&mut first, &long_set("k", 8000), b"+OK\r\n");
    // No connection keeps the memory of its last reply.
    let reply = [&b"$8000\r\n"[..], &[b'v'; 8000], b"\r\n"].concat();
    exchange(&mut first, b"GET k\r\n", &reply);
    let before = resident();
    let mut idle: Vec<_> = (0..connections).map(|_| connect(server.resp)).collect();
    idle.iter_mut().for_each(|stream| exchange(stream, b"GET k\r\n", &reply));
    let each = resident().saturating_sub(before) / connections;
    assert!(each <= 1536, "{each} bytes per idle connection");
}

/// Sends a `SET` of a value of this length; returns the reply.
fn long_set(key: &str, bytes: usize) -> Vec<u8> {
    let mut request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len()).into_bytes();
    request.resize(request.len() + bytes, b'v');
    request.extend_from_slice(b"\r\n");
    request
}

/// Lets one client begin a request that takes nearly all of the budget (8 MiB, an eighth of the memory),
/// and another client send one that has to wait for it.
fn crowd(server: &Server, begun: &[u8]) -> (std::net::TcpStream, std::thread::JoinHandle<std::net::TcpStream>) {
    let mut first = connect(server.resp);
    first.write_all(begun).expect("it reads");
    eventually("room to be taken", || (server.metric("fawn_input_held_bytes") >= 7_000_000).then_some(()));
    let mut second = connect(server.resp);
    let sending = std::thread::spawn(move || {
        second.write_all(&long_set("second", 3_000_000)).expect("it is read in the end");
        second
    });
    eventually("the second to wait", || (server.metric("fawn_input_waiting") == 1).then_some(()));
    (first, sending)
}

#[test]
fn long_requests_take_turns_where_there_is_no_room_for_all() {
    let server = Server::start(&[]);
    let request = long_set("first", 7_000_000);
    let (begun, rest) = request.split_at(100_000);
    let (mut first, sending) = crowd(&server, begun);
    // Small requests continue meanwhile.
    let mut other = connect(server.resp);
    exchange(&mut other, b"SET k v\r\nGET k\r\n", b"+OK\r\n$1\r\nv\r\n");
    assert_eq!(server.metric("fawn_input_waiting"), 1);
    exchange(&mut first, rest, b"+OK\r\n");
    let mut second = sending.join().expect("all was sent");
    exchange(&mut second, b"", b"+OK\r\n");
    exchange(&mut other, b"STRLEN first\r\nSTRLEN second\r\n", b":7000000\r\n:3000000\r\n");
    // Longer than the whole budget: it is admitted because no other request is.
    exchange(&mut other, &long_set("longest", 8 << 20), b"+OK\r\n");
    assert_eq!((server.metric("fawn_input_held_bytes"), server.metric("fawn_connections_dropped_total")), (0, 0));
}

#[test]
fn a_slow_sender_is_dropped_while_others_wait_for_memory() {
    let server = Server::start(&[]);
    let (mut first, sending) = crowd(&server, &long_set("first", 7_000_000)[..100_000]);
    let mut second = sending.join().expect("all was sent");
    exchange(&mut second, b"", b"+OK\r\n");
    assert_eq!(server.metric("fawn_connections_dropped_total"), 1);
    let mut end = [0];
    assert!(matches!(first.read(&mut end), Ok(0) | Err(_)), "its connection is over");
    exchange(&mut second, b"EXISTS first second\r\n", b":1\r\n");
    // Without waiting requests a slow sender may take its time.
    let mut alone = connect(server.resp);
    alone.write_all(&long_set("alone", 7_000_000)[..100_000]).expect("it reads");
    eventually("room to be taken", || (server.metric("fawn_input_held_bytes") >= 7_000_000).then_some(()));
    alone.set_read_timeout(Some(Duration::from_millis(2200))).expect("a timeout");
    assert!(alone.read(&mut end).is_err(), "its connection is still open after two periods");
    assert_eq!((server.metric("fawn_input_waiting"), server.metric("fawn_connections_dropped_total")), (0, 1));
}

/// A connection that ends in the middle of an admitted request leaves its place to others, even to one that exceeds
/// the budget alone.
#[test]
fn who_leaves_in_a_long_request_leaves_its_place() {
    let server = Server::start(&[]);
    let mut gone = connect(server.resp);
    gone.write_all(&long_set("gone", 7_000_000)[..100_000]).expect("it reads");
    eventually("room to be taken", || (server.metric("fawn_input_held_bytes") >= 7_000_000).then_some(()));
    drop(gone);
    eventually("room to be free", || (server.metric("fawn_input_held_bytes") == 0).then_some(()));
    let mut other = connect(server.resp);
    exchange(&mut other, &long_set("longest", 8 << 20), b"+OK\r\n");
}

/// A request that would fit waits behind an earlier one that does not, and waiting costs no iterations.
#[test]
fn long_requests_wait_in_order_and_quietly() {
    let server = Server::start(&[]);
    let request = long_set("first", 7_000_000);
    let (begun, rest) = request.split_at(100_000);
    let (mut first, sending) = crowd(&server, begun);
    let mut third = connect(server.resp);
    third.write_all(&long_set("third", 40_000)).expect("the kernel holds it");
    eventually("the third to wait", || (server.metric("fawn_input_waiting") == 2).then_some(()));
    let before = server.metric("fawn_loop_iterations_total");
    std::thread::park_timeout(Duration::from_millis(200));
    let iterations = server.metric("fawn_loop_iterations_total") - before;
    assert!(iterations <= 20, "{iterations} iterations while three connections wait");
    exchange(&mut first, rest, b"+OK\r\n");
    exchange(&mut sending.join().expect("all was sent"), b"", b"+OK\r\n");
    exchange(&mut third, b"", b"+OK\r\n");
}

/// Requests too short for admission are bounded all the same: the connection with the longest one is closed.
#[test]
fn short_incomplete_requests_are_bounded_together() {
    let server = Server::start(&[]);
    let mut other = connect(server.resp);
    let begun = &long_set("short", 16_000)[..15_000];
    let mut clients: Vec<_> = (0..1500).map(|_| connect(server.resp)).collect();
    for client in &mut clients {
        // A connection that was closed meanwhile may refuse it.
        let _ = client.write_all(begun);
    }
    eventually("some to be closed", || (server.metric("fawn_connections_dropped_total") > 100).then_some(()));
    let held_bytes = server.metric("fawn_input_held_bytes");
    assert!(held_bytes <= 16 << 20, "{held_bytes} bytes");
    exchange(&mut other, b"PING\r\n", b"+PONG\r\n");
}

/// Timers of the event loop alone end connections: nothing else wakes the idle server.
#[test]
fn an_idle_server_ends_what_is_due() {
    let server = Server::start(&["--stall-timeout", "300ms", "--durability", "everysec"]);
    // Told to go, the client stays.
    let mut stays = connect(server.resp);
    exchange(&mut stays, b"QUIT\r\n", b"+OK\r\n");
    assert!(read_to_end(&mut stays).is_empty());
    let mut slow = connect(server.resp);
    exchange(&mut slow, &long_set("k", 100_000), b"+OK\r\n");
    slow.write_all(&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(300)).expect("it reads");
    let mut other = connect(server.resp);
    exchange(&mut other, b"SET a 1\r\nSET b 2\r\n", b"+OK\r\n+OK\r\n");
    let syncs = server.metric("fawn_log_syncs_total");
    std::thread::park_timeout(Duration::from_millis(2500));
    // A report shows the state before the iteration that it causes.
    let page = crate::harness::http(server.admin, "GET", "/metrics").1;
    let value = |name: &str| {
        let values =
            page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{shard=\"")?.split_once("} "));
        values.map(|(_, value)| value.parse::<u64>().expect("a number")).sum::<u64>()
    };
    assert_eq!((value("fawn_connections"), value("fawn_connections_dropped_total")), (1, 1));
    assert!(value("fawn_log_syncs_total") > syncs, "the writes were synced");
}

/// The deadline of a connection that has ended does not end the next one in its place.
#[test]
fn a_place_taken_over_keeps_no_deadline() {
    let server = Server::start(&[]);
    let mut gone = connect(server.resp);
    exchange(&mut gone, b"QUIT\r\n", b"+OK\r\n");
    assert!(read_to_end(&mut gone).is_empty());
    drop(gone);
    eventually("its end", || (server.metric("fawn_connections") == 0).then_some(()));
    let mut next = connect(server.resp);
    exchange(&mut next, b"PING\r\n", b"+PONG\r\n");
    next.set_read_timeout(Some(Duration::from_millis(1500))).expect("a timeout");
    assert!(next.read(&mut [0]).is_err(), "the connection is still open");
    exchange(&mut next, b"PING\r\n", b"+PONG\r\n");
}

/// A reader that recovers and stalls once more is dropped like one that stalls for the first time.
#[test]
fn a_second_stall_is_noticed() {
    let server = Server::start(&["--stall-timeout", "400ms"]);
    let mut slow = connect(server.resp);
    exchange(&mut slow, &long_set("k", 100_000), b"+OK\r\n");
    let (gets, request) = (300, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    slow.write_all(&request.repeat(gets)).expect("it reads");
    eventually("the first stall", || (server.metric("fawn_output_held_bytes") > 0).then_some(()));
    let mut replies = vec![0; gets * (100_000 + 11)];
    slow.read_exact(&mut replies).expect("everything comes");
    std::thread::park_timeout(Duration::from_millis(600));
    assert_eq!(server.metric("fawn_connections_dropped_total"), 0);
    // More than the kernel's buffers, which have grown by now.
    slow.write_all(&request.repeat(5 * gets)).expect("it reads");
    eventually("the end of the second stall", || (server.metric("fawn_connections_dropped_total") == 1).then_some(()));
}

/// More connections become ready at once than the kernel reports in one piece.
#[test]
fn a_crowd_that_speaks_at_once_is_served() {
    let server = Server::start(&[]);
    let mut crowd: Vec<_> = (0..2500).map(|_| connect(server.resp)).collect();
    crowd.iter_mut().for_each(|stream| exchange(stream, b"PING\r\n", b"+PONG\r\n"));
    server.signal(rustix::process::Signal::STOP);
    crowd.iter_mut().for_each(|stream| stream.write_all(b"PING\r\n").expect("the kernel holds it"));
    server.signal(rustix::process::Signal::CONT);
    crowd.iter_mut().for_each(|stream| exchange(stream, b"", b"+PONG\r\n"));
}

/// The kernel reports a waiting connection once, so a loop that had no descriptor for it must try again by itself.
#[test]
fn a_connection_that_found_no_descriptor_is_accepted_later() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), &[]);
    let pid = rustix::process::Pid::from_raw(server.pid().try_into().expect("a process")).expect("a process");
    let limit = |current: Option<u64>| {
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).expect("it is ours").current
    };
    let is_taken = |number: &u64| std::path::Path::new(&format!("/proc/{pid}/fd/{number}")).exists();
    let usual = limit((0..).find(|number| !is_taken(number)));
    let mut late = connect(server.resp);
    eventually("a refusal", || {
        let log = std::fs::read_to_string(dir.path().join("err")).expect("a log");
        log.contains("cannot accept connections").then_some(())
    });
    limit(usual);
    exchange(&mut late, b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn short_requests_that_are_half_sent_hold_little() {
    let server = Server::start(&[]);
    let mut clients: Vec<_> = (0..200).map(|_| connect(server.resp)).collect();
    // In two pieces: the second extends the buffered input.
    let mut sent_bytes = 0;
    for piece in [&b"*2\r\n$3\r\nGET\r\n"[..], b"$3\r\nk"] {
        clients.iter_mut().for_each(|client| client.write_all(piece).expect("it reads"));
        sent_bytes += clients.len() as u64 * piece.len() as u64;
        eventually("all of it to be read", || (server.metric("fawn_received_bytes_total") == sent_bytes).then_some(()));
    }
    let held_bytes = server.metric("fawn_input_held_bytes");
    assert!((sent_bytes..200 * 256).contains(&held_bytes), "{held_bytes} bytes for {sent_bytes} sent");
    for client in &mut clients {
        exchange(client, b"ey\r\n", b"$-1\r\n");
    }
}
