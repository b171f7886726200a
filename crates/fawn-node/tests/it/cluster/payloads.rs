//! Payload codec: round trips, and no panic on truncated or corrupt bytes.
use fawn_node::cluster::payload::{RequestBody, decode_reply, decode_request, encode_request};
use fawn_types::random::SplitMix64;
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update, Version};

fn requests() -> Vec<Request<'static>> {
    let versioned = Condition::VersionIs(Version::from_u64(u64::MAX));
    let key = b"a key";
    let update = |update| Request::Update { key, update };
    vec![
        Request::Get { key },
        Request::Get { key: b"" },
        update(Update::Set {
            value: b"value",
            flags: 7,
            expiry: Expiry::AtMs(9),
            condition: versioned,
            return_previous: true,
        }),
        update(Update::Set {
            value: b"",
            flags: 0,
            expiry: Expiry::Never,
            condition: Condition::Always,
            return_previous: false,
        }),
        update(Update::Append { bytes: b"more", create: true, condition: Condition::Exists }),
        update(Update::Prepend { bytes: b"more", create: false, condition: Condition::Absent }),
        update(Update::AddSigned { delta: i64::MIN }),
        update(Update::AddUnsigned { delta: 1 }),
        update(Update::SubtractUnsigned { delta: u64::MAX }),
        update(Update::Delete { condition: versioned, return_previous: true }),
        update(Update::Touch { expiry: Expiry::Keep, condition: ExpiryCondition::Later, return_value: true }),
        update(Update::Touch {
            expiry: Expiry::InMs(u64::MAX),
            condition: ExpiryCondition::EarlierThanOne,
            return_value: false,
        }),
    ]
}

/// Index of an update's kind. A new kind does not compile until it is added here, and the test then fails until
/// [`requests`] contains it.
const fn place(update: &Update<'_>) -> usize {
    match update {
        Update::Set { .. } => 0,
        Update::Append { .. } => 1,
        Update::Prepend { .. } => 2,
        Update::AddSigned { .. } => 3,
        Update::AddUnsigned { .. } => 4,
        Update::SubtractUnsigned { .. } => 5,
        Update::Delete { .. } => 6,
        Update::Touch { .. } => UPDATES - 1,
    }
}

/// Number of kinds of updates.
const UPDATES: usize = 8;

#[test]
fn every_update_is_among_the_requests() {
    let requests = requests();
    let there: std::collections::BTreeSet<usize> = requests
        .iter()
        .filter_map(|request| match request {
            Request::Update { update, .. } => Some(place(update)),
            _ => None,
        })
        .collect();
    assert_eq!(there.len(), UPDATES, "only these kinds are tested: {there:?}");
}

#[test]
fn requests_survive_and_no_prefix_decodes_to_another() {
    for request in requests() {
        let mut bytes = Vec::new();
        let body = RequestBody::Key(request);
        encode_request(3, 512, &body, &mut bytes);
        assert_eq!(decode_request(&bytes), Ok((3, 512, body)));
        for cut in 0..bytes.len() {
            assert!(decode_request(&bytes[..cut]).map(|(.., cut)| cut) != Ok(body), "{request:?} cut at {cut}");
        }
    }
}

#[test]
fn corrupt_bytes_never_panic() {
    let mut random = SplitMix64::new(77);
    for request in requests() {
        let mut bytes = Vec::new();
        encode_request(3, 512, &RequestBody::Key(request), &mut bytes);
        for _ in 0..500 {
            let mut corrupt = bytes.clone();
            let at = random.below(corrupt.len() as u64) as usize;
            corrupt[at] = random.next() as u8;
            let _ = (decode_request(&corrupt), decode_reply(&corrupt));
        }
    }
}
