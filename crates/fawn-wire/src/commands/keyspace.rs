//! Parsers of Redis's commands on keys of any type, and on the whole keyspace.
use super::strings::{multi, read, update};
use crate::command::EachKey;
use crate::glob::PATTERN_BYTES_MAX;
use crate::number::{parse_i64_strict, parse_u64};
use crate::resp::command_args::CommandArgs;
use crate::resp::decode::ParseResult;
use crate::resp::parse_error::{NOT_AN_INTEGER, PATTERN_TOO_LONG, ParseError, SYNTAX};
use crate::{Command, KeyspaceCommand, ReplyFold, RespFormat};
use fawn_types::{Condition, Update};

/// Default number of keys that a scan step examines, as in Redis.
const SCAN_COUNT: usize = 10;
/// Maximum number of keys that a scan step examines: a longer step would delay other requests.
const SCAN_COUNT_MAX: usize = 10_000;

pub(super) fn del<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count > 2 {
        return multi(args, EachKey::Delete, ReplyFold::Count, 1);
    }
    delete(args, false, RespFormat::Flag)
}

/// A removal of one key.
pub(super) fn delete<'a>(args: &CommandArgs<'a>, return_previous: bool, format: RespFormat) -> ParseResult<'a> {
    update(args, Update::Delete { condition: Condition::Always, return_previous }, format)
}

/// `EXISTS`, and `TOUCH`, which is the same because there are no access times to update.
pub(super) fn exists<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count > 2 {
        return multi(args, EachKey::Get, ReplyFold::Count, 1);
    }
    read(args, RespFormat::Flag)
}

pub(super) fn flushall<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let known = |word: &[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if args.count > 2 || args.get(1).is_some_and(|word| !known(word)) {
        return Err(SYNTAX);
    }
    Ok(Command::Keyspace(KeyspaceCommand::FlushAll { at_ms: 0, format: args.format(RespFormat::OkOrNull) }))
}

pub(super) fn scan<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let cursor = parse_u64(args.arg(1)).ok_or(ParseError::Borrowed(b"-ERR invalid cursor\r\n"))?;
    let (mut pattern, mut count, mut kind) = (None, SCAN_COUNT, None);
    let mut options = args.from(2);
    while let Some(word) = options.next() {
        let value = options.next().ok_or(SYNTAX)?;
        if word.eq_ignore_ascii_case(b"MATCH") {
            if value.len() > PATTERN_BYTES_MAX {
                return Err(PATTERN_TOO_LONG);
            }
            pattern = Some(value);
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            let asked = parse_i64_strict(value).ok_or(NOT_AN_INTEGER)?;
            count = usize::try_from(asked).ok().filter(|count| *count > 0).ok_or(SYNTAX)?.min(SCAN_COUNT_MAX);
        } else if word.eq_ignore_ascii_case(b"TYPE") {
            kind = Some(value);
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(Command::Keyspace(KeyspaceCommand::Scan { cursor, pattern, count, kind }))
}
