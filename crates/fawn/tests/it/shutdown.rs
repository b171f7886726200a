//! Shutdown: received requests are answered, the exit code is 0 and comes within a bound.
use crate::harness::{Server, connect, eventually, exchange, read_to_end};
use rustix::process::Signal;
use std::io::Write;

#[test]
fn both_signals_end_it_well_and_the_ready_file_goes() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut server = Server::start_in(dir.path(), &[]);
        let mut idle = connect(server.resp);
        exchange(&mut idle, b"PING\r\n", b"+PONG\r\n");
        server.signal(signal);
        assert!(read_to_end(&mut idle).is_empty(), "closed in an orderly way");
        assert_eq!(server.wait(), Some(0));
        assert!(!server.ready_file().exists());
    }
}

#[test]
fn replies_end_at_a_whole_one() {
    let mut server = Server::start(&[]);
    let mut busy = connect(server.resp);
    busy.write_all(&b"*1\r\n$4\r\nPING\r\n".repeat(5000)).expect("it reads");
    server.signal(Signal::TERM);
    let replies = read_to_end(&mut busy);
    assert_eq!(replies.len() % 7, 0, "cut within a reply");
    assert_eq!(server.wait(), Some(0));
}

/// A server that waits for a slow client accepts no other ones and reads no more requests.
#[test]
fn a_stopping_server_takes_nothing_new() {
    let mut server = Server::start(&["--stall-timeout", "8s", "--shutdown-timeout", "8s"]);
    let mut slow = connect(server.resp);
    let value = vec![b'v'; 100_000];
    let set = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n", &value[..], b"\r\n"].concat();
    exchange(&mut slow, &set, b"+OK\r\n");
    let gets = 300;
    let mut sender = slow.try_clone().expect("a second handle");
    sender.write_all(&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(gets)).expect("it reads");
    eventually("replies to be held back", || (server.metric("fawn_output_held_bytes") > 0).then_some(()));
    server.signal(Signal::TERM);
    eventually("no more connections", || std::net::TcpStream::connect(server.resp).is_err().then_some(()));
    let replies = read_to_end(&mut slow);
    assert_eq!(replies.len() % (100_000 + 11), 0, "cut within a reply");
    assert_eq!(server.wait(), Some(0));
}
