//! Commands as bytes of both protocols, and the meaning of replies for the histories.
use super::Key;
use super::connection::{CommandKind, PendingCommand};
use crate::history::{KeyRequest, Observed};
use fawn_types::OperationError;
use fawn_wire::Protocol;
use fawn_wire::client::memcached::{self, MemcachedReply, StoreCommand};
use fawn_wire::client::resp::{self, RespReply};

/// A value of a retrieval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FoundValue {
    /// Its key.
    pub key: Vec<u8>,
    /// Its version; `gets` only.
    pub version: Option<u64>,
    /// The value.
    pub value: Vec<u8>,
}

/// The meaning of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ReplyOutcome {
    /// The outcome of each of the command's operations.
    Each(Vec<Observed>),
    /// Whether the whole keyspace was cleared.
    Flushed(Observed),
    /// The number of keys, unless the request failed.
    Size(Option<u64>),
    /// The next cursor and the keys, unless the request failed.
    Scanned(Option<(u64, Vec<Key>)>),
}

impl ReplyOutcome {
    /// Whether the reply is no error.
    pub(super) fn is_served(&self) -> bool {
        match self {
            Self::Each(all) => all.iter().all(|one| !matches!(one, Observed::Unknown | Observed::Refused)),
            Self::Flushed(observed) => *observed != Observed::Unknown,
            Self::Size(size) => size.is_some(),
            Self::Scanned(page) => page.is_some(),
        }
    }
}

/// Appends the command's bytes.
pub(super) fn encode(protocol: Protocol, command: &PendingCommand, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Memcached => encode_memcached(command, out),
        _ => resp::encode_command(&resp_words(command), out),
    }
}

fn resp_words(command: &PendingCommand) -> Vec<Vec<u8>> {
    let names = || command.ops.iter().map(|op| op.key.name());
    let words = |verb: &str| std::iter::once(verb.as_bytes().to_vec());
    match command.kind {
        CommandKind::Single { .. } => {
            command.ops.first().map(|op| single_words(op.key, &op.request)).unwrap_or_default()
        }
        CommandKind::GetAll => words("MGET").chain(names()).collect(),
        CommandKind::DeleteAll => words("DEL").chain(names()).collect(),
        CommandKind::SetAll => {
            let pairs = command.ops.iter().flat_map(|op| match &op.request {
                KeyRequest::Write(value) => [op.key.name(), value.clone()],
                other => unreachable!("MSET writes, found {other:?}"),
            });
            words("MSET").chain(pairs).collect()
        }
        CommandKind::FlushAll => words("FLUSHALL").collect(),
        CommandKind::Size => words("DBSIZE").collect(),
        CommandKind::Scan { cursor, count } => {
            let [cursor, count] = [cursor, count].map(|number| number.to_string().into_bytes());
            words("SCAN").chain([cursor, b"COUNT".to_vec(), count]).collect()
        }
    }
}

fn single_words(key: Key, request: &KeyRequest) -> Vec<Vec<u8>> {
    let text = |ms: &u64| ms.to_string().into_bytes();
    let (verb, more) = match request {
        KeyRequest::WriteExpiring(value, ms) => {
            return vec![b"SET".to_vec(), key.name(), value.clone(), b"PX".to_vec(), text(ms)];
        }
        KeyRequest::ReadExpiring(ms) => return vec![b"GETEX".to_vec(), key.name(), b"PX".to_vec(), text(ms)],
        KeyRequest::ReadPersistent => ("GETEX", Some(b"PERSIST".to_vec())),
        KeyRequest::Expire(ms) => ("PEXPIRE", Some(text(ms))),
        KeyRequest::Persist => ("PERSIST", None),
        KeyRequest::Read => ("GET", None),
        KeyRequest::Write(value) => ("SET", Some(value.clone())),
        KeyRequest::Append(bytes) => ("APPEND", Some(bytes.clone())),
        KeyRequest::Add(1) => ("INCR", None),
        KeyRequest::Add(delta) => ("INCRBY", Some(delta.to_string().into_bytes())),
        KeyRequest::Delete => ("DEL", None),
        KeyRequest::WriteIfAbsent(value) => ("SETNX", Some(value.clone())),
        KeyRequest::Exchange(value) => ("GETSET", Some(value.clone())),
        other => unreachable!("Redis has no {other:?}"),
    };
    [verb.as_bytes().to_vec(), key.name()].into_iter().chain(more).collect()
}

