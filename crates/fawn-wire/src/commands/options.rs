//! Options shared by several commands: expiry times and their keywords.
use crate::number::parse_i64_strict;
use crate::resp::command_args::CommandArgs;
use crate::resp::parse_error::{NOT_AN_INTEGER, ParseError, SYNTAX, expire_time};
use fawn_types::{Expiry, TimeMs};

/// The unit and the reference of a time argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeForm {
    /// Whether the unit is seconds; otherwise milliseconds.
    pub(crate) seconds: bool,
    /// Whether the time is since the epoch; otherwise from now.
    pub(crate) absolute: bool,
}

impl TimeForm {
    pub(crate) const EX: Self = Self { seconds: true, absolute: false };
    pub(crate) const PX: Self = Self { seconds: false, absolute: false };
    pub(crate) const EXAT: Self = Self { seconds: true, absolute: true };
    pub(crate) const PXAT: Self = Self { seconds: false, absolute: true };

    /// The form that the option `word` stands for.
    pub(crate) fn of_word(word: &[u8]) -> Option<Self> {
        [(&b"EX"[..], Self::EX), (b"PX", Self::PX), (b"EXAT", Self::EXAT), (b"PXAT", Self::PXAT)]
            .into_iter()
            .find_map(|(name, form)| word.eq_ignore_ascii_case(name).then_some(form))
    }

    /// When the key expires; `None` when the time does not fit, by this server's clock too.
    pub(crate) fn to_expiry(self, amount: i64, now: TimeMs) -> Option<Expiry> {
        let ms = if self.seconds { amount.checked_mul(1000)? } else { amount };
        if !self.absolute {
            ms.checked_add(i64::try_from(now.0).ok()?)?;
        }
        Some(match u64::try_from(ms) {
            Ok(ms) if !self.absolute => Expiry::InMs(ms),
            // A time of 0 would mean that the key never expires: times before now delete it.
            Ok(ms) => Expiry::AtMs(ms.max(1)),
            Err(_) => Expiry::AtMs(1),
        })
    }
}

/// The effect of a command's options on the expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyTime {
    /// Keeps the expiry.
    Keep,
    /// Removes the expiry.
    Never,
    /// Sets the expiry to a time of this form.
    At(TimeForm),
}

impl KeyTime {
    /// The expiry; the `amount` of a time must be above 0 (`SET … EX`, `GETEX`, `SETEX`).
    pub(crate) fn expiry(self, command: &str, amount: &[u8], args: &CommandArgs<'_>) -> Result<Expiry, ParseError> {
        let form = match self {
            Self::Keep => return Ok(Expiry::Keep),
            Self::Never => return Ok(Expiry::Never),
            Self::At(form) => form,
        };
        let amount = parse_i64_strict(amount).ok_or(NOT_AN_INTEGER)?;
        let expiry = form.to_expiry(amount, args.now).filter(|_| amount > 0);
        expiry.ok_or_else(|| expire_time(command))
    }
}

/// Sets an option. As in Redis, an option may be repeated, but two different ones are an error. If the option has an
/// amount, the last one counts, so the caller parses it after the last option.
pub(crate) fn set_once<T: PartialEq>(slot: &mut Option<T>, option: T) -> Result<(), ParseError> {
    match slot {
        Some(other) if *other != option => Err(SYNTAX),
        _ => {
            *slot = Some(option);
            Ok(())
        }
    }
}
