//! Parsers of memcached's commands.
use super::line::{LineResult, MemcachedLine, Words, checked, expiry, is_key};
use super::{BAD_CHUNK, BAD_FORMAT, ERROR, TOO_LARGE};
use crate::args::{Args, Framing};
use crate::command::EachKey;
use crate::number::parse_u64;
use crate::{
    Command, ConnectionCommand, Decoded, KeyspaceCommand, MemcachedFormat, MemcachedState, MultiCommand,
    MultiReplyEncoder, ReplyFold, ReplyFormat, ServerCommand,
};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, TimeMs, Update, Version};

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

fn update<'a>(key: &'a [u8], update: Update<'a>, format: ReplyFormat) -> LineResult<'a> {
    Ok(Command::Single { request: Request::Update { key, update }, format })
}

pub(crate) fn retrieve_and_touch<'a>(mut words: Words<'a>, cas: bool) -> LineResult<'a> {
    let exptime = words.next().ok_or(ERROR)?;
    if words.rest().is_empty() {
        return Err(ERROR);
    }
    retrieve(words, EachKey::Touch(expiry(exptime).ok_or(BAD_EXPTIME)?), cas)
}

#[inline]
pub(crate) fn retrieve<'a>(keys: Words<'a>, each: EachKey, cas: bool) -> LineResult<'a> {
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
        return Ok(Command::Single { request, format: ReplyFormat::Memcached(MemcachedFormat::Get { cas }) });
    }
    let mut count = 0;
    for key in Words(raw) {
        if !is_key(key) {
            return Err(BAD_FORMAT);
        }
        count += 1;
    }
    if count == 0 {
        return Err(ERROR);
    }
    let gather = MultiReplyEncoder::new(ReplyFold::Each(ReplyFormat::Memcached(MemcachedFormat::Value { cas })), count);
    Ok(Command::Multi(MultiCommand { keys: Args::new(raw, count, Framing::Words), each, multi_reply: gather }))
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
        return line.decoded(Err(ERROR));
    };
    let version = if storage == Storage::Cas { words.next() } else { None };
    if storage == Storage::Cas && version.is_none() {
        return line.decoded(Err(ERROR));
    }
    // Without the length, the start of the next command is unknown. Like memcached, continue after the line.
    let Some(value_bytes) = parse_u64(bytes).filter(|bytes| *bytes <= u64::from(u32::MAX)) else {
        return line.decoded(Err(BAD_FORMAT));
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

#[inline]
pub(crate) fn delete(mut words: Words<'_>) -> LineResult<'_> {
    let key = checked(words.next().ok_or(ERROR)?)?;
    // Old clients send a time of 0, which has no effect.
    if words.clone().next() == Some(b"0") {
        words.next();
    }
    let silent = noreply(words).ok_or(BAD_DELETE)?;
    let delete = Update::Delete { condition: Condition::Always, return_previous: false };
    update(key, delete, format(MemcachedFormat::Deleted, silent))
}

#[inline]
pub(crate) fn count<'a>(mut words: Words<'a>, make: impl FnOnce(u64) -> Update<'a>) -> LineResult<'a> {
    let (key, delta) = (words.next().ok_or(ERROR)?, words.next().ok_or(ERROR)?);
    let format = format(MemcachedFormat::Number, noreply(words).ok_or(ERROR)?);
    update(checked(key)?, make(parse_u64(delta).ok_or(BAD_DELTA)?), format)
}

pub(crate) fn touch(mut words: Words<'_>) -> LineResult<'_> {
    let (key, exptime) = (words.next().ok_or(ERROR)?, words.next().ok_or(ERROR)?);
    let format = format(MemcachedFormat::Touched, noreply(words).ok_or(ERROR)?);
    let (key, expiry) = (checked(key)?, expiry(exptime).ok_or(BAD_EXPTIME)?);
    update(key, Update::Touch { expiry, condition: ExpiryCondition::Always, return_value: false }, format)
}

pub(crate) fn flush_all(mut words: Words<'_>, now: TimeMs) -> LineResult<'_> {
    let delay = match words.clone().next() {
        None | Some(b"noreply") => Expiry::Never,
        Some(word) => {
            words.next();
            expiry(word).ok_or(BAD_EXPTIME)?
        }
    };
    let format = format(MemcachedFormat::Ok, noreply(words).ok_or(ERROR)?);
    let at_ms = match delay.absolute(now) {
        Expiry::AtMs(at_ms) if at_ms > now.0 => at_ms,
        _ => 0,
    };
    Ok(Command::Keyspace(KeyspaceCommand::FlushAll { at_ms, format }))
}

pub(crate) fn verbosity(mut words: Words<'_>) -> LineResult<'_> {
    let level = words.next().ok_or(ERROR)?;
    let silent = noreply(words).ok_or(ERROR)? || level == b"noreply";
    if level != b"noreply" && parse_u64(level).is_none() {
        return Err(BAD_FORMAT);
    }
    Ok(Command::Connection(ConnectionCommand::NoEffect(format(MemcachedFormat::Ok, silent))))
}

/// A command without arguments.
pub(crate) fn bare<'a>(words: Words<'a>, connection: ConnectionCommand<'a>) -> LineResult<'a> {
    if words.rest().is_empty() { Ok(Command::Connection(connection)) } else { Err(ERROR) }
}

pub(crate) fn stats(mut words: Words<'_>) -> LineResult<'_> {
    let argument = match (words.rest(), words.next()) {
        (b"", _) => None,
        (rest, Some(word)) if rest == word && STATS.contains(&word) => Some(word),
        _ => return Err(ERROR),
    };
    Ok(Command::Server(ServerCommand::Stats { argument }))
}