fn encode_memcached(command: &PendingCommand, out: &mut Vec<u8>) {
    let op = match (command.kind, command.ops.as_slice()) {
        (CommandKind::FlushAll, _) => return memcached::encode_words(&[&b"flush_all"[..]], out),
        (CommandKind::Single { .. }, [op]) if op.request != KeyRequest::Read => op,
        (CommandKind::Single { .. } | CommandKind::GetAll, ops) => {
            let names = ops.iter().map(|op| op.key.name());
            let words: Vec<Vec<u8>> = std::iter::once(b"gets".to_vec()).chain(names).collect();
            return memcached::encode_words(&words, out);
        }
        (other, _) => unreachable!("memcached has no {other:?}"),
    };
    let name = op.key.name();
    let (verb, value) = match &op.request {
        KeyRequest::Write(value) | KeyRequest::WriteExpiring(value, _) => ("set", value),
        KeyRequest::WriteIfAbsent(value) => ("add", value),
        KeyRequest::WriteIfPresent(value) => ("replace", value),
        KeyRequest::AppendIfPresent(value) => ("append", value),
        KeyRequest::Swap { new, .. } => ("cas", new),
        KeyRequest::Delete => return memcached::encode_words(&[b"delete", name.as_slice()], out),
        KeyRequest::Expire(ms) => {
            let seconds = (ms / 1_000).to_string();
            return memcached::encode_words(&[b"touch", name.as_slice(), seconds.as_bytes()], out);
        }
        KeyRequest::AddIfPresent(delta) => {
            return memcached::encode_words(&[b"incr", name.as_slice(), delta.to_string().as_bytes()], out);
        }
        other => unreachable!("memcached has no {other:?}"),
    };
    let version = match command.kind {
        CommandKind::Single { version } if verb == "cas" => Some(version),
        _ => None,
    };
    let exptime = if let KeyRequest::WriteExpiring(_, ms) = op.request { (ms / 1_000).cast_signed() } else { 0 };
    let store = StoreCommand { verb, key: &name, flags: 0, exptime, version, noreply: false };
    memcached::encode_store(&store, value, out);
}

/// The outcome of an error: open if it means "try again", because then a write may have taken effect.
fn failed(command: &PendingCommand, text: &[u8]) -> Result<ReplyOutcome, String> {
    use OperationError::{Overloaded, StoreFull, TooFewCopies, Unavailable};
    let is_open = [Unavailable, Overloaded, StoreFull, TooFewCopies]
        .iter()
        .any(|error| text.ends_with(error.to_string().as_bytes()));
    let observed = match command.kind {
        CommandKind::SetAll if text.starts_with(b"CROSSSLOT") => Observed::Refused,
        _ if is_open => Observed::Unknown,
        _ => return Err(unexpected(command, &text.escape_ascii())),
    };
    Ok(match command.kind {
        CommandKind::FlushAll => ReplyOutcome::Flushed(observed),
        CommandKind::Size => ReplyOutcome::Size(None),
        CommandKind::Scan { .. } => ReplyOutcome::Scanned(None),
        _ => ReplyOutcome::Each(vec![observed; command.ops.len()]),
    })
}

fn unexpected(command: &PendingCommand, reply: &dyn std::fmt::Display) -> String {
    let PendingCommand { kind, ops, .. } = command;
    format!("{kind:?} of {ops:?} was answered {reply}")
}

/// The outcome of a RESP reply.
pub(super) fn resp_outcome(command: &PendingCommand, reply: &RespReply<'_>) -> Result<ReplyOutcome, String> {
    if let RespReply::Error(text) = reply {
        return failed(command, text);
    }
    let outcome = match (command.kind, reply) {
        (CommandKind::Single { .. }, reply) => command
            .ops
            .first()
            .and_then(|op| resp_single(&op.request, reply))
            .map(|observed| ReplyOutcome::Each(vec![observed])),
        (CommandKind::GetAll, RespReply::Array(items)) if items.len() == command.ops.len() => {
            let observed = items.map(|item| match item {
                RespReply::Bulk(value) => Some(Observed::Value(Some(value.to_vec()))),
                RespReply::Null => Some(Observed::Value(None)),
                RespReply::Error(_) => Some(Observed::Unknown),
                _ => None,
            });
            observed.collect::<Option<Vec<_>>>().map(ReplyOutcome::Each)
        }
        (CommandKind::SetAll, RespReply::Simple(b"OK")) => {
            Some(ReplyOutcome::Each(vec![Observed::Done; command.ops.len()]))
        }
        (CommandKind::FlushAll, RespReply::Simple(b"OK")) => Some(ReplyOutcome::Flushed(Observed::Done)),
        (CommandKind::DeleteAll, RespReply::Integer(count)) => deleted(command.ops.len(), *count),
        (CommandKind::Size, RespReply::Integer(count)) => Some(ReplyOutcome::Size(Some(count.cast_unsigned()))),
        (CommandKind::Scan { .. }, RespReply::Array(items)) => {
            scanned(*items).map(|page| ReplyOutcome::Scanned(Some(page)))
        }
        _ => None,
    };
    outcome.ok_or_else(|| unexpected(command, &format!("{reply:?}")))
}

