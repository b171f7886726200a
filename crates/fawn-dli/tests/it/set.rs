//! Tests of `SET`.
use crate::{NOW, VALUE_BYTES_MAX, apply, entry, version, written};
use fawn_types::operation::Effect;
use fawn_types::{Condition, Expiry, OperationError, Reply, Update, Version};

fn set(condition: Condition, expiry: Expiry, return_previous: bool) -> Update<'static> {
    Update::Set { value: b"new", flags: 9, expiry, condition, return_previous }
}

const STORED: Reply<'static> = Reply::Stored { version: Version::ZERO, value_bytes: 3 };

#[test]
fn plain_set_replaces_all() {
    let old = entry(b"old", NOW.0 + 5);
    let outcome = apply(set(Condition::Always, Expiry::Never, false), Some(old.as_ref()));
    assert_eq!(outcome.reply, STORED);
    assert_eq!(written(&outcome), (b"new".to_vec(), 9, 0));
}

#[test]
fn only_plain_set_needs_no_current() {
    assert!(!set(Condition::Always, Expiry::AtMs(1), false).needs_current());
    assert!(set(Condition::Always, Expiry::Keep, false).needs_current());
    assert!(set(Condition::Absent, Expiry::Never, false).needs_current());
    assert!(set(Condition::Always, Expiry::Never, true).needs_current());
}

#[test]
fn conditions() {
    let old = entry(b"old", 0);
    let cases = [
        (Condition::Absent, true, Some(Reply::NotStored)),
        (Condition::Absent, false, None),
        (Condition::Exists, true, None),
        (Condition::Exists, false, Some(Reply::NotStored)),
        (Condition::VersionIs(version(3)), true, None),
        (Condition::VersionIs(version(4)), true, Some(Reply::VersionMismatch)),
        (Condition::VersionIs(version(3)), false, Some(Reply::NotFound)),
    ];
    for (condition, present, refused) in cases {
        let outcome = apply(set(condition, Expiry::Never, false), present.then(|| old.as_ref()));
        assert_eq!(outcome.reply, refused.unwrap_or(STORED), "{condition:?}, present {present}");
        assert_eq!(outcome.effect == Effect::None, refused.is_some(), "{condition:?}, present {present}");
    }
}

#[test]
fn expired_is_absent() {
    let old = entry(b"old", NOW.0);
    let outcome = apply(set(Condition::Absent, Expiry::Never, false), Some(old.as_ref()));
    assert_eq!(outcome.reply, STORED);
}

#[test]
fn get_answers_the_previous_whether_or_not_it_applied() {
    let old = entry(b"old", 0);
    for (condition, applied) in [(Condition::Always, true), (Condition::Absent, false)] {
        let outcome = apply(set(condition, Expiry::Never, true), Some(old.as_ref()));
        assert_eq!(outcome.reply, Reply::Previous { entry: Some(old.as_ref()), applied });
        assert_eq!(outcome.effect != Effect::None, applied);
    }
    let outcome = apply(set(Condition::Absent, Expiry::Never, true), None);
    assert_eq!(outcome.reply, Reply::Previous { entry: None, applied: true });
}

#[test]
fn expiry_kept_or_past() {
    let old = entry(b"old", NOW.0 + 5);
    let outcome = apply(set(Condition::Always, Expiry::Keep, false), Some(old.as_ref()));
    assert_eq!(written(&outcome).2, NOW.0 + 5);
    assert_eq!(written(&apply(set(Condition::Always, Expiry::Keep, false), None)).2, 0);
    let outcome = apply(set(Condition::Always, Expiry::InMs(7), false), Some(old.as_ref()));
    assert_eq!(written(&outcome).2, NOW.0 + 7, "the evaluation makes it absolute");
    for past in [Expiry::AtMs(0), Expiry::AtMs(NOW.0), Expiry::InMs(0)] {
        let outcome = apply(set(Condition::Always, past, false), Some(old.as_ref()));
        assert_eq!((outcome.effect, outcome.reply), (Effect::Delete, STORED));
    }
}

#[test]
fn too_long_is_refused_and_changes_nothing() {
    let value = vec![0; VALUE_BYTES_MAX as usize + 1];
    let update = |value| Update::Set {
        value,
        flags: 0,
        expiry: Expiry::Never,
        condition: Condition::Always,
        return_previous: false,
    };
    let outcome = apply(update(&value), None);
    let error = OperationError::ValueTooLong { limit_bytes: VALUE_BYTES_MAX };
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::Error(error)));
    assert!(matches!(apply(update(&value[1..]), None).reply, Reply::Stored { .. }));
}
