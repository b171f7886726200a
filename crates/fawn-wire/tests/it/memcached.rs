//! Transcripts of memcached text; the replies were compared with those of memcached 1.6.
use crate::driver::{NOW, feed, run};
use fawn_types::{Expiry, Request, Update};
use fawn_wire::{Codec, CodecLimits, Command, Decoded, KeyspaceCommand, Protocol};

#[test]
fn transcripts() {
    for (input, expected) in TRANSCRIPTS {
        let trace = run(Protocol::Memcached, input.replace('~', "\r\n").as_bytes());
        let out = trace.out.escape_ascii().to_string().replace("\\r\\n", "~");
        assert_eq!(out, *expected, "{input}\n{}", trace.log);
    }
}

const FORMAT: &str = "CLIENT_ERROR bad command line format~";
const DELETE_USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]~";

const TRANSCRIPTS: &[(&str, &str)] = &[
    ("get k~", "VALUE k 7 5~value~END~"),
    ("get k\n", "VALUE k 7 5~value~END~"),
    ("gets k~", "VALUE k 7 5 9~value~END~"),
    ("get none~", "END~"),
    ("get k none k~", "VALUE k 7 5~value~VALUE k 7 5~value~END~"),
    ("gets a  k ~", "VALUE k 7 5 9~value~END~"),
    ("get~", "ERROR~"),
    ("GET k~", "ERROR~"),
    ("~", "ERROR~"),
    ("get a\x01~", FORMAT),
    ("get a\x7f~", FORMAT),
    ("gat 10 k~", "VALUE k 7 5~value~END~"),
    ("gats 10 k none~", "VALUE k 7 5 9~value~END~"),
    ("gat x k~", "CLIENT_ERROR invalid exptime argument~"),
    ("set a 0 0 3~abc~", "STORED~"),
    ("set a 0 0 3 noreply~abc~get none~", "END~"),
    ("set a 0 0 3~abcdef~get none~", "CLIENT_ERROR bad data chunk~ERROR~END~"),
    ("set a 0 0 3~get k~", "CLIENT_ERROR bad data chunk~ERROR~"),
    ("set a 0 0 3 noreply~abcdef~", "ERROR~"),
    ("set a 0 0 3~", ""),
    ("set a 0 0~", "ERROR~"),
    ("set a x 0 3~abc~get none~", "CLIENT_ERROR bad command line format~END~"),
    ("set a 0 0 -1~", FORMAT),
    ("set a 0 0 9000000000~", FORMAT),
    ("add k 0 0 1~x~", "NOT_STORED~"),
    ("replace a 0 0 1~x~", "STORED~"),
    ("append a 0 0 1~x~", "STORED~"),
    ("prepend a 0 0 1 noreply~x~", ""),
    ("cas a 0 0 1 5~x~", "STORED~"),
    ("cas a 0 0 1~x~", "ERROR~ERROR~"),
    ("delete k~", "DELETED~"),
    ("delete none~", "NOT_FOUND~"),
    ("delete k 0 noreply~", ""),
    ("delete k 5~", DELETE_USAGE),
    ("incr k 5~", "5~"),
    ("decr none 5~", "NOT_FOUND~"),
    ("incr k -1~", "CLIENT_ERROR invalid numeric delta argument~"),
    ("incr k 18446744073709551615~", "18446744073709551615~"),
    ("incr k 99999999999999999999~", "CLIENT_ERROR invalid numeric delta argument~"),
    ("incr k 1 noreply~", ""),
    ("touch k 10~", "TOUCHED~"),
    ("touch none 10~", "NOT_FOUND~"),
    ("touch k~", "ERROR~"),
    ("flush_all~", "OK~"),
    ("flush_all noreply~", ""),
    ("flush_all 10 noreply~", ""),
    ("flush_all x~", "CLIENT_ERROR invalid exptime argument~"),
    ("verbosity 1~", "OK~"),
    ("verbosity noreply~", ""),
    ("verbosity~", "ERROR~"),
    ("verbosity x~", "CLIENT_ERROR bad command line format~"),
    ("version~", concat!("VERSION ", env!("CARGO_PKG_VERSION"), "~")),
    ("version x~", "ERROR~"),
    ("stats~", "+server~"),
    ("stats items~", "+server~"),
    ("stats noreply~", "ERROR~"),
    ("quit x~", "ERROR~"),
    ("quit~get k~", ""),
    ("nonsense~", "ERROR~"),
];

