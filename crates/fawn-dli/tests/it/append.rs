//! Tests of `APPEND` and `prepend`.
use crate::{NOW, VALUE_BYTES_MAX, apply, entry, version, written};
use fawn_types::operation::Effect;
use fawn_types::{Condition, OperationError, Reply, Update, Version};

const fn append(bytes: &[u8], create: bool, condition: Condition) -> Update<'_> {
    Update::Append { bytes, create, condition }
}

#[test]
fn keeps_flags_and_expiry() {
    let old = entry(b"old", NOW.0 + 5);
    let outcome = apply(append(b"new", false, Condition::Always), Some(old.as_ref()));
    assert_eq!(written(&outcome), (b"oldnew".to_vec(), 7, NOW.0 + 5));
    assert_eq!(outcome.reply, Reply::Stored { version: Version::ZERO, value_bytes: 6 });
    let update = Update::Prepend { bytes: b"new", create: true, condition: Condition::Always };
    assert_eq!(written(&apply(update, Some(old.as_ref()))).0, b"newold");
}

#[test]
fn absent_is_created_or_not() {
    let outcome = apply(append(b"new", true, Condition::Always), None);
    assert_eq!(written(&outcome), (b"new".to_vec(), 0, 0));
    assert_eq!(apply(append(b"new", false, Condition::Always), None).reply, Reply::NotStored);
    assert_eq!(apply(append(b"new", false, Condition::VersionIs(version(1))), None).reply, Reply::NotStored);
    assert_eq!(apply(append(b"new", true, Condition::VersionIs(version(1))), None).reply, Reply::NotFound);
}

#[test]
fn version_is_checked() {
    let old = entry(b"old", 0);
    let outcome = apply(append(b"x", false, Condition::VersionIs(version(4))), Some(old.as_ref()));
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::VersionMismatch));
    let outcome = apply(append(b"x", false, Condition::VersionIs(version(3))), Some(old.as_ref()));
    assert_eq!(written(&outcome).0, b"oldx");
}

#[test]
fn whole_length_is_limited() {
    let old = entry(&[b'x'; VALUE_BYTES_MAX as usize - 1], 0);
    assert!(matches!(apply(append(b"y", true, Condition::Always), Some(old.as_ref())).reply, Reply::Stored { .. }));
    let outcome = apply(append(b"yz", true, Condition::Always), Some(old.as_ref()));
    let error = OperationError::ValueTooLong { limit_bytes: VALUE_BYTES_MAX };
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::Error(error)));
}
