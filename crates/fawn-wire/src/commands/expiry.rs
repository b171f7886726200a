//! Parsers of Redis's expiry commands.
use super::options::TimeForm;
use super::strings::{read, update};
use crate::RespShape;
use crate::resp::decode::Parsed;
use crate::resp::invocation::Invocation;
use crate::resp::refusal::Refusal;
use alloc::format;
use alloc::string::String;
use fawn_types::request::ExpiryCondition;
use fawn_types::{Expiry, Update};

const NX_WITH_OTHERS: Refusal =
    Refusal::Fixed("-ERR NX and XX, GT or LT options at the same time are not compatible\r\n");
const GT_WITH_LT: Refusal = Refusal::Fixed("-ERR GT and LT options at the same time are not compatible\r\n");

pub(super) fn expire<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    touch("expire", TimeForm::EX, invocation)
}

pub(super) fn pexpire<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    touch("pexpire", TimeForm::PX, invocation)
}

pub(super) fn expireat<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    touch("expireat", TimeForm::EXAT, invocation)
}

pub(super) fn pexpireat<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    touch("pexpireat", TimeForm::PXAT, invocation)
}

fn touch<'a>(command: &'static str, form: TimeForm, invocation: &Invocation<'a>) -> Parsed<'a> {
    let condition = condition(invocation)?;
    let expiry = form.to_expiry(invocation.integer(2)?, invocation.now).ok_or(Refusal::ExpireTime(command))?;
    update(invocation, Update::Touch { expiry, condition, return_value: false }, RespShape::Flag)
}

fn condition(invocation: &Invocation<'_>) -> Result<ExpiryCondition, Refusal> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in invocation.rest(3) {
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => nx = true,
            b"XX" => xx = true,
            b"GT" => gt = true,
            b"LT" => lt = true,
            _ => {
                let word = String::from_utf8_lossy(&word[..word.len().min(64)]);
                return Err(Refusal::Told(format!("ERR Unsupported option {word}")));
            }
        }
    }
    match (nx, xx, gt, lt) {
        (true, false, false, false) => Ok(ExpiryCondition::HasNone),
        (true, ..) => Err(NX_WITH_OTHERS),
        (_, _, true, true) => Err(GT_WITH_LT),
        (_, true, _, true) => Ok(ExpiryCondition::EarlierThanOne),
        // No expiry counts as infinitely late, so GT implies XX.
        (_, _, true, _) => Ok(ExpiryCondition::Later),
        (_, _, _, true) => Ok(ExpiryCondition::Earlier),
        (_, true, ..) => Ok(ExpiryCondition::HasOne),
        _ => Ok(ExpiryCondition::Always),
    }
}

pub(super) fn persist<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let condition = ExpiryCondition::HasOne;
    update(invocation, Update::Touch { expiry: Expiry::Never, condition, return_value: false }, RespShape::Flag)
}

pub(super) fn ttl<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::Remaining { now: invocation.now, seconds: true })
}

pub(super) fn pttl<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::Remaining { now: invocation.now, seconds: false })
}

pub(super) fn expiretime<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::ExpiresAt { seconds: true })
}

pub(super) fn pexpiretime<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    read(invocation, RespShape::ExpiresAt { seconds: false })
}