/// `DEL` of several keys returns how many existed, so only all or none says which.
fn deleted(keys: usize, count: i64) -> Option<ReplyOutcome> {
    let count = usize::try_from(count).ok().filter(|count| *count <= keys)?;
    let observed = match count {
        0 => Observed::DoneIf(false),
        count if count == keys => Observed::DoneIf(true),
        _ => Observed::Done,
    };
    Some(ReplyOutcome::Each(vec![observed; keys]))
}

fn scanned(items: resp::ReplyItems<'_>) -> Option<(u64, Vec<Key>)> {
    let [RespReply::Bulk(cursor), RespReply::Array(names)] = items.collect::<Vec<_>>()[..] else { return None };
    let keys = names.map(|name| if let RespReply::Bulk(name) = name { Key::parse(name) } else { None });
    Some((std::str::from_utf8(cursor).ok()?.parse().ok()?, keys.collect::<Option<_>>()?))
}

fn resp_single(request: &KeyRequest, reply: &RespReply<'_>) -> Option<Observed> {
    Some(match (request, reply) {
        (request, RespReply::Bulk(value)) if request.returns_value() => Observed::Value(Some(value.to_vec())),
        (request, RespReply::Null) if request.returns_value() => Observed::Value(None),
        (KeyRequest::Write(_) | KeyRequest::WriteExpiring(..), RespReply::Simple(b"OK")) => Observed::Done,
        (KeyRequest::Append(_) | KeyRequest::Add(_), RespReply::Integer(number)) => Observed::Number(*number),
        (
            KeyRequest::Delete | KeyRequest::WriteIfAbsent(_) | KeyRequest::Expire(_) | KeyRequest::Persist,
            RespReply::Integer(hit @ (0 | 1)),
        ) => Observed::DoneIf(*hit == 1),
        _ => return None,
    })
}

/// The outcome of the last line of a memcached reply, after `values`.
pub(super) fn memcached_outcome(
    command: &PendingCommand,
    values: &[FoundValue],
    reply: &MemcachedReply<'_>,
) -> Result<ReplyOutcome, String> {
    if let MemcachedReply::Error(text) = reply {
        return failed(command, text);
    }
    let is_read = command.ops.iter().all(|op| op.request == KeyRequest::Read);
    let outcome = match (command.kind, reply) {
        (CommandKind::FlushAll, MemcachedReply::Ok) => Some(ReplyOutcome::Flushed(Observed::Done)),
        (CommandKind::Single { .. } | CommandKind::GetAll, MemcachedReply::End) if is_read => {
            retrieved(command, values)
        }
        (CommandKind::Single { .. }, reply) if values.is_empty() => command
            .ops
            .first()
            .and_then(|op| memcached_single(&op.request, reply))
            .map(|observed| ReplyOutcome::Each(vec![observed])),
        _ => None,
    };
    outcome.ok_or_else(|| unexpected(command, &format!("{values:?} {reply:?}")))
}

/// Values come in the order of their keys; absent keys have none.
fn retrieved(command: &PendingCommand, values: &[FoundValue]) -> Option<ReplyOutcome> {
    let mut values = values.iter().peekable();
    let observed = command.ops.iter().map(|op| {
        let name = op.key.name();
        Observed::Value(values.next_if(|found| found.key == name).map(|found| found.value.clone()))
    });
    let observed = observed.collect();
    values.next().is_none().then_some(ReplyOutcome::Each(observed))
}

fn memcached_single(request: &KeyRequest, reply: &MemcachedReply<'_>) -> Option<Observed> {
    Some(match (request, reply) {
        (KeyRequest::Write(_) | KeyRequest::WriteExpiring(..), MemcachedReply::Stored) => Observed::Done,
        (KeyRequest::Expire(_), MemcachedReply::Touched) => Observed::DoneIf(true),
        (KeyRequest::Expire(_), MemcachedReply::NotFound) => Observed::DoneIf(false),
        (KeyRequest::AddIfPresent(_), MemcachedReply::Number(sum)) => Observed::Number(i64::try_from(*sum).ok()?),
        (
            KeyRequest::WriteIfAbsent(_)
            | KeyRequest::WriteIfPresent(_)
            | KeyRequest::AppendIfPresent(_)
            | KeyRequest::Swap { .. },
            MemcachedReply::Stored,
        )
        | (KeyRequest::Delete, MemcachedReply::Deleted) => Observed::DoneIf(true),
        (
            KeyRequest::WriteIfAbsent(_) | KeyRequest::WriteIfPresent(_) | KeyRequest::AppendIfPresent(_),
            MemcachedReply::NotStored,
        )
        | (KeyRequest::Swap { .. }, MemcachedReply::Exists)
        | (KeyRequest::Delete | KeyRequest::Swap { .. } | KeyRequest::AddIfPresent(_), MemcachedReply::NotFound) => {
            Observed::DoneIf(false)
        }
        _ => return None,
    })
}
