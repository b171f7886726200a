//! Parsers of Redis's commands on keys of any type, and on the whole keyspace.
use super::strings::{multi, read, update};
use crate::command::Each;
use crate::number::parse_u64;
use crate::resp::decode::Parsed;
use crate::resp::invocation::Invocation;
use crate::resp::refusal::{Refusal, SYNTAX};
use crate::{Command, Fold, Keyspace, RespShape};
use fawn_types::{Condition, Update};

/// Default number of keys that a scan step examines, as in Redis.
const SCAN_COUNT: usize = 10;
/// Maximum number of keys that a scan step examines: a longer step would delay other requests.
const SCAN_COUNT_MAX: usize = 10_000;

pub(super) fn del<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count > 2 {
        return multi(invocation, Each::Delete, Fold::Count, 1);
    }
    let condition = Condition::Always;
    update(invocation, Update::Delete { condition, return_previous: false }, RespShape::Flag)
}

/// `EXISTS`, and `TOUCH`, which is the same because there are no access times to update.
pub(super) fn exists<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count > 2 {
        return multi(invocation, Each::Get, Fold::Count, 1);
    }
    read(invocation, RespShape::Flag)
}

pub(super) fn kind<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::TypeName)
}

pub(super) fn dbsize<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    Ok(Command::Keyspace(Keyspace::DbSize))
}

pub(super) fn flushall<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let known = |word: &[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    match (invocation.get(1), invocation.count) {
        (Some(word), 2) if !known(word) => Err(SYNTAX),
        (_, 1 | 2) => {
            Ok(Command::Keyspace(Keyspace::FlushAll { at_ms: 0, shape: invocation.shape(RespShape::OkOrNull) }))
        }
        _ => Err(SYNTAX),
    }
}

pub(super) fn scan<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let cursor = parse_u64(invocation.arg(1)).ok_or(Refusal::Fixed("-ERR invalid cursor\r\n"))?;
    let (mut pattern, mut count, mut kind) = (None, SCAN_COUNT, None);
    let mut index = 2;
    while index < invocation.count {
        let word = invocation.arg(index);
        let value = invocation.get(index + 1).ok_or(SYNTAX)?;
        if word.eq_ignore_ascii_case(b"MATCH") {
            pattern = Some(value);
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            let asked = invocation.integer(index + 1)?;
            count = usize::try_from(asked).ok().filter(|count| *count > 0).ok_or(SYNTAX)?.min(SCAN_COUNT_MAX);
        } else if word.eq_ignore_ascii_case(b"TYPE") {
            kind = Some(value);
        } else {
            return Err(SYNTAX);
        }
        index += 2;
    }
    Ok(Command::Keyspace(Keyspace::Scan { cursor, pattern, count, kind }))
}
