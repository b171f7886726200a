//! RESP transcripts: requests, and the replies with Redis's texts.
use crate::driver::{NOW, run};
use fawn_types::request::{ExpiryCondition, Update};
use fawn_types::{Condition, Expiry, OperationError, Reply, Request};
use fawn_wire::{Codec, CodecLimits, Command, Decoded, KeyspaceCommand, Protocol};

/// Each line is an inline command, which differs from an array only in the framing, and its reply.
#[test]
fn transcripts() {
    for (line, expected) in TRANSCRIPTS {
        let trace = run(Protocol::Resp, format!("{line}\r\n").as_bytes());
        let out = trace.out.escape_ascii().to_string().replace("\\r\\n", "~");
        assert_eq!(out, *expected, "{line}\n{}", trace.log);
    }
}

const TRANSCRIPTS: &[(&str, &str)] = &[
    ("PING", "+PONG~"),
    ("ping hi", "$2~hi~"),
    ("PING a b", "-ERR wrong number of arguments for \\'ping\\' command~"),
    ("ECHO \"a b\\n\"", "$4~a b\\n~"),
    ("ECHO 'it\\'s'", "$4~it\\'s~"),
    ("ECHO \"\\x41\"", "$1~A~"),
    ("ECHO 'a\\n'", "$3~a\\\\n~"),
    ("ECHO \"open", "-ERR Protocol error: unbalanced quotes in request~"),
    ("ECHO \"a\"b", "-ERR Protocol error: unbalanced quotes in request~"),
    ("GET k", "$5~value~"),
    ("GET none", "$-1~"),
    ("get", "-ERR wrong number of arguments for \\'get\\' command~"),
    ("foo a b", "-ERR unknown command \\'foo\\', with args beginning with: \\'a\\' \\'b\\' ~"),
    ("SET a 1", "+OK~"),
    ("SET k 1 NX", "$-1~"),
    ("SET k 1 NX XX", "-ERR syntax error~"),
    ("SET k 1 GET", "$5~value~"),
    ("SET a 1 EX 0", "-ERR invalid expire time in \\'set\\' command~"),
    ("SET a 1 EX x", "-ERR value is not an integer or out of range~"),
    ("SET a 1 EX 9223372036854775807", "-ERR invalid expire time in \\'set\\' command~"),
    ("SET a 1 EX 1 PX 1", "-ERR syntax error~"),
    ("SET a 1 KEEPTTL EX 1", "-ERR syntax error~"),
    ("SET a 1 EX", "-ERR syntax error~"),
    ("SET a 1 EX x EX 10", "+OK~"),
    ("SET a 1 EX 10 EX x", "-ERR value is not an integer or out of range~"),
    ("SET a 1 KEEPTTL KEEPTTL", "+OK~"),
    ("SET a 1 FLAGS 4294967295", "+OK~"),
    ("SET a 1 FLAGS", "-ERR syntax error~"),
    ("SET a 1 FLAGS 4294967296", "-ERR value is not an integer or out of range~"),
    ("SET a 1 FLAGS -1", "-ERR value is not an integer or out of range~"),
    ("SET a 1 PERSIST", "-ERR syntax error~"),
    ("SET a 1 BLA", "-ERR syntax error~"),
    ("SETNX k 1", ":0~"),
    ("SETNX a 1", ":1~"),
    ("SETEX a 0 v", "-ERR invalid expire time in \\'setex\\' command~"),
    ("PSETEX a 10 v", "+OK~"),
    ("GETSET k v", "$5~value~"),
    ("GETDEL none", "$-1~"),
    ("GETEX k PERSIST", "$5~value~"),
    ("GETEX k PERSIST persist", "$5~value~"),
    ("GETEX k EX 0 EX 10", "$5~value~"),
    ("GETEX k PERSIST EX 10", "-ERR syntax error~"),
    ("GETEX k EX 10 PX 10", "-ERR syntax error~"),
    ("GETEX k KEEPTTL", "-ERR syntax error~"),
    ("GETEX k EX", "-ERR syntax error~"),
    ("APPEND k abc", ":8~"),
    ("STRLEN k", ":5~"),
    ("STRLEN none", ":0~"),
    ("INCR n", ":1~"),
    ("DECRBY n 5", ":-5~"),
    ("DECRBY n -9223372036854775808", "-ERR decrement would overflow~"),
    ("INCRBY n 1x", "-ERR value is not an integer or out of range~"),
    ("INCRBY n 01", "-ERR value is not an integer or out of range~"),
    ("INCRBY n -0", "-ERR value is not an integer or out of range~"),
    ("INCRBY n \"\"", "-ERR value is not an integer or out of range~"),
    ("MGET k none", "*2~$5~value~$-1~"),
    ("MGET k", "*1~$5~value~"),
    ("MSET a 1 b 2", "+OK~"),
    ("MSET a 1 b", "-ERR wrong number of arguments for \\'mset\\' command~"),
    ("DEL k", ":1~"),
    ("DEL k none k", ":2~"),
    ("UNLINK none", ":0~"),
    ("EXISTS k k none", ":2~"),
    ("TYPE k", "+string~"),
    ("TYPE none", "+none~"),
    ("EXPIRE k 10", ":1~"),
    ("EXPIRE none 10", ":0~"),
    ("EXPIRE k 10 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible~"),
    ("EXPIRE k 10 GT LT", "-ERR GT and LT options at the same time are not compatible~"),
    ("EXPIRE k 10 FOO", "-ERR Unsupported option FOO~"),
    ("EXPIRE k 9223372036854775807", "-ERR invalid expire time in \\'expire\\' command~"),
    ("PEXPIRE k 9223372036854775807", "-ERR invalid expire time in \\'pexpire\\' command~"),
    ("TTL k", ":2~"),
    ("PTTL k", ":1600~"),
    ("TTL none", ":-2~"),
    ("EXPIRETIME k", ":1700000002~"),
    ("PEXPIRETIME k", ":1700000001600~"),
    ("PERSIST k", ":1~"),
    ("DBSIZE", ":1~"),
    ("SCAN 0 MATCH * COUNT 5 TYPE string", "*2~$1~0~*1~$1~k~"),
    ("SCAN x", "-ERR invalid cursor~"),
    ("SCAN 0 COUNT 0", "-ERR syntax error~"),
    ("SCAN 0 MATCH", "-ERR syntax error~"),
    ("FLUSHALL", "+OK~"),
    ("FLUSHDB ASYNC", "+OK~"),
    ("FLUSHALL NOW", "-ERR syntax error~"),
    ("SELECT 0", "+OK~"),
    ("SELECT 1", "-ERR DB index is out of range~"),
    ("HELLO 4", "-NOPROTO unsupported protocol version~"),
    ("HELLO x", "-ERR Protocol version is not an integer or out of range~"),
    ("HELLO 3 FOO", "-ERR Syntax error in HELLO option \\'FOO\\'~"),
    ("HELLO 2 AUTH root x", "-WRONGPASS invalid username-password pair or user is disabled.~"),
    ("RESET", "+RESET~"),
    ("CLIENT ID", ":5~"),
    ("CLIENT GETNAME", "$-1~"),
    ("CLIENT SETNAME app\r\nCLIENT GETNAME", "+OK~$3~app~"),
    ("CLIENT SETINFO LIB-NAME x", "+OK~"),
    ("CLIENT SETINFO FOO x", "-ERR Unrecognized option \\'FOO\\'~"),
    ("CLIENT FOO", "-ERR unknown subcommand \\'FOO\\'. Try CLIENT HELP.~"),
    ("CLIENT", "-ERR wrong number of arguments for \\'client\\' command~"),
    ("CONFIG GET", "-ERR wrong number of arguments for \\'config|get\\' command~"),
    ("QUIT\r\nPING", "+OK~"),
    ("", ""),
    ("HELLO 3\r\nGET none\r\nCLIENT GETNAME\r\nRESET\r\nGET none", HELLO),
];

