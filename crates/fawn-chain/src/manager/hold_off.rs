//! Hold-offs: how long a member that was left out of its chain streams before it is promoted again.
use alloc::collections::{BTreeMap, BTreeSet};
use fawn_types::{MemberId, MonoMs, RangeId};

/// The first and the longest hold-off of a member, and the time in service that resets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HoldOffOptions {
    pub(super) first_ms: u64,
    pub(super) longest_ms: u64,
    pub(super) service_ms: u64,
}

/// A member that was left out and has not served for long since then.
#[derive(Clone, Copy, Debug)]
struct HoldOff {
    pause_ms: u64,
    until: MonoMs,
    serves_since: Option<MonoMs>,
}

/// The hold-offs of all ranges. Bounded: one per member.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldOffs {
    members: BTreeMap<(RangeId, MemberId), HoldOff>,
}

impl HoldOffs {
    /// Records that the member is left out of its chain.
    pub(super) fn begin(&mut self, at: (RangeId, MemberId), now: MonoMs, options: HoldOffOptions) {
        let pause_ms = match self.members.get(&at) {
            // Several rounds may leave a member out for the same stall: it was not promoted in between.
            Some(former) if former.until > now => return,
            Some(former) if !former.is_over(now, options) => former.pause_ms.saturating_mul(2).min(options.longest_ms),
            _ => options.first_ms,
        };
        self.members.insert(at, HoldOff { pause_ms, until: now.plus_ms(pause_ms), serves_since: None });
    }

    /// The time for which the member has to keep up before it is promoted.
    pub(super) fn pause_ms(&self, at: (RangeId, MemberId)) -> u64 {
        self.members.get(&at).map_or(0, |hold_off| hold_off.pause_ms)
    }

    /// The members of a range that were left out a short while ago, and not promoted since.
    pub(super) fn of(&self, range: RangeId, now: MonoMs) -> BTreeSet<MemberId> {
        let of_range = self.members.range((range, MemberId(0))..=(range, MemberId(u32::MAX)));
        of_range.filter(|(_, hold_off)| hold_off.until > now).map(|((_, id), _)| *id).collect()
    }

    /// Records that the member is being promoted, possibly before its hold-off ended. The next hold-off is twice as
    /// long.
    pub(super) fn end(&mut self, at: (RangeId, MemberId), now: MonoMs) {
        if let Some(hold_off) = self.members.get_mut(&at) {
            hold_off.until = hold_off.until.min(now);
        }
    }

    /// Records that a chain became active with these serving members.
    pub(super) fn note_active(
        &mut self,
        range: RangeId,
        serves: impl Fn(MemberId) -> bool,
        now: MonoMs,
        options: HoldOffOptions,
    ) {
        self.members.retain(|(of, id), hold_off| {
            if *of != range {
                return true;
            }
            if !serves(*id) {
                hold_off.serves_since = None;
                return true;
            }
            hold_off.serves_since.get_or_insert(now);
            !hold_off.is_over(now, options)
        });
    }
}

impl HoldOff {
    fn is_over(&self, now: MonoMs, options: HoldOffOptions) -> bool {
        self.serves_since.is_some_and(|since| now.ms_since(since) >= options.service_ms)
    }
}
