//! Parsers of memcached's commands.
use super::line::{MemcachedLine, Words, expiry, is_key};
use super::{BAD_CHUNK, BAD_FORMAT, ERROR, TOO_LARGE};
use crate::args::{Args, Framing};
use crate::command::EachKey;
use crate::number::parse_u64;
use crate::{
    Command, ConnectionCommand, Decoded, KeyspaceCommand, MemcachedFormat, MemcachedState, MultiCommand,
    MultiReplyEncoder, ReplyFold, ReplyFormat, ServerCommand,
};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update, Version};

const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// The supported arguments of `stats`.
const STATS: [&[u8]; 6] = [b"conns", b"items", b"reset", b"settings", b"sizes", b"slabs"];

/// Parses the end of the line: empty, or `noreply`. `None`: other words follow.
#[inline]
fn noreply(mut words: Words<'_>) -> Option<bool> {
    match (words.next(), words.next()) {
        (None, _) => Some(false),
        (Some(b"noreply"), None) => Some(true),
        _ => None,
    }
}

#[inline]
const fn format(format: MemcachedFormat, silent: bool) -> ReplyFormat {
    if silent { ReplyFormat::Silent } else { ReplyFormat::Memcached(format) }
}

#[inline]
const fn found<'a>(command: Command<'a>, line: &MemcachedLine<'a>) -> Decoded<'a> {
    Decoded::Command { command, consumed: line.consumed }
}

#[cold]
fn refuse<'a>(message: &'static [u8], line: &MemcachedLine<'a>) -> Decoded<'a> {
    Decoded::refuse(message, line.consumed)
}

fn update<'a>(line: &MemcachedLine<'a>, key: &'a [u8], update: Update<'a>, format: ReplyFormat) -> Decoded<'a> {
    found(Command::Single { request: Request::Update { key, update }, format }, line)
}

pub(crate) fn retrieve_and_touch<'a>(line: &MemcachedLine<'a>, cas: bool) -> Decoded<'a> {
    let mut words = line.words;
    let Some(exptime) = words.next() else { return refuse(ERROR, line) };
    if words.rest().is_empty() {
        return refuse(ERROR, line);
    }
    match expiry(exptime) {
        Some(expiry) => retrieve(line, words, EachKey::Touch(expiry), cas),
        None => refuse(BAD_EXPTIME, line),
    }
}

#[inline]
pub(crate) fn retrieve<'a>(line: &MemcachedLine<'a>, keys: Words<'a>, each: EachKey, cas: bool) -> Decoded<'a> {
    let raw = keys.rest();
    // Fast path: the text of several keys is not a valid key, because it contains spaces.
    if is_key(raw) {
        let request = match each {
            EachKey::Touch(expiry) => {
                let condition = ExpiryCondition::Always;
                Request::Update { key: raw, update: Update::Touch { expiry, condition, return_value: true } }
            }
            _ => Request::Get { key: raw },
        };
        return found(Command::Single { request, format: ReplyFormat::Memcached(MemcachedFormat::Get { cas }) }, line);
    }
    let mut count = 0;
    for key in Words(raw) {
        if !is_key(key) {
            return refuse(BAD_FORMAT, line);
        }
        count += 1;
    }
    if count == 0 {
        return refuse(ERROR, line);
    }
    let gather = MultiReplyEncoder::new(ReplyFold::Each(ReplyFormat::Memcached(MemcachedFormat::Value { cas })), count);
    found(Command::Multi(MultiCommand { keys: Args::new(raw, count, Framing::Words), each, multi_reply: gather }), line)
}

/// The action of a storage command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    Set(Condition),
    Cas,
    Append,
    Prepend,
}

pub(crate) fn store<'a>(state: &mut MemcachedState, line: &MemcachedLine<'a>, storage: Storage) -> Decoded<'a> {
    let mut words = line.words;
    let (Some(key), Some(flags), Some(exptime), Some(bytes)) = (words.next(), words.next(), words.next(), words.next())
    else {
        return refuse(ERROR, line);
    };
    let version = if storage == Storage::Cas { words.next() } else { None };
    if storage == Storage::Cas && version.is_none() {
        return refuse(ERROR, line);
    }
    // Without the length, the start of the next command is unknown. Like memcached, continue after the line.
    let Some(value_bytes) = parse_u64(bytes).filter(|bytes| *bytes <= u64::from(u32::MAX)) else {
        return refuse(BAD_FORMAT, line);
    };
    let header = || {
        let flags = u32::try_from(parse_u64(flags)?).ok()?;
        let expiry = expiry(exptime)?;
        let condition = match (storage, version) {
            (Storage::Set(condition), _) => condition,
            (_, Some(version)) => Condition::VersionIs(Version::from_u64(parse_u64(version)?)),
            (_, None) => Condition::Always,
        };
        let silent = noreply(words)?;
        is_key(key).then_some((flags, expiry, condition, silent))
    };
    let Some((flags, expiry, condition, silent)) = header() else {
        return state.refuse_block(BAD_FORMAT, line, value_bytes + 2);
    };
    let unless_silent = |message: &'static [u8]| if silent { b"" } else { message };
    if value_bytes > state.limits.value_bytes_max as u64 {
        return state.refuse_block(unless_silent(TOO_LARGE), line, value_bytes + 2);
    }
    let (start, consumed) = (line.consumed, line.consumed + value_bytes as usize + 2);
    let value = match line.input.get(start..consumed) {
        None => return Decoded::Incomplete { need_bytes: consumed },
        Some([value @ .., b'\r', b'\n']) => value,
        // No line end at the announced length. Exactly the announced length is dropped, as in memcached, so that the
        // position of the next command does not depend on how the bytes arrived.
        Some(_) => return Decoded::refuse(unless_silent(BAD_CHUNK), consumed),
    };
    let update = match storage {
        Storage::Set(_) | Storage::Cas => Update::Set { value, flags, expiry, condition, return_previous: false },
        Storage::Append => Update::Append { bytes: value, create: false, condition },
        Storage::Prepend => Update::Prepend { bytes: value, create: false, condition },
    };
    let format = format(MemcachedFormat::Stored, silent);
    Decoded::Command { command: Command::Single { request: Request::Update { key, update }, format }, consumed }
}