const HELLO: &str = "%7~$6~server~$4~fawn~$7~version~$5~7.0.0~$5~proto~:3~$2~id~:5~$4~mode~$10~standalone~$4~role~\
                     $6~master~$7~modules~*0~_~_~+RESET~$-1~";

/// Broken framing: one error, then the connection is closed.
#[test]
fn protocol_errors_are_fatal() {
    for (input, expected) in [
        (&b"*x\r\n"[..], "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999999999999999999999", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$999999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$4\r\nPINGxx", "expected a line end after the bulk string"),
        (b"*1\rx$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*1\r\n$4\rxPING\r\n", "invalid bulk length"),
        (b"*2\r\n$3\r\nGET\r\n$\r\n\r\n", "invalid bulk length"),
    ] {
        let trace = run(Protocol::Resp, input);
        assert!(trace.closed, "{}", input.escape_ascii());
        assert_eq!(String::from_utf8_lossy(&trace.out), format!("-ERR Protocol error: {expected}\r\n"));
    }
    assert!(run(Protocol::Resp, &[b'a'; 70_000]).closed);
}

/// Names are compared whole, whatever bytes they begin with.
#[test]
fn a_name_with_leading_zeros_is_unknown() {
    let out = run(Protocol::Resp, &encoded(&[b"\0GET", b"k"])).out;
    assert!(out.starts_with(b"-ERR unknown command"), "{}", out.escape_ascii());
}

/// Empty arrays have no effect and no reply.
#[test]
fn empty_arrays_are_ignored() {
    assert_eq!(run(Protocol::Resp, b"*0\r\n*-1\r\n\r\n*1\r\n$4\r\nPING\r\n").out, b"+PONG\r\n");
}

/// A value beyond the limit is rejected at once and dropped as it arrives; the connection remains open.
#[test]
fn a_value_too_long_is_dropped() {
    let limits = CodecLimits { value_bytes_max: 70_000, ..CodecLimits::default() };
    let mut input = b"*5\r\n$3\r\nSET\r\n$1\r\na\r\n$70001\r\n".to_vec();
    input.extend_from_slice(&[b'x'; 70_001]);
    input.extend_from_slice(b"\r\n$2\r\nEX\r\n$2\r\n10\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    let trace = crate::driver::feed(Protocol::Resp, limits, input.chunks(1000));
    let text = String::from_utf8_lossy(&trace.out).into_owned();
    assert!(text.starts_with("-ERR string exceeds maximum allowed size: 70001 bytes where 70000"), "{text}");
    assert!(text.ends_with("\r\n$5\r\nvalue\r\n") && text.lines().count() == 3, "{text}");
}

fn encoded(args: &[&[u8]]) -> Vec<u8> {
    let args: Vec<_> = args.iter().map(|arg| arg.to_vec()).collect();
    let mut input = Vec::new();
    fawn_wire::client::resp::encode_command(&args, &mut input);
    input
}

/// Wherever a read ends, the rest of a rejected request is dropped once, and nothing after it.
#[test]
fn a_value_too_long_is_dropped_in_any_pieces() {
    let limits = CodecLimits { value_bytes_max: 0, ..CodecLimits::default() };
    let mut input = encoded(&[b"SET", b"a", &[b'x'; 65_536], b"EX", b"10"]);
    input.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    for cut in input.len() - 60..input.len() {
        let (front, back) = input.split_at(cut);
        let trace = crate::driver::feed(Protocol::Resp, limits, [front, back]);
        let text = String::from_utf8_lossy(&trace.out).into_owned();
        assert!(text.starts_with("-ERR string exceeds") && text.ends_with("split the value\r\n+PONG\r\n"), "{text}");
    }
}

/// The fast path reads no request out of the bytes of a rejected one.
#[test]
fn the_fast_path_waits_for_the_end_of_a_rejected_request() {
    let limits = CodecLimits { value_bytes_max: 0, ..CodecLimits::default() };
    let mut codec = Codec::new(Protocol::Resp, limits);
    let get = encoded(&[b"GET", b"k"]);
    assert!(codec.decode_fast(&get).is_some());
    assert!(matches!(codec.decode(b"*1\r\n$65536\r\n", NOW), Decoded::Error { fatal: false, .. }));
    assert_eq!(codec.decode_fast(&get), None);
    assert!(matches!(codec.decode(&get, NOW), Decoded::Skip { .. }));
}

/// A request, value or key of exactly the maximum length is accepted.
#[test]
fn limits_are_inclusive() {
    let limits = CodecLimits { value_bytes_max: 70_000, request_bytes_max: 140_000 };
    let long = [b'x'; 70_000];
    let feed = |input: &[u8]| crate::driver::feed(Protocol::Resp, limits, [input]);
    assert_eq!(feed(&encoded(&[b"SET", b"a", &long])).out, b"+OK\r\n");
    assert_eq!(feed(&encoded(&[b"MSET", b"a", &long])).out, b"+OK\r\n", "a value is no key");
    assert_eq!(feed(&encoded(&[b"GET", &long[..65_535]])).out, b"$-1\r\n");
    let request = encoded(&[b"MSET", b"a", &long, b"b", &long[..69_952]]);
    assert_eq!(request.len(), 140_000);
    assert_eq!(feed(&request).out, b"+OK\r\n");
    let refused = feed(&encoded(&[b"MSET", b"a", &long, b"b", &long[..69_953]]));
    let text = String::from_utf8_lossy(&refused.out).into_owned();
    assert!(refused.closed && text.starts_with("-ERR Protocol error: request longer than 140000 bytes"), "{text}");
    let most = run(Protocol::Resp, b"*1048576\r\n");
    assert!(!most.closed && most.out.is_empty());
}

/// A request is executed when its last byte is there, not with the first of the next one.
#[test]
fn a_whole_request_waits_for_nothing() {
    let input = encoded(&[b"SET", b"k", &[b'x'; 200], b"EX", b"10"]);
    for cut in 0..input.len() {
        let (front, back) = input.split_at(cut);
        let trace = crate::driver::feed(Protocol::Resp, CodecLimits::default(), [front, back]);
        assert_eq!(trace.out, b"+OK\r\n", "cut at {cut}");
    }
}

/// Replies to a request on several keys, some of which failed: the first error stands for all.
#[test]
fn failed_keys_fail_counts_and_batches() {
    let (first, second) = (Reply::Error(OperationError::Overloaded), Reply::Error(OperationError::Unavailable));
    for line in ["DEL a b c\r\n", "MSET a 1 b 2 c 3\r\n"] {
        let mut codec = Codec::new(Protocol::Resp, CodecLimits::default());
        let Decoded::Command { command: Command::Multi(multi), .. } = codec.decode(line.as_bytes(), NOW) else {
            panic!("{line}")
        };
        let (mut encoder, mut out, mut expected) = (multi.multi_reply, Vec::new(), Vec::new());
        encoder.begin(&mut out);
        for (request, reply) in multi.requests().zip([&Reply::Deleted, &first, &second]) {
            encoder.add(request.key(), reply, &mut out);
        }
        encoder.finish(&mut out);
        fawn_wire::resp::encode::error(OperationError::Overloaded, &mut expected);
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected), "{line}");
    }
}

