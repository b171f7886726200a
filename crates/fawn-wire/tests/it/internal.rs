//! Messages between shards: every request and reply arrives as it was sent, and bytes that are none are refused.
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, EntryRef, Expiry, OperationError, Reply, Request, Update, Version};
use fawn_wire::internal::{put_request, put_result, read_request, read_result};

fn updates() -> Vec<Update<'static>> {
    let mut updates = vec![
        Update::AddSigned { delta: i64::MIN },
        Update::AddUnsigned { delta: u64::MAX },
        Update::SubtractUnsigned { delta: 1 },
    ];
    let version = Condition::VersionIs(Version::from_u64(77));
    for condition in [Condition::Always, Condition::Exists, Condition::Absent, version] {
        for flag in [false, true] {
            for expiry in [Expiry::Never, Expiry::Keep, Expiry::AtMs(5), Expiry::InMs(5)] {
                let (value, flags, return_previous) = (&b"value"[..], 7, flag);
                updates.push(Update::Set { value, flags, expiry, condition, return_previous });
            }
            updates.push(Update::Append { bytes: b"bytes", create: flag, condition });
            updates.push(Update::Prepend { bytes: b"bytes", create: flag, condition });
            updates.push(Update::Delete { condition, return_previous: flag });
        }
    }
    for condition in [
        ExpiryCondition::Always,
        ExpiryCondition::HasNone,
        ExpiryCondition::HasOne,
        ExpiryCondition::Later,
        ExpiryCondition::Earlier,
        ExpiryCondition::EarlierThanOne,
    ] {
        updates.push(Update::Touch { expiry: Expiry::AtMs(5), condition, return_value: true });
    }
    updates
}

#[test]
fn every_update_survives() {
    for update in updates() {
        let (request, mut bytes) = (Request::Update { key: b"key", update }, Vec::new());
        put_request(&request, &mut bytes);
        assert_eq!(read_request(&bytes), Ok(request));
    }
}

#[test]
fn a_flag_is_zero_or_one_and_nothing_follows_a_request() {
    let update = Update::Delete { condition: Condition::Always, return_previous: true };
    let mut bytes = Vec::new();
    put_request(&Request::Update { key: b"key", update }, &mut bytes);
    *bytes.last_mut().unwrap() = 2;
    assert!(read_request(&bytes).is_err());
    *bytes.last_mut().unwrap() = 1;
    assert!(read_request(&bytes).is_ok());
    bytes.push(0);
    assert!(read_request(&bytes).is_err());
}

#[test]
fn every_reply_survives() {
    let version = Version::from_u64(9);
    let entry = EntryRef { value: b"value", flags: 7, expires_at_ms: 8, version };
    let mut replies = vec![
        Reply::Value(entry),
        Reply::Absent,
        Reply::Stored { version, value_bytes: 3 },
        Reply::NotStored,
        Reply::VersionMismatch,
        Reply::NotFound,
        Reply::Deleted,
        Reply::Touched,
        Reply::NotTouched,
        Reply::Signed(-5),
        Reply::Unsigned(u64::MAX),
    ];
    for applied in [false, true] {
        replies.extend([Some(entry), None].map(|entry| Reply::Previous { entry, applied }));
    }
    let errors = [
        OperationError::NotAnInteger,
        OperationError::NotANumber,
        OperationError::Overflow,
        OperationError::KeyTooLong,
        OperationError::ValueTooLong { limit_bytes: 12 },
        OperationError::StoreFull,
        OperationError::Overloaded,
        OperationError::Unavailable,
        OperationError::Corrupt,
        OperationError::Poisoned,
        OperationError::TooFewCopies,
        OperationError::RecordsTooLong { limit_bytes: 12 },
        OperationError::PoisonedInFlight,
    ];
    for reply in replies.into_iter().chain(errors.map(Reply::Error)) {
        let mut bytes = Vec::new();
        put_result(&mut bytes, &reply);
        assert_eq!(read_result(&bytes, Version::ZERO), Ok(reply));
    }
}
