//! Several shards as one server: any connection reaches all keys, limits are per process, one shutdown.
use crate::harness::{Reaped, Server, connect, eventually, exchange, fawn, http, read_to_end, run_refused};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

const THREE: [&str; 4] = ["--shards", "3", "--segment", "64K"];

/// A metric's value per shard.
fn metrics(server: &Server, name: &str) -> Vec<u64> {
    let page = http(server.admin, "GET", "/metrics").1;
    let values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{shard=\"")?.split_once("} "));
    values.map(|(_, value)| value.parse().expect("a number")).collect()
}

fn info(client: &mut TcpStream, section: &str) -> String {
    client.write_all(format!("INFO {section}\r\n").as_bytes()).expect("it reads");
    let mut text = [0; 4096];
    let got = client.read(&mut text).expect("it answers");
    String::from_utf8_lossy(&text[..got]).into_owned()
}

/// Enough keys that every shard has some: one has none with a probability of 3·(2/3)^60.
fn crowd(address: SocketAddr) -> Vec<TcpStream> {
    (0..60).map(|_| connect(address)).collect()
}

#[test]
fn every_connection_sees_all_keys_also_after_a_restart_and_a_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    for (round, signal) in [Signal::TERM, Signal::KILL, Signal::TERM].into_iter().enumerate() {
        let mut server = Server::start_in(dir.path(), &THREE);
        let mut crowd = crowd(server.resp);
        if round > 0 {
            exchange(&mut crowd[0], b"DBSIZE\r\n", b":60\r\n");
        }
        for (at, client) in crowd.iter_mut().enumerate() {
            if round > 0 {
                exchange(client, format!("GET key{at}\r\n").as_bytes(), format!("$1\r\n{}\r\n", round - 1).as_bytes());
            }
            exchange(client, format!("SET key{at} {round}\r\n").as_bytes(), b"+OK\r\n");
        }
        for (at, client) in crowd.iter_mut().rev().enumerate() {
            exchange(client, format!("GET key{at}\r\n").as_bytes(), format!("$1\r\n{round}\r\n").as_bytes());
        }
        // Any shard reports the counts of all, a moment later.
        for client in crowd.iter_mut().take(12) {
            eventually("a count of all keys", || info(client, "keyspace").contains("db0:keys=60,").then_some(()));
        }
        let mut memcached = connect(server.memcached);
        exchange(&mut memcached, b"get key7\r\n", format!("VALUE key7 0 1\r\n{round}\r\nEND\r\n").as_bytes());
        let (accepted, keys) = (metrics(&server, "fawn_connections_accepted_total"), metrics(&server, "fawn_keys"));
        assert!(accepted.len() == 3 && accepted.iter().all(|count| *count > 0), "{accepted:?}: not spread");
        assert!(keys.len() == 3 && keys.iter().all(|count| *count > 0) && keys.iter().sum::<u64>() == 60, "{keys:?}");
        let batches = [
            metrics(&server, "fawn_shard_messages_sent_total"),
            metrics(&server, "fawn_shard_messages_received_total"),
        ];
        assert!(batches.iter().flatten().all(|count| *count > 0), "{batches:?}");
        server.signal(signal);
        assert_eq!(server.wait(), (signal == Signal::TERM).then_some(0));
    }
}

#[test]
fn the_limit_on_connections_is_the_processs() {
    let server = Server::start(&[&THREE[..], &["--max-connections", "60"]].concat());
    let mut crowd = crowd(server.resp);
    crowd.iter_mut().for_each(|stream| exchange(stream, b"PING\r\n", b"+PONG\r\n"));
    for _ in 0..12 {
        assert_eq!(read_to_end(&mut connect(server.resp)), b"-ERR max number of clients reached\r\n");
    }
    assert_eq!(server.metric("fawn_connections_refused_total"), 12);
    let is_counted = |client: &mut TcpStream| info(client, "stats").contains("rejected_connections:12\r\n");
    eventually("the count of all shards", || is_counted(&mut crowd[0]).then_some(()));
    // Each closed connection frees a permit, whichever shard accepts next.
    for _ in 0..12 {
        drop(crowd.pop());
    }
    let again = || {
        let mut next = connect(server.resp);
        next.write_all(b"PING\r\n").ok()?;
        let mut reply = [0; 7];
        next.read_exact(&mut reply).ok().filter(|()| reply == *b"+PONG\r\n").map(|()| next)
    };
    let _kept: Vec<_> = (0..12).map(|_| eventually("room for another", again)).collect();
    assert_eq!(read_to_end(&mut connect(server.resp)), b"-ERR max number of clients reached\r\n");
}