#[test]
fn a_scan_step_is_bounded() {
    let mut codec = Codec::new(Protocol::Resp, CodecLimits::default());
    let Decoded::Command { command: Command::Keyspace(KeyspaceCommand::Scan { count, .. }), .. } =
        codec.decode(b"SCAN 0 COUNT 1000000\r\n", NOW)
    else {
        panic!("a scan")
    };
    assert_eq!(count, 10_000);
}

#[test]
fn a_scan_with_a_long_pattern_is_refused() {
    for (len, is_refused) in [(256, false), (257, true)] {
        let trace = run(Protocol::Resp, &encoded(&[b"SCAN", b"0", b"MATCH", &b"a".repeat(len)]));
        let reply = String::from_utf8_lossy(&trace.out);
        assert_eq!(reply.contains("-ERR pattern longer than 256 bytes"), is_refused, "{len} bytes: {reply}");
    }
}

/// A key beyond the limit is rejected by every command.
#[test]
fn a_key_too_long_is_refused() {
    let key = vec![b'k'; 65_536];
    let none = b"v".to_vec();
    for args in [vec![b"GET".to_vec(), key.clone()], vec![b"MSET".to_vec(), b"a".to_vec(), none.clone(), key, none]] {
        let mut input = Vec::new();
        fawn_wire::client::resp::encode_command(&args, &mut input);
        assert_eq!(run(Protocol::Resp, &input).out, b"-ERR key longer than 65535 bytes\r\n");
    }
}

