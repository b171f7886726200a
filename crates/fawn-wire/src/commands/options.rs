//! Owns options that several commands share: expiry times and the words that introduce them.
use crate::number::parse_i64_strict;
use crate::resp::invocation::Invocation;
use crate::resp::refusal::{NOT_AN_INTEGER, Refusal, SYNTAX};
use fawn_types::{Expiry, TimeMs};

/// How a time is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeForm {
    /// In seconds, else milliseconds.
    pub(crate) seconds: bool,
    /// Since the epoch, else from now.
    pub(crate) absolute: bool,
}

impl TimeForm {
    pub(crate) const EX: Self = Self { seconds: true, absolute: false };
    pub(crate) const PX: Self = Self { seconds: false, absolute: false };
    pub(crate) const EXAT: Self = Self { seconds: true, absolute: true };
    pub(crate) const PXAT: Self = Self { seconds: false, absolute: true };

    /// The form that an option's word introduces.
    pub(crate) fn of_word(word: &[u8]) -> Option<Self> {
        [(&b"EX"[..], Self::EX), (b"PX", Self::PX), (b"EXAT", Self::EXAT), (b"PXAT", Self::PXAT)]
            .into_iter()
            .find_map(|(name, form)| word.eq_ignore_ascii_case(name).then_some(form))
    }

    /// Milliseconds since the epoch, negative ones too; `None` when they do not fit.
    pub(crate) fn to_ms(self, amount: i64, now: TimeMs) -> Option<i64> {
        let ms = if self.seconds { amount.checked_mul(1000)? } else { amount };
        if self.absolute { Some(ms) } else { ms.checked_add(i64::try_from(now.0).ok()?) }
    }
}

/// A time of expiry that must be above 0 (`SET … EX`, `GETEX`, `SETEX`).
pub(crate) fn expiry(
    command: &'static str,
    text: &[u8],
    form: TimeForm,
    invocation: &Invocation<'_>,
) -> Result<Expiry, Refusal> {
    let amount = parse_i64_strict(text).ok_or(NOT_AN_INTEGER)?;
    if amount <= 0 {
        return Err(Refusal::ExpireTime(command));
    }
    let at_ms = form.to_ms(amount, invocation.now).ok_or(Refusal::ExpireTime(command))?;
    Ok(Expiry::AtMs(at_ms.unsigned_abs()))
}

/// What a command's options say about the expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyTime<'a> {
    /// As it was.
    Keep,
    /// None.
    Never,
    /// At the time that the text gives, which is looked at last: of several only the one that counts.
    At(TimeForm, &'a [u8]),
}

impl<'a> KeyTime<'a> {
    /// Takes the place of what was said before. In Redis an option may be repeated, the last one counts, but two
    /// different ones contradict each other.
    pub(crate) fn replace(self, slot: &mut Option<KeyTime<'a>>) -> Result<(), Refusal> {
        match (slot.replace(self), self) {
            (None, _) => Ok(()),
            (Some(KeyTime::At(before, _)), KeyTime::At(form, _)) if before == form => Ok(()),
            (Some(before), now) if before == now => Ok(()),
            _ => Err(SYNTAX),
        }
    }
}