#[test]
fn idle_shards_take_no_turns() {
    let server = Server::start(&THREE);
    let mut client = connect(server.resp);
    (0..20).for_each(|key| exchange(&mut client, format!("SET k{key} v\r\n").as_bytes(), b"+OK\r\n"));
    // Each shard publishes once after it had work.
    std::thread::park_timeout(Duration::from_millis(400));
    let before = metrics(&server, "fawn_loop_iterations_total");
    std::thread::park_timeout(Duration::from_millis(300));
    let after = metrics(&server, "fawn_loop_iterations_total");
    // The scrape itself is one of each.
    let turns: Vec<_> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    assert!(turns.iter().all(|turns| *turns <= 2), "{turns:?} turns in 300 ms with nothing to do");
}

/// A client that writes keys one after another until the server ends; returns the last acknowledged key.
fn write_until_the_end(mut stream: TcpStream, number: usize) -> usize {
    let mut heard = 0;
    for batch in 0.. {
        let keys = batch * 20..(batch + 1) * 20;
        let requests: String = keys.map(|key| format!("SET c{number}-{key} v\r\n")).collect();
        if stream.write_all(requests.as_bytes()).is_err() {
            break;
        }
        let mut replies = [0; 100];
        let mut got = 0;
        while got < replies.len() {
            match stream.read(&mut replies[got..]) {
                Ok(bytes) if bytes > 0 => got += bytes,
                _ => break,
            }
        }
        assert_eq!(got % 5, 0, "cut within a reply");
        assert!(replies[..got].chunks(5).all(|reply| reply == b"+OK\r\n"), "{}", replies[..got].escape_ascii());
        heard += got / 5;
        if got < replies.len() {
            break;
        }
    }
    heard
}

#[test]
fn what_was_answered_when_it_stops_under_load_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    for mode in ["sync", "everysec"] {
        let dir = dir.path().join(mode);
        std::fs::create_dir(&dir).expect("a directory");
        let flags = [&THREE[..], &["--durability", mode]].concat();
        let mut server = Server::start_in(&dir, &flags);
        let resp = server.resp;
        // Connected before the first write: a busy machine may start a thread only after the stop.
        let client = |number| {
            let stream = connect(resp);
            std::thread::spawn(move || write_until_the_end(stream, number))
        };
        let clients: Vec<_> = (0..12).map(client).collect();
        eventually("some writes", || (server.metric("fawn_writes_total") > 500).then_some(()));
        server.signal(Signal::TERM);
        let told = Instant::now();
        assert_eq!(server.wait(), Some(0));
        assert!(told.elapsed() < Duration::from_secs(5), "{:?}: nobody held it up", told.elapsed());
        let heard: Vec<usize> = clients.into_iter().map(|client| client.join().expect("whole replies")).collect();
        let server = Server::start_in(&dir, &flags);
        let mut client = connect(server.resp);
        for (number, heard) in heard.into_iter().enumerate() {
            for key in (0..heard).rev().take(200) {
                exchange(&mut client, format!("GET c{number}-{key}\r\n").as_bytes(), b"$1\r\nv\r\n");
            }
        }
    }
}