/// An array that arrives in small pieces is not parsed again from its start: the work is linear.
#[test]
fn a_long_array_is_resumed() {
    let args: Vec<String> = std::iter::once("DEL".into()).chain((0..200_000).map(|i| i.to_string())).collect();
    let mut input = Vec::new();
    fawn_wire::client::resp::encode_command(&args, &mut input);
    let trace = crate::driver::feed(Protocol::Resp, CodecLimits::default(), input.chunks(input.len() / 20_000));
    assert_eq!(trace.out, b":0\r\n");
    assert!(trace.log.starts_with("Multi"));
}

fn single(line: &str) -> Request<'static> {
    let input: &'static [u8] = format!("{line}\r\n").into_bytes().leak();
    match Codec::new(Protocol::Resp, CodecLimits::default()).decode(input, NOW) {
        Decoded::Command { command: Command::Single { request, .. }, .. } => request,
        other => panic!("{other:?}"),
    }
}

/// Relative times stay relative: the head makes them absolute. Options become to the conditions of their name.
#[test]
fn options_mean_what_they_say() {
    let set = |expiry, condition, return_previous| Request::Update {
        key: b"a",
        update: Update::Set { value: b"v", flags: 0, expiry, condition, return_previous },
    };
    let (at, after) = (|ms| Expiry::AtMs(ms), |ms| Expiry::InMs(ms));
    assert_eq!(single("SET a v EX 10 XX"), set(after(10_000), Condition::Exists, false));
    assert_eq!(single("SET a v px 10 nx get"), set(after(10), Condition::Absent, true));
    assert_eq!(single("SET a v EXAT 10"), set(at(10_000), Condition::Always, false));
    assert_eq!(single("SET a v GET PXAT 10"), set(at(10), Condition::Always, true));
    assert_eq!(single("SET a v KEEPTTL"), set(Expiry::Keep, Condition::Always, false));
    assert_eq!(single("SET a v PX 5 PX 10"), set(after(10), Condition::Always, false), "the last one counts");
    let flagged =
        Update::Set { value: b"v", flags: 7, expiry: at(10), condition: Condition::Always, return_previous: false };
    assert_eq!(single("SET a v PXAT 10 flags 7"), Request::Update { key: b"a", update: flagged });
    let touch = |expiry, condition| Request::Update {
        key: b"a",
        update: Update::Touch { expiry, condition, return_value: false },
    };
    assert_eq!(single("EXPIRE a 10 GT"), touch(after(10_000), ExpiryCondition::Later));
    assert_eq!(single("EXPIRE a 10 XX GT"), touch(after(10_000), ExpiryCondition::Later));
    assert_eq!(single("PEXPIRE a 10 LT"), touch(after(10), ExpiryCondition::Earlier));
    assert_eq!(single("PEXPIRE a 10 LT XX"), touch(after(10), ExpiryCondition::EarlierThanOne));
    assert_eq!(single("EXPIREAT a 10 NX"), touch(at(10_000), ExpiryCondition::HasNone));
    assert_eq!(single("PEXPIREAT a -5 XX"), touch(at(1), ExpiryCondition::HasOne));
    assert_eq!(single("PEXPIREAT a 0"), touch(at(1), ExpiryCondition::Always), "not never");
    assert_eq!(single("EXPIRE a 0"), touch(after(0), ExpiryCondition::Always));
    assert_eq!(single("EXPIRE a -1"), touch(at(1), ExpiryCondition::Always), "in the past by every clock");
    assert_eq!(single("GETEX a"), Request::Get { key: b"a" });
    assert_eq!(single("PERSIST a"), touch(Expiry::Never, ExpiryCondition::HasOne));
}
