//! Tests of `DEL`, `delete` and `GETDEL`.
use crate::{NOW, apply, entry, version};
use fawn_types::operation::Effect;
use fawn_types::{Condition, Reply, Update};

const fn delete(condition: Condition, return_previous: bool) -> Update<'static> {
    Update::Delete { condition, return_previous }
}

#[test]
fn absent_writes_nothing() {
    let expired = entry(b"old", NOW.0 - 1);
    for current in [None, Some(expired.as_ref())] {
        let outcome = apply(delete(Condition::Always, false), current);
        assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::NotFound));
        let outcome = apply(delete(Condition::Always, true), current);
        assert_eq!(outcome.reply, Reply::Previous { entry: None, applied: false });
    }
    assert_eq!(apply(delete(Condition::VersionIs(version(3)), false), None).reply, Reply::NotFound);
}

#[test]
fn present_is_removed_and_returned() {
    let old = entry(b"old", 0);
    let outcome = apply(delete(Condition::Always, false), Some(old.as_ref()));
    assert_eq!((outcome.effect, outcome.reply), (Effect::Delete, Reply::Deleted));
    let outcome = apply(delete(Condition::VersionIs(version(3)), true), Some(old.as_ref()));
    let previous = Reply::Previous { entry: Some(old.as_ref()), applied: true };
    assert_eq!((outcome.effect, outcome.reply), (Effect::Delete, previous));
    let outcome = apply(delete(Condition::VersionIs(version(4)), false), Some(old.as_ref()));
    assert_eq!((outcome.effect, outcome.reply), (Effect::None, Reply::VersionMismatch));
}
