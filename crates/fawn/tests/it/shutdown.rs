//! Shutdown: received requests are answered, the exit code is 0 and comes within a bound.
use crate::harness::{Server, connect, exchange, read_to_end};
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