/// Requests beyond memcached's own limits are rejected; a data block is dropped, never executed as commands.
#[test]
fn limits_are_told_and_blocks_dropped() {
    let key = "k".repeat(251);
    let input = format!("get {key}\r\nset {key} 0 0 8\r\nget none\r\nget none\r\n");
    let expected = "CLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\nEND\r\n";
    assert_eq!(String::from_utf8_lossy(&run(Protocol::Memcached, input.as_bytes()).out), expected);
    let limits = CodecLimits { value_bytes_max: 100, ..CodecLimits::default() };
    let mut input = b"set a 0 0 101\r\n".to_vec();
    input.extend_from_slice(&b"get k\r\n".repeat(15)[..101]);
    input.extend_from_slice(b"\r\nget none\r\n");
    let out = feed(Protocol::Memcached, limits, input.chunks(7)).out;
    assert_eq!(String::from_utf8_lossy(&out), "SERVER_ERROR object too large for cache\r\nEND\r\n");
    for cut in 0..input.len() {
        let (front, back) = input.split_at(cut);
        assert_eq!(feed(Protocol::Memcached, limits, [front, back]).out, out, "cut at {cut}");
    }
    let silent = b"set a 0 0 101 noreply\r\n".iter().chain(&input[b"set a 0 0 101\r\n".len()..]);
    let silent: Vec<u8> = silent.copied().collect();
    assert_eq!(feed(Protocol::Memcached, limits, [&silent[..]]).out, b"END\r\n");
    let mut longest = b"set a 0 0 100\r\n".to_vec();
    longest.extend_from_slice(&[b'x'; 100]);
    longest.extend_from_slice(b"\r\n");
    assert_eq!(feed(Protocol::Memcached, limits, [&longest[..]]).out, b"STORED\r\n");
    let longest = format!("get {}\r\n", "k".repeat(250));
    assert_eq!(run(Protocol::Memcached, longest.as_bytes()).out, b"END\r\n");
    let trace = run(Protocol::Memcached, &[b'a'; 70_000]);
    assert!(trace.closed && trace.out == b"CLIENT_ERROR line too long\r\n");
}

#[test]
fn exptimes_are_relative_up_to_a_month() {
    let month = 60 * 60 * 24 * 30;
    for (exptime, expected) in [
        (0, Expiry::Never),
        (1, Expiry::InMs(1000)),
        (month, Expiry::InMs(1000 * month as u64)),
        (month + 1, Expiry::AtMs(1000 * (month as u64 + 1))),
        (-1, Expiry::AtMs(1)),
    ] {
        let input = format!("set a 3 {exptime} 1\r\nx\r\n");
        match Codec::new(Protocol::Memcached, CodecLimits::default()).decode(input.as_bytes(), NOW) {
            Decoded::Command { command: Command::Single { request: Request::Update { update, .. }, .. }, .. } => {
                assert!(matches!(update, Update::Set { expiry, flags: 3, .. } if expiry == expected), "{update:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    match Codec::new(Protocol::Memcached, CodecLimits::default()).decode(b"flush_all 2\r\n", NOW) {
        Decoded::Command { command: Command::Keyspace(KeyspaceCommand::FlushAll { at_ms, .. }), .. } => {
            assert_eq!(at_ms, NOW.0 + 2000);
        }
        other => panic!("{other:?}"),
    }
    match Codec::new(Protocol::Memcached, CodecLimits::default()).decode(b"flush_all -1\r\n", NOW) {
        Decoded::Command { command: Command::Keyspace(KeyspaceCommand::FlushAll { at_ms, .. }), .. } => {
            assert_eq!(at_ms, 0, "at once");
        }
        other => panic!("{other:?}"),
    }
}

/// Both extend a value that is there and make no new one.
#[test]
fn append_and_prepend_create_nothing() {
    for name in ["append", "prepend"] {
        let input = format!("{name} a 0 0 1\r\nx\r\n");
        match Codec::new(Protocol::Memcached, CodecLimits::default()).decode(input.as_bytes(), NOW) {
            Decoded::Command {
                command:
                    Command::Single {
                        request:
                            Request::Update {
                                update: Update::Append { create, .. } | Update::Prepend { create, .. }, ..
                            },
                        ..
                    },
                ..
            } => assert!(!create, "{name}"),
            other => panic!("{other:?}"),
        }
    }
}