#[test]
fn a_shard_without_clients_serves_the_others_until_all_are_through() {
    let mut server = Server::start(&THREE);
    let mut client = connect(server.resp);
    let value = "v".repeat(10_000);
    for key in 0..8 {
        let set = format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n$10000\r\n{value}\r\n");
        exchange(&mut client, set.as_bytes(), b"+OK\r\n");
    }
    // The replies exceed the kernel's buffers, so at the stop most requests to all shards are still outstanding;
    // two of the shards have no client.
    let requests: String = (0..2400).map(|at| format!("*2\r\n$3\r\nGET\r\n$1\r\n{}\r\n", at % 8)).collect();
    assert!(requests.len() < 64 << 10);
    client.write_all(requests.as_bytes()).expect("it reads");
    eventually("replies to be held back", || (server.metric("fawn_output_held_bytes") > 0).then_some(()));
    server.signal(Signal::TERM);
    std::thread::park_timeout(Duration::from_millis(300));
    let replies = read_to_end(&mut client);
    assert_eq!(replies.len(), 2400 * (10_000 + 10), "{} of 2400", replies.len() / 10_010);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_client_that_takes_nothing_holds_the_end_up_for_its_timeout_only() {
    let mut server = Server::start(&[&THREE[..], &["--shutdown-timeout", "500ms"]].concat());
    let mut client = connect(server.resp);
    let value = "v".repeat(10_000);
    let set = format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n{value}\r\n", value.len());
    exchange(&mut client, set.as_bytes(), b"+OK\r\n");
    let mut others = crowd(server.resp);
    // More replies than the kernel's buffers take, on every shard.
    let requests = b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n".repeat(2000);
    for stream in &mut others {
        stream.set_write_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        // The client may stop reading before all is sent.
        let _ = stream.write_all(&requests);
    }
    server.signal(Signal::TERM);
    let told = Instant::now();
    assert_eq!(server.wait(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
}

/// A server for `address`, with its own directory.
fn rival(dir: &std::path::Path, address: &str, shards: &str) -> Reaped {
    let mut command = fawn();
    command.args(["serve", "--memory", "64M", "--segment", "64K", "--memcached", "off", "--admin", "off"]);
    command.args(["--shards", shards, "--resp", address]).arg("--dir").arg(dir);
    Reaped(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"))
}

#[test]
fn no_other_server_shares_the_port() {
    let server = Server::start(&THREE);
    let dir = tempfile::tempdir().expect("a directory");
    let (data, address) = (dir.path().join("data"), server.resp.to_string());
    for shards in ["1", "2"] {
        let args = ["serve", "--dir", data.to_str().expect("text"), "--memory", "64M", "--shards", shards];
        let args = [&args[..], &["--resp", &address, "--memcached", "off", "--admin", "off"]].concat();
        let (code, error) = run_refused(&args);
        assert!(code == 7 && error.contains(&address) && error.contains("in use"), "{shards}: {code} {error}");
    }
}

#[test]
fn of_two_servers_that_start_at_once_one_gets_the_port() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut rounds, mut attempt) = (0, 0);
    while rounds < 5 {
        let round = attempt;
        attempt += 1;
        assert!(attempt < 20, "every port was taken by something else");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
        let place = |number: usize| dir.path().join(format!("{round}-{number}"));
        let mut rivals = [rival(&place(0), &free, "2"), rival(&place(1), &free, "3")];
        let loser = eventually("one of them to give up", || {
            rivals.iter_mut().find_map(|rival| rival.0.try_wait().expect("it is ours"))
        });
        assert_eq!(loser.code(), Some(7));
        // The winner has the port, but may not listen on it yet.
        let address = free.parse().expect("an address");
        let is_served = eventually("the other one to listen, or to find the port taken by another test", || {
            let is_served = TcpStream::connect(address).is_ok();
            let has_winner = rivals.iter_mut().any(|rival| rival.0.try_wait().expect("it is ours").is_none());
            (is_served || !has_winner).then_some(is_served && has_winner)
        });
        if !is_served {
            continue;
        }
        let mut winner = connect(address);
        exchange(&mut winner, b"PING\r\n", b"+PONG\r\n");
        let alive =
            rivals.iter_mut().filter_map(|rival| rival.0.try_wait().expect("it is ours").is_none().then_some(()));
        assert_eq!(alive.count(), 1, "round {round}");
        rounds += 1;
    }
}
