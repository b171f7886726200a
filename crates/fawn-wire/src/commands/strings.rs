//! Parsers of Redis's string commands: values and counters.
use super::options::{KeyTime, TimeForm, set_once};
use crate::command::{EachKey, unconditional_set};
use crate::number::parse_i64_strict;
use crate::resp::command_args::CommandArgs;
use crate::resp::decode::ParseResult;
use crate::resp::parse_error::{NOT_AN_INTEGER, ParseError, SYNTAX, arity};
use crate::{Command, MultiCommand, MultiReplyEncoder, ReplyFold, RespFormat};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update};

/// An update of the key at argument 1.
pub(super) fn update<'a>(args: &CommandArgs<'a>, update: Update<'a>, format: RespFormat) -> ParseResult<'a> {
    let request = Request::Update { key: args.key(1)?, update };
    Ok(Command::Single { request, format: args.format(format) })
}

/// A read of the key at argument 1.
pub(super) fn read<'a>(args: &CommandArgs<'a>, format: RespFormat) -> ParseResult<'a> {
    let request = Request::Get { key: args.key(1)? };
    Ok(Command::Single { request, format: args.format(format) })
}

/// A request on several keys: every `step`th argument from 1 on.
pub(super) fn multi<'a>(args: &CommandArgs<'a>, each: EachKey, fold: ReplyFold, step: usize) -> ParseResult<'a> {
    let keys = args.keys(step)?;
    Ok(Command::Multi(MultiCommand { keys, each, multi_reply: MultiReplyEncoder::new(fold, (args.count - 1) / step) }))
}

pub(super) fn set<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let value = args.arg(2);
    if args.count == 3 {
        return update(args, unconditional_set(value), RespFormat::OkOrNull);
    }
    let (mut time, mut condition, mut return_previous, mut flags) = (None, None, false, 0);
    let (mut options, mut amount) = (args.from(3), &b""[..]);
    while let Some(word) = options.next() {
        if let Some(form) = TimeForm::of_word(word) {
            amount = options.next().ok_or(SYNTAX)?;
            set_once(&mut time, KeyTime::At(form))?;
        } else if word.eq_ignore_ascii_case(b"KEEPTTL") {
            set_once(&mut time, KeyTime::Keep)?;
        } else if word.eq_ignore_ascii_case(b"NX") {
            set_once(&mut condition, Condition::Absent)?;
        } else if word.eq_ignore_ascii_case(b"XX") {
            set_once(&mut condition, Condition::Exists)?;
        } else if word.eq_ignore_ascii_case(b"GET") {
            return_previous = true;
        } else if word.eq_ignore_ascii_case(b"FLAGS") {
            // Not in Redis: memcached's client flags, so that a load can restore what a dump has.
            flags = parse_u32(options.next().ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?;
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = time.unwrap_or(KeyTime::Never).expiry("set", amount, args)?;
    let condition = condition.unwrap_or_default();
    let format = if return_previous { RespFormat::Bulk } else { RespFormat::OkOrNull };
    update(args, Update::Set { value, flags, expiry, condition, return_previous }, format)
}

fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_i64_strict(text).and_then(|flags| u32::try_from(flags).ok())
}

pub(super) fn setnx<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let (value, expiry, condition) = (args.arg(2), Expiry::Never, Condition::Absent);
    update(args, Update::Set { value, flags: 0, expiry, condition, return_previous: false }, RespFormat::Flag)
}

/// `SETEX` and `PSETEX`.
pub(super) fn set_expiring<'a>(command: &'static str, form: TimeForm, args: &CommandArgs<'a>) -> ParseResult<'a> {
    let expiry = KeyTime::At(form).expiry(command, args.arg(2), args)?;
    let (value, condition) = (args.arg(3), Condition::Always);
    update(args, Update::Set { value, flags: 0, expiry, condition, return_previous: false }, RespFormat::OkOrNull)
}

pub(super) fn getset<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let (value, expiry, condition) = (args.arg(2), Expiry::Never, Condition::Always);
    update(args, Update::Set { value, flags: 0, expiry, condition, return_previous: true }, RespFormat::Bulk)
}

pub(super) fn getex<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let (mut time, mut options, mut amount) = (None, args.from(2), &b""[..]);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"PERSIST") {
            set_once(&mut time, KeyTime::Never)?;
        } else {
            let form = TimeForm::of_word(word).ok_or(SYNTAX)?;
            amount = options.next().ok_or(SYNTAX)?;
            set_once(&mut time, KeyTime::At(form))?;
        }
    }
    let Some(time) = time else { return read(args, RespFormat::Bulk) };
    let (expiry, condition) = (time.expiry("getex", amount, args)?, ExpiryCondition::Always);
    update(args, Update::Touch { expiry, condition, return_value: true }, RespFormat::Bulk)
}

pub(super) fn append<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let (bytes, condition) = (args.arg(2), Condition::Always);
    update(args, Update::Append { bytes, create: true, condition }, RespFormat::LengthWritten)
}

pub(super) fn decrby<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    // i64::MIN has no negation.
    let delta = args.integer(2)?.checked_neg().ok_or(ParseError::Borrowed(b"-ERR decrement would overflow\r\n"))?;
    update(args, Update::AddSigned { delta }, RespFormat::Counter)
}

pub(super) fn mset<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count.is_multiple_of(2) {
        return Err(arity("mset"));
    }
    multi(args, EachKey::Set, ReplyFold::Atomic(args.format(RespFormat::OkOrNull)), 2)
}
