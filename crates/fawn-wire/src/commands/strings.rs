//! Parsers of Redis's string commands: values and counters.
use super::options::{KeyTime, TimeForm, expiry};
use crate::command::{Each, plain_set};
use crate::resp::decode::Parsed;
use crate::resp::invocation::Invocation;
use crate::resp::refusal::{Refusal, SYNTAX};
use crate::{Command, Fold, Gather, Multi, RespShape};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update};

/// An update of the key at argument 1.
pub(super) fn update<'a>(invocation: &Invocation<'a>, update: Update<'a>, shape: RespShape) -> Parsed<'a> {
    let request = Request::Update { key: invocation.key(1)?, update };
    Ok(Command::Single { request, shape: invocation.shape(shape) })
}

/// A read of the key at argument 1.
pub(super) fn read<'a>(invocation: &Invocation<'a>, shape: RespShape) -> Parsed<'a> {
    let request = Request::Get { key: invocation.key(1)? };
    Ok(Command::Single { request, shape: invocation.shape(shape) })
}

/// A request on several keys: every `step`th argument from 1 on.
pub(super) fn multi<'a>(invocation: &Invocation<'a>, each: Each, fold: Fold, step: usize) -> Parsed<'a> {
    let keys = invocation.keys(step)?;
    Ok(Command::Multi(Multi { keys, each, gather: Gather::new(fold, (invocation.count - 1) / step) }))
}

pub(super) fn get<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::Bulk)
}

pub(super) fn strlen<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::Length)
}

pub(super) fn set<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let value = invocation.arg(2);
    if invocation.count == 3 {
        return update(invocation, plain_set(value), RespShape::OkOrNull);
    }
    let (mut time, mut condition, mut return_previous) = (None, None, false);
    let mut options = invocation.rest(3);
    while let Some(word) = options.next() {
        if let Some(form) = TimeForm::of_word(word) {
            let amount = options.next().ok_or(SYNTAX)?;
            KeyTime::At(form, amount).replace(&mut time)?;
        } else if word.eq_ignore_ascii_case(b"KEEPTTL") {
            KeyTime::Keep.replace(&mut time)?;
        } else if word.eq_ignore_ascii_case(b"NX") {
            only(&mut condition, Condition::Absent)?;
        } else if word.eq_ignore_ascii_case(b"XX") {
            only(&mut condition, Condition::Exists)?;
        } else if word.eq_ignore_ascii_case(b"GET") {
            return_previous = true;
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = match time {
        None => Expiry::Never,
        Some(KeyTime::Keep) => Expiry::Keep,
        Some(KeyTime::Never) => unreachable!("no word of SET says so"),
        Some(KeyTime::At(form, amount)) => expiry("set", amount, form, invocation)?,
    };
    let condition = condition.unwrap_or_default();
    let shape = if return_previous { RespShape::Bulk } else { RespShape::OkOrNull };
    update(invocation, Update::Set { value, flags: 0, expiry, condition, return_previous }, shape)
}

/// Sets the condition. As in Redis, a condition may be repeated, but two different ones are an error.
fn only(slot: &mut Option<Condition>, condition: Condition) -> Result<(), Refusal> {
    match slot.replace(condition) {
        Some(other) if other != condition => Err(SYNTAX),
        _ => Ok(()),
    }
}

pub(super) fn setnx<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let (value, expiry, condition) = (invocation.arg(2), Expiry::Never, Condition::Absent);
    update(invocation, Update::Set { value, flags: 0, expiry, condition, return_previous: false }, RespShape::Flag)
}

pub(super) fn setex<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    set_expiring("setex", TimeForm::EX, invocation)
}

pub(super) fn psetex<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    set_expiring("psetex", TimeForm::PX, invocation)
}

fn set_expiring<'a>(command: &'static str, form: TimeForm, invocation: &Invocation<'a>) -> Parsed<'a> {
    let expiry = expiry(command, invocation.arg(2), form, invocation)?;
    let (value, condition) = (invocation.arg(3), Condition::Always);
    update(invocation, Update::Set { value, flags: 0, expiry, condition, return_previous: false }, RespShape::OkOrNull)
}

pub(super) fn getset<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let (value, expiry, condition) = (invocation.arg(2), Expiry::Never, Condition::Always);
    update(invocation, Update::Set { value, flags: 0, expiry, condition, return_previous: true }, RespShape::Bulk)
}

pub(super) fn getdel<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let condition = Condition::Always;
    update(invocation, Update::Delete { condition, return_previous: true }, RespShape::Bulk)
}

pub(super) fn getex<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let (mut time, mut options) = (None, invocation.rest(2));
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"PERSIST") {
            KeyTime::Never.replace(&mut time)?;
        } else {
            let form = TimeForm::of_word(word).ok_or(SYNTAX)?;
            KeyTime::At(form, options.next().ok_or(SYNTAX)?).replace(&mut time)?;
        }
    }
    let expiry = match time {
        None | Some(KeyTime::Keep) => return get(invocation),
        Some(KeyTime::Never) => Expiry::Never,
        Some(KeyTime::At(form, amount)) => expiry("getex", amount, form, invocation)?,
    };
    let condition = ExpiryCondition::Always;
    update(invocation, Update::Touch { expiry, condition, return_value: true }, RespShape::Bulk)
}

pub(super) fn append<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let (bytes, condition) = (invocation.arg(2), Condition::Always);
    update(invocation, Update::Append { bytes, create: true, condition }, RespShape::LengthWritten)
}

pub(super) fn incr<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    update(invocation, Update::AddSigned { delta: 1 }, RespShape::Counter)
}

pub(super) fn decr<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    update(invocation, Update::AddSigned { delta: -1 }, RespShape::Counter)
}

pub(super) fn incrby<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    update(invocation, Update::AddSigned { delta: invocation.integer(2)? }, RespShape::Counter)
}

pub(super) fn decrby<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    // i64::MIN has no negation.
    let delta = invocation.integer(2)?.checked_neg().ok_or(Refusal::Fixed("-ERR decrement would overflow\r\n"))?;
    update(invocation, Update::AddSigned { delta }, RespShape::Counter)
}

pub(super) fn mget<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    multi(invocation, Each::Get, Fold::Each(invocation.shape(RespShape::Bulk)), 1)
}

pub(super) fn mset<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count.is_multiple_of(2) {
        return Err(Refusal::Arity("mset"));
    }
    multi(invocation, Each::Set, Fold::Atomic(invocation.shape(RespShape::OkOrNull)), 2)
}
