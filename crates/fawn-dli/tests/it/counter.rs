//! Tests of the counters and of parsing numbers in values.
use crate::{NOW, apply, entry, written};
use fawn_dli::{parse_signed, parse_unsigned};
use fawn_types::operation::Effect;
use fawn_types::{OperationError, Reply, Update};

#[test]
fn signed_numbers_are_strict() {
    let good: [(&[u8], i64); 6] = [
        (b"0", 0),
        (b"-1", -1),
        (b"10", 10),
        (b"9223372036854775807", i64::MAX),
        (b"-9223372036854775808", i64::MIN),
        (b"-9223372036854775807", i64::MIN + 1),
    ];
    for (text, number) in good {
        assert_eq!(parse_signed(text), Some(number), "{}", text.escape_ascii());
    }
    let bad: [&[u8]; 13] = [
        b"",
        b"-",
        b"+1",
        b" 1",
        b"1 ",
        b"01",
        b"-0",
        b"00",
        b"1.0",
        b"1\0",
        b"0x1",
        b"9223372036854775808",
        b"-9223372036854775809",
    ];
    for text in bad {
        assert_eq!(parse_signed(text), None, "{}", text.escape_ascii());
    }
}

#[test]
fn unsigned_numbers_are_lenient() {
    let good: [(&[u8], u64); 6] =
        [(b"0", 0), (b"007", 7), (b"9  ", 9), (b" 9", 9), (b"12 x", 12), (b"18446744073709551615", u64::MAX)];
    for (text, number) in good {
        assert_eq!(parse_unsigned(text), Some(number), "{}", text.escape_ascii());
    }
    let bad: [&[u8]; 7] = [b"", b" ", b"-1", b"x", b"1x", b"18446744073709551616", b"++1"];
    for text in bad {
        assert_eq!(parse_unsigned(text), None, "{}", text.escape_ascii());
    }
}

#[test]
fn redis_counter() {
    assert_eq!(apply(Update::AddSigned { delta: -5 }, None).reply, Reply::Signed(-5));
    let old = entry(b"10", NOW.0 + 5);
    let outcome = apply(Update::AddSigned { delta: -11 }, Some(old.as_ref()));
    assert_eq!(outcome.reply, Reply::Signed(-1));
    assert_eq!(written(&outcome), (b"-1".to_vec(), 7, NOW.0 + 5));
    for (value, delta, error) in [
        ("9223372036854775807", 1, OperationError::Overflow),
        ("-9223372036854775808", -1, OperationError::Overflow),
        ("1 ", 1, OperationError::NotAnInteger),
        ("", 1, OperationError::NotAnInteger),
    ] {
        let old = entry(value.as_bytes(), 0);
        let outcome = apply(Update::AddSigned { delta }, Some(old.as_ref()));
        assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::Error(error)), "{value}");
    }
}

#[test]
fn memcached_counter() {
    let add = |delta| Update::AddUnsigned { delta };
    let subtract = |delta| Update::SubtractUnsigned { delta };
    assert_eq!(apply(add(1), None).reply, Reply::NotFound);
    assert_eq!(apply(subtract(1), None).reply, Reply::NotFound);
    for (update, value, number, text) in [
        (add(1), "99", 100, "100"),
        (add(1), "18446744073709551615", 0, "0                   "),
        (subtract(1), "10", 9, "9 "),
        (subtract(11), "10", 0, "0 "),
        (add(1), "9 ", 10, "10"),
        (add(0), "007", 7, "7  "),
    ] {
        let old = entry(value.as_bytes(), NOW.0 + 5);
        let outcome = apply(update, Some(old.as_ref()));
        assert_eq!(outcome.reply, Reply::Unsigned(number), "{value}");
        assert_eq!(written(&outcome), (text.as_bytes().to_vec(), 7, NOW.0 + 5), "{value}");
    }
    let old = entry(b"", 0);
    let outcome = apply(add(1), Some(old.as_ref()));
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::Error(OperationError::NotANumber)));
}
