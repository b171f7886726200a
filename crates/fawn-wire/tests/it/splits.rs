//! Test that the boundaries of reads do not matter: the requests and replies are the same for every cut.
use crate::driver::{feed, run};
use fawn_types::limits::LINE_BYTES_MAX;
use fawn_wire::{CodecLimits, Protocol};

const RESP: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$12\r\nhello\r\nworld\r\nPING\r\n*0\r\n\r\nset b \"x y\" EX 10\r\n\
*7\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$0\r\n\r\n$10\r\n0123456789\r\n$1\r\nz\r\n*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n\
*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$3\r\nGET\r\n*1\r\n$3\r\nFOO\r\n*1\r\n$-2\r\nPING\r\n";

const MEMCACHED: &[u8] = b"set a 0 0 7\r\nab\r\ncde\r\nget k none\r\nset a 0 0 3\r\nabcdef\r\nbogus\r\n\
set a 0 0 100000000\r\nappend a 0 0 1 noreply\r\nx\r\n";

#[test]
fn every_cut_gives_the_same() {
    for (protocol, input) in [(Protocol::Resp, RESP), (Protocol::Memcached, MEMCACHED)] {
        let whole = run(protocol, input);
        assert!(whole.log.lines().count() >= 4, "{}", whole.log);
        for cut in 0..=input.len() {
            let (front, back) = input.split_at(cut);
            assert_eq!(feed(protocol, CodecLimits::default(), [front, back]), whole, "cut at {cut}");
        }
        for size in 1..20 {
            assert_eq!(feed(protocol, CodecLimits::default(), input.chunks(size)), whole, "pieces of {size}");
        }
    }
}

/// A line that is too long is refused also if its end has arrived with it.
#[test]
fn the_longest_line_is_the_same_in_any_reads() {
    for (protocol, name, ok) in
        [(Protocol::Resp, "PING", &b"+PONG\r\n"[..]), (Protocol::Memcached, "get x", b"END\r\n")]
    {
        for (line_bytes, is_taken) in [(LINE_BYTES_MAX, true), (LINE_BYTES_MAX + 1, false)] {
            let input = format!("{name}{}\r\n", " ".repeat(line_bytes - name.len() - 2));
            let whole = run(protocol, input.as_bytes());
            assert_eq!((whole.out == ok, whole.closed), (is_taken, !is_taken), "{name} of {line_bytes} bytes");
            for cut in [1, 100, line_bytes - 3, line_bytes - 2, line_bytes - 1] {
                let (front, back) = input.as_bytes().split_at(cut);
                let cut = feed(protocol, CodecLimits::default(), [front, back]);
                assert_eq!((cut.out, cut.closed), (whole.out.clone(), whole.closed));
            }
        }
        // A line without its end is refused as soon as the end would come too late.
        for (bytes, is_refused) in [(LINE_BYTES_MAX - 1, false), (LINE_BYTES_MAX, true)] {
            assert_eq!(run(protocol, &vec![b'x'; bytes]).closed, is_refused, "{name}: {bytes} bytes");
        }
    }
}

/// Only requests that arrive complete take the fast path. Cut requests must have the same result, valid or not.
#[test]
fn the_shortcut_gives_what_the_long_way_gives() {
    let samples: [&[u8]; 4] = [
        b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
        b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$10\r\n0123456789\r\n",
        b"*2\r\n$3\r\ngEt\r\n$0\r\n\r\n*2\r\n$3\r\nGET\r\n$0005\r\nabcde\r\n",
        b"*3\r\n$3\r\nSeT\r\n$11\r\nkey\r\nkey\r\nk\r\n$0\r\n\r\n",
    ];
    let limits = [CodecLimits::default(), CodecLimits { value_bytes_max: 5, request_bytes_max: 30 }];
    for (sample, limits) in samples.iter().flat_map(|sample| limits.map(|limits| (sample, limits))) {
        // The cut is after the name, within the second argument's length line, so that decoding stops once and resumes.
        let cut = 15;
        for at in 0..sample.len() {
            for byte in 0..=u8::MAX {
                let mut input = sample.to_vec();
                input[at] = byte;
                let (front, back) = input.split_at(cut);
                let (whole, cut) =
                    (feed(Protocol::Resp, limits, [&input[..]]), feed(Protocol::Resp, limits, [front, back]));
                assert_eq!(whole, cut, "{:?}", String::from_utf8_lossy(&input));
            }
        }
    }
}
