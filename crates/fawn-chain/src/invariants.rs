//! Replication invariants: one named predicate each, shared by asserts, simulator and tests.
use fawn_types::{Epoch, Version};

/// **epochs-only-grow**: a promise is never withdrawn, not even by a restart [replication.md §7].
#[must_use]
pub fn epochs_only_grow(before: Epoch, after: Epoch) -> bool {
    before <= after
}

/// **follows**: `next` may directly follow `previous` in a log: the next of its epoch, or the first of a later epoch.
#[must_use]
pub fn follows(previous: Version, next: Version) -> bool {
    previous.next() == Some(next) || (next.epoch() > previous.epoch() && next.seq() == 1)
}

/// **dense**: a log without gaps: every version follows the one before it.
pub fn dense(versions: impl IntoIterator<Item = Version>) -> bool {
    let mut previous: Option<Version> = None;
    versions.into_iter().all(|next| previous.replace(next).is_none_or(|previous| follows(previous, next)))
}

/// **prefix-of-predecessor**: within an active epoch a member holds no more than its predecessor.
#[must_use]
pub fn prefix_of_predecessor(predecessor_last: Version, last: Version) -> bool {
    last <= predecessor_last
}

/// **committed-is-kept**: committed versions have reached this member's own watermark for the durability mode.
#[must_use]
pub fn committed_is_kept(committed: Version, watermark: Version) -> bool {
    committed <= watermark
}

/// **committed-survives**: cutting off a log above `cut` removes no committed version.
#[must_use]
pub fn committed_survives(committed: Version, cut: Version) -> bool {
    committed <= cut
}

/// **watermarks-ordered**: synced versions were flushed, and flushed versions were appended.
#[must_use]
pub fn watermarks_ordered(synced: Version, flushed: Version, appended: Version) -> bool {
    synced <= flushed && flushed <= appended
}

/// **copies-min**: a chain takes writes only while enough of its members serve for them to survive.
#[must_use]
pub fn enough_copies(serving: usize, copies_min: u8) -> bool {
    serving >= copies_min as usize
}

/// **equal-at-activation**: the log of a member that begins to serve ends at the activation's base.
#[must_use]
pub fn equal_at_activation(last: Version, base: Version) -> bool {
    last == base
}