pub(crate) fn delete<'a>(line: &MemcachedLine<'a>) -> Decoded<'a> {
    let mut words = line.words;
    let Some(key) = words.next() else { return refuse(ERROR, line) };
    if !is_key(key) {
        return refuse(BAD_FORMAT, line);
    }
    // Old clients send a time of 0, which has no effect.
    if words.clone().next() == Some(b"0") {
        words.next();
    }
    let Some(silent) = noreply(words) else { return refuse(BAD_DELETE, line) };
    let condition = Condition::Always;
    update(line, key, Update::Delete { condition, return_previous: false }, format(MemcachedFormat::Deleted, silent))
}

pub(crate) fn count<'a>(line: &MemcachedLine<'a>, make: fn(u64) -> Update<'a>) -> Decoded<'a> {
    let mut words = line.words;
    let (Some(key), Some(delta)) = (words.next(), words.next()) else { return refuse(ERROR, line) };
    let Some(silent) = noreply(words) else { return refuse(ERROR, line) };
    match (is_key(key), parse_u64(delta)) {
        (false, _) => refuse(BAD_FORMAT, line),
        (true, None) => refuse(BAD_DELTA, line),
        (true, Some(delta)) => update(line, key, make(delta), format(MemcachedFormat::Number, silent)),
    }
}

pub(crate) fn touch<'a>(line: &MemcachedLine<'a>) -> Decoded<'a> {
    let mut words = line.words;
    let (Some(key), Some(exptime)) = (words.next(), words.next()) else { return refuse(ERROR, line) };
    let Some(silent) = noreply(words) else { return refuse(ERROR, line) };
    match (is_key(key), expiry(exptime)) {
        (false, _) => refuse(BAD_FORMAT, line),
        (true, None) => refuse(BAD_EXPTIME, line),
        (true, Some(expiry)) => {
            let condition = ExpiryCondition::Always;
            let touch = Update::Touch { expiry, condition, return_value: false };
            update(line, key, touch, format(MemcachedFormat::Touched, silent))
        }
    }
}

pub(crate) fn flush_all<'a>(line: &MemcachedLine<'a>) -> Decoded<'a> {
    let mut words = line.words;
    let delay = match words.clone().next() {
        None | Some(b"noreply") => Expiry::Never,
        Some(word) => {
            words.next();
            match expiry(word) {
                Some(delay) => delay,
                None => return refuse(BAD_EXPTIME, line),
            }
        }
    };
    let Some(silent) = noreply(words) else { return refuse(ERROR, line) };
    let at_ms = match delay.absolute(line.now) {
        Expiry::AtMs(at_ms) if at_ms > line.now.0 => at_ms,
        _ => 0,
    };
    let format = format(MemcachedFormat::Ok, silent);
    found(Command::Keyspace(KeyspaceCommand::FlushAll { at_ms, format }), line)
}

pub(crate) fn verbosity<'a>(line: &MemcachedLine<'a>) -> Decoded<'a> {
    let mut words = line.words;
    let (Some(level), more) = (words.next(), words) else { return refuse(ERROR, line) };
    let silent = match (level, noreply(more)) {
        (b"noreply", Some(_)) => true,
        (_, None) => return refuse(ERROR, line),
        (level, _) if parse_u64(level).is_none() => return refuse(BAD_FORMAT, line),
        (_, Some(silent)) => silent,
    };
    found(Command::Connection(ConnectionCommand::Verbosity(format(MemcachedFormat::Ok, silent))), line)
}

/// A command without arguments.
pub(crate) fn bare<'a>(line: &MemcachedLine<'a>, connection: ConnectionCommand<'a>) -> Decoded<'a> {
    if line.words.rest().is_empty() { found(Command::Connection(connection), line) } else { refuse(ERROR, line) }
}

pub(crate) fn stats<'a>(line: &MemcachedLine<'a>) -> Decoded<'a> {
    match (line.words.rest(), line.words.clone().next()) {
        (b"", _) => found(Command::Server(ServerCommand::Stats { argument: None }), line),
        (rest, Some(word)) if rest == word && STATS.contains(&word) => {
            found(Command::Server(ServerCommand::Stats { argument: Some(word) }), line)
        }
        _ => refuse(ERROR, line),
    }
}
