//! A random walk: random operations on one key, with invariants checked after each.
use crate::{NOW, VALUE_BYTES_MAX, version};
use fawn_dli::StringOperation;
use fawn_types::operation::{DataOperation, Effect};
use fawn_types::random::SplitMix64;
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Entry, Expiry, Reply, TimeMs, Update};

struct WalkRng(SplitMix64);

impl WalkRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn condition(random: &mut WalkRng) -> Condition {
    let last = version(1 + random.below(3));
    random.pick(&[Condition::Always, Condition::Exists, Condition::Absent, Condition::VersionIs(last)])
}

fn update(random: &mut WalkRng, now: TimeMs) -> Update<'static> {
    let bytes: &'static [u8] = random.pick(&[b"" as &[u8], b"1", b"99", b"text", &[0; 60]]);
    let at = Expiry::AtMs((now.0 + random.below(4)).saturating_sub(1));
    let after = Expiry::InMs(random.below(3));
    let expiry = random.pick(&[Expiry::Never, Expiry::Keep, at, after]);
    let create = random.below(2) == 0;
    match random.below(8) {
        0 => Update::Set { value: bytes, flags: 1, expiry, condition: condition(random), return_previous: create },
        1 => Update::Append { bytes, create, condition: condition(random) },
        2 => Update::Prepend { bytes, create, condition: condition(random) },
        3 => Update::AddSigned { delta: random.pick(&[1, -1, i64::MAX, i64::MIN]) },
        4 => Update::AddUnsigned { delta: random.pick(&[1, u64::MAX]) },
        5 => Update::SubtractUnsigned { delta: random.below(100) },
        6 => Update::Delete { condition: condition(random), return_previous: create },
        _ => {
            let conditions = [ExpiryCondition::Always, ExpiryCondition::HasNone, ExpiryCondition::Later];
            Update::Touch { expiry, condition: random.pick(&conditions), return_value: create }
        }
    }
}

fn check(update: &Update<'_>, before: Option<&Entry>, outcome: &fawn_types::Outcome<'_>, now: TimeMs) {
    let refused = matches!(
        outcome.reply,
        Reply::NotStored
            | Reply::VersionMismatch
            | Reply::NotFound
            | Reply::NotTouched
            | Reply::Absent
            | Reply::Error(_)
            | Reply::Previous { applied: false, .. }
    );
    assert!(!refused || outcome.effect == Effect::None, "a rejected operation writes nothing: {update:?}");
    if let Effect::Put { value, expires_at_ms, .. } = &outcome.effect {
        assert!(value.as_slice().len() <= VALUE_BYTES_MAX as usize, "{update:?}");
        assert!(*expires_at_ms == 0 || *expires_at_ms > now.0, "no entry is written expired: {update:?}");
    }
    if !update.needs_current() {
        let blind = StringOperation::new(*update, VALUE_BYTES_MAX).apply(None, now);
        assert_eq!(&blind, outcome, "claims to ignore the current entry {before:?}, but depends on it: {update:?}");
    }
    if outcome.effect == Effect::Delete && !matches!(update, Update::Set { .. }) {
        assert!(before.is_some(), "no tombstone for an absent key: {update:?}");
    }
}

#[test]
fn every_outcome_keeps_the_rules() {
    for seed in 0..200 {
        let mut random = WalkRng(SplitMix64::new(seed));
        let mut held: Option<Entry> = None;
        let mut now = NOW;
        for seq in 1..100 {
            now = now.plus_ms(random.below(2));
            held = held.filter(|entry| !entry.as_ref().is_expired(now));
            let update = update(&mut random, now);
            let current = held.clone();
            let outcome = StringOperation::new(update, VALUE_BYTES_MAX).apply(current.as_ref().map(Entry::as_ref), now);
            check(&update, held.as_ref(), &outcome, now);
            match &outcome.effect {
                Effect::None => {}
                Effect::Delete => held = None,
                Effect::Put { value, flags, expires_at_ms } => {
                    // Few distinct versions, so that random conditions often match.
                    let version = version(seq % 4);
                    let value = value.as_slice().to_vec();
                    held = Some(Entry { value, flags: *flags, expires_at_ms: *expires_at_ms, version });
                }
            }
        }
    }
}
