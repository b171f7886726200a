//! Tests of the client codecs: each side reads what the other side writes, cut at any position.
use fawn_wire::client::{ParsedReply, memcached, resp};
use fawn_wire::glob;

#[test]
fn resp_replies_are_read_at_any_cut() {
    let input = b"*4\r\n$3\r\nabc\r\n$-1\r\n*2\r\n:1\r\n-ERR x\r\n%1\r\n+a\r\n_\r\n";
    let ParsedReply::Reply { reply: resp::RespReply::Array(items), consumed } = resp::parse_reply(input) else {
        panic!()
    };
    assert_eq!(consumed, input.len());
    let items: Vec<_> = items.collect();
    assert_eq!(items[0], resp::RespReply::Bulk(b"abc"));
    assert_eq!(items[1], resp::RespReply::Null);
    assert!(
        matches!(items[2], resp::RespReply::Array(inner) if inner.last() == Some(resp::RespReply::Error(b"ERR x")))
    );
    assert!(matches!(items[3], resp::RespReply::Map(inner) if inner.len() == 2));
    for cut in 0..input.len() {
        let mut parser = resp::ReplyParser::new();
        let ParsedReply::Incomplete { need_bytes } = parser.parse(&input[..cut]) else { panic!("cut at {cut}") };
        assert!(need_bytes > cut && need_bytes <= input.len());
        assert_eq!(parser.parse(input), resp::parse_reply(input), "cut at {cut}");
    }
}

#[test]
fn malformed_replies_are_named() {
    for input in [&b"?\r\n"[..], b"$x\r\n", b":x\r\n", b"$3\r\nabcd\r\n", b"*-2\r\n", b"$-2\r\n", b"+a\rb"] {
        assert!(matches!(resp::parse_reply(input), ParsedReply::Malformed { .. }), "{}", input.escape_ascii());
    }
    for input in [&b"VALUE k\r\n"[..], b"VALUE k x 1\r\n", b"VALUE k 0 1\r\nabc\r\n", b"HELLO\r\n"] {
        assert!(matches!(memcached::parse_reply(input), ParsedReply::Malformed { .. }), "{}", input.escape_ascii());
    }
}

#[test]
fn memcached_requests_and_replies() {
    let mut out = Vec::new();
    memcached::encode_words(&["get", "k"], &mut out);
    memcached::encode_set(b"k", b"v", &mut out);
    let store =
        memcached::StoreCommand { verb: "cas", key: b"k", flags: 1, exptime: -1, version: Some(9), noreply: true };
    memcached::encode_store(&store, b"xy", &mut out);
    assert_eq!(out, b"get k\r\nset k 0 0 1\r\nv\r\ncas k 1 -1 2 9 noreply\r\nxy\r\n");
    let input = b"VALUE k 7 2 9\r\nab\r\nEND\r\n";
    let value = memcached::MemcachedReply::Value { key: b"k", flags: 7, version: Some(9), value: b"ab" };
    assert_eq!(memcached::parse_reply(input), ParsedReply::Reply { reply: value, consumed: 19 });
    for cut in 0..19 {
        assert!(matches!(memcached::parse_reply(&input[..cut]), ParsedReply::Incomplete { .. }));
    }
    assert_eq!(
        memcached::parse_reply(b"5 \r\n"),
        ParsedReply::Reply { reply: memcached::MemcachedReply::Number(5), consumed: 4 }
    );
}

/// A match takes time proportional to the product of both lengths.
#[test]
fn a_glob_pattern_is_bounded() {
    let star = |len: usize| [b"*".repeat(len - 1), b"k".to_vec()].concat();
    assert!(glob::matches(&star(256), b"k"));
    assert!(!glob::matches(&star(257), b"k"));
}

#[test]
fn glob_patterns() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("", "", true),
        ("", "a", false),
        ("a*c", "abbc", true),
        ("a*c", "abbd", false),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("[a-c]x", "bx", true),
        ("[c-a]x", "bx", true),
        ("[^a-c]x", "bx", false),
        ("[abc", "c", true),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("*a*b*", "xxaxxbxx", true),
        ("*a*b*", "xxbxxaxx", false),
        ("h[\\]]llo", "h]llo", true),
    ] {
        assert_eq!(glob::matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
    }
}
