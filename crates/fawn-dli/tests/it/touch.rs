//! Tests of the `EXPIRE` family, `PERSIST`, `GETEX`, `touch` and `gat`.
use crate::{NOW, apply, entry, written};
use fawn_types::operation::Effect;
use fawn_types::request::ExpiryCondition;
use fawn_types::{EntryRef, Expiry, Reply, Update, Version};

const fn touch(expiry: Expiry, condition: ExpiryCondition, return_value: bool) -> Update<'static> {
    Update::Touch { expiry, condition, return_value }
}

#[test]
fn absent() {
    let at = Expiry::AtMs(NOW.0 + 1);
    assert_eq!(apply(touch(at, ExpiryCondition::Always, false), None).reply, Reply::NotFound);
    assert_eq!(apply(touch(at, ExpiryCondition::Always, true), None).reply, Reply::Absent);
}

#[test]
fn value_and_flags_stay() {
    let old = entry(b"old", 0);
    let outcome = apply(touch(Expiry::AtMs(NOW.0 + 1), ExpiryCondition::Always, false), Some(old.as_ref()));
    assert_eq!(outcome.reply, Reply::Touched);
    assert_eq!(written(&outcome), (b"old".to_vec(), 7, NOW.0 + 1));
    let outcome = apply(touch(Expiry::InMs(1), ExpiryCondition::Always, false), Some(old.as_ref()));
    assert_eq!(written(&outcome).2, NOW.0 + 1, "the evaluation makes it absolute");
}

#[test]
fn past_deletes() {
    let old = entry(b"old", 0);
    for past in [Expiry::AtMs(0), Expiry::AtMs(NOW.0), Expiry::InMs(0)] {
        let outcome = apply(touch(past, ExpiryCondition::Always, false), Some(old.as_ref()));
        assert_eq!((outcome.effect, outcome.reply), (Effect::Delete, Reply::Touched));
        let outcome = apply(touch(past, ExpiryCondition::Always, true), Some(old.as_ref()));
        assert_eq!((outcome.effect, outcome.reply), (Effect::Delete, Reply::Value(old.as_ref())));
    }
}

/// The table of Redis 7: `(old expiry, new expiry) -> applied` for each option; 0: no old expiry.
#[test]
fn conditions() {
    use ExpiryCondition::{Earlier, EarlierThanOne, HasNone, HasOne, Later};
    let cases = [
        (HasNone, 0, 9, true),
        (HasNone, 5, 9, false),
        (HasOne, 0, 9, false),
        (HasOne, 5, 9, true),
        (Later, 0, 9, false),
        (Later, 5, 9, true),
        (Later, 9, 9, false),
        (Later, 9, 5, false),
        (Earlier, 0, 9, true),
        (Earlier, 5, 9, false),
        (Earlier, 9, 9, false),
        (Earlier, 9, 5, true),
        (EarlierThanOne, 0, 9, false),
        (EarlierThanOne, 5, 9, false),
        (EarlierThanOne, 9, 5, true),
    ];
    for (condition, had, new, applied) in cases {
        let old = entry(b"old", if had == 0 { 0 } else { NOW.0 + had });
        let outcome = apply(touch(Expiry::AtMs(NOW.0 + new), condition, false), Some(old.as_ref()));
        let reply = if applied { Reply::Touched } else { Reply::NotTouched };
        assert_eq!(outcome.reply, reply, "{condition:?} {had} {new}");
        assert_eq!(outcome.effect != Effect::None, applied, "{condition:?} {had} {new}");
    }
    // A time in the past is earlier than any other: `EXPIRE k -1 LT` deletes, `EXPIRE k -1 GT` does not.
    let old = entry(b"old", NOW.0 + 1);
    assert_eq!(apply(touch(Expiry::AtMs(0), Earlier, false), Some(old.as_ref())).effect, Effect::Delete);
    assert_eq!(apply(touch(Expiry::AtMs(0), Later, false), Some(old.as_ref())).reply, Reply::NotTouched);
}

#[test]
fn persist() {
    let persist = touch(Expiry::Never, ExpiryCondition::HasOne, false);
    let old = entry(b"old", NOW.0 + 1);
    assert_eq!(written(&apply(persist, Some(old.as_ref()))).2, 0);
    let old = entry(b"old", 0);
    assert_eq!(apply(persist, Some(old.as_ref())).reply, Reply::NotTouched);
}

#[test]
fn getex_answers_what_is_there_afterwards() {
    let old = entry(b"old", NOW.0 + 1);
    let outcome = apply(touch(Expiry::Keep, ExpiryCondition::Always, true), Some(old.as_ref()));
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::Value(old.as_ref())));
    let outcome = apply(touch(Expiry::Never, ExpiryCondition::Always, true), Some(old.as_ref()));
    let touched = EntryRef { expires_at_ms: 0, version: Version::ZERO, ..old.as_ref() };
    assert_eq!(outcome.reply, Reply::Value(touched), "a new write: its version is not assigned yet");
}
