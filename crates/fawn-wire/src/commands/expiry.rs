//! Parsers of Redis's expiry commands.
use super::options::TimeForm;
use super::strings::update;
use crate::RespFormat;
use crate::resp::command_args::CommandArgs;
use crate::resp::decode::ParseResult;
use crate::resp::parse_error::{ParseError, expire_time, line, lossy};
use alloc::format;
use fawn_types::request::ExpiryCondition;
use fawn_types::{Expiry, Update};

const NX_WITH_OTHERS: ParseError =
    ParseError::Borrowed(b"-ERR NX and XX, GT or LT options at the same time are not compatible\r\n");
const GT_WITH_LT: ParseError = ParseError::Borrowed(b"-ERR GT and LT options at the same time are not compatible\r\n");

/// Removes the expiry.
pub(super) const PERSIST: Update<'_> =
    Update::Touch { expiry: Expiry::Never, condition: ExpiryCondition::HasOne, return_value: false };

/// `EXPIRE` and its variants.
pub(super) fn touch<'a>(command: &'static str, form: TimeForm, args: &CommandArgs<'a>) -> ParseResult<'a> {
    let condition = condition(args)?;
    let expiry = form.to_expiry(args.integer(2)?, args.now).ok_or_else(|| expire_time(command))?;
    update(args, Update::Touch { expiry, condition, return_value: false }, RespFormat::Flag)
}

fn condition(args: &CommandArgs<'_>) -> Result<ExpiryCondition, ParseError> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in args.from(3) {
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => nx = true,
            b"XX" => xx = true,
            b"GT" => gt = true,
            b"LT" => lt = true,
            _ => return Err(line(&format!("ERR Unsupported option {}", lossy(word, 64)))),
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
