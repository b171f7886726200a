//! Inspection of the shards' stores before any is opened: missing, swapped or foreign ones. Changes nothing.
use super::file::LayoutFile;
use super::{refuse, store_dir};
use crate::failure::Failure;
use fawn_ds::internals::format::manifest::{self, Identity, ManifestState};
use fawn_node::{Placement, is_cluster_state};
use fawn_types::ShardId;
use std::path::Path;

/// Checks every store; the error describes the first that contradicts the layout.
pub(super) fn look(dir: &Path, file: &LayoutFile) -> Result<(), Failure> {
    (0..file.shards).try_for_each(|shard| match missing(dir, file, shard) {
        Some(words) => refuse(&store_dir(dir, shard), words),
        None => look_at(dir, file, shard),
    })
}

/// The identity that a store got at its creation; `None`: it cannot be read.
pub(super) fn identity(store: &Path) -> Option<Identity> {
    state(store)?.identity
}

/// Whether it is the store of a cluster's member. One whose manifest cannot be read is reported where it is opened.
pub(crate) fn is_member(store: &Path) -> bool {
    state(store).is_some_and(|state| is_cluster_state(&state))
}

fn state(store: &Path) -> Option<ManifestState> {
    let bytes = std::fs::read(store.join(manifest::FILE_NAME)).ok()?;
    Some(manifest::decode_all(&bytes).ok()?.state)
}

/// As [`look`], leaving out stores that are missing.
pub(super) fn look_at_present(dir: &Path, file: &LayoutFile) -> Result<(), Failure> {
    (0..file.shards).try_for_each(|shard| look_at(dir, file, shard))
}

/// Describes the loss if a store is missing that was made.
pub(super) fn missing(dir: &Path, file: &LayoutFile, shard: u16) -> Option<String> {
    let store = store_dir(dir, shard);
    // Before that is recorded, no client was ever served.
    let is_missing = matches!(store.join(manifest::FILE_NAME).try_exists(), Ok(false));
    if !file.is_made || !is_missing {
        return None;
    }
    let what = if store.is_dir() { "holds no store" } else { "missing" };
    Some(format!(
        "{what}, though shard {shard} of {} was made and may have held data; is a file system not mounted? Restore it, \
         nothing was changed",
        file.shards
    ))
}

/// The shard whose keys a store has, by its manifest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// No manifest that can be read, or no range in it yet.
    Unknown,
    /// The keys of this shard.
    Shard(u16),
    OtherNode,
    OtherLayout,
}

fn holder(dir: &Path, file: &LayoutFile, shard: u16) -> Result<Holder, Failure> {
    let path = store_dir(dir, shard).join(manifest::FILE_NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Err(super::named(&path)(error)),
        // One may be missing. Opening or checking the store reports one that the disk cannot read, and a corrupt one.
        Err(_) => return Ok(Holder::Unknown),
    };
    let Ok(decoded) = manifest::decode_all(&bytes) else { return Ok(Holder::Unknown) };
    if decoded.state.identity.is_some_and(|identity| identity.secret != file.secret) {
        return Ok(Holder::OtherNode);
    }
    let slice_of = |shard| Placement::new(ShardId(shard), file.shards).map(Placement::range);
    // A crash may come before a new store lists its range.
    let mut ranges = decoded.state.ranges.iter().map(|(&range, entry)| Some((range, entry.keys)));
    let Some(found) = ranges.find(|found| *found != slice_of(shard)) else {
        let is_new = decoded.state.ranges.is_empty();
        return Ok(if is_new { Holder::Unknown } else { Holder::Shard(shard) });
    };
    let other = (0..file.shards).find(|other| slice_of(*other) == found);
    Ok(other.map_or(Holder::OtherLayout, Holder::Shard))
}

fn look_at(dir: &Path, file: &LayoutFile, shard: u16) -> Result<(), Failure> {
    let store = store_dir(dir, shard);
    match holder(dir, file, shard)? {
        Holder::Unknown => Ok(()),
        Holder::Shard(found) if found == shard => Ok(()),
        Holder::Shard(other) => refuse(
            &store,
            format_args!(
                "holds the keys of shard {other}, not of shard {shard}: the directories were swapped; swap them back, \
                 nothing was changed"
            ),
        ),
        Holder::OtherNode => refuse(
            &store,
            "has another hash secret than the directory's layout: it is a shard of another node; put the right one back, \
             nothing was changed",
        ),
        Holder::OtherLayout => refuse(
            &store,
            format_args!(
                "holds the keys of another layout, not of shard {shard} of {}; put the right store back, nothing was \
                 changed",
                file.shards
            ),
        ),
    }
}

/// Why this shard's store has no keys of the directory that no other one has, as the end of a sentence; `None`: it may have.
/// Swapped stores have all keys.
pub(super) fn superfluous(dir: &Path, file: &LayoutFile, shard: u16) -> Result<Option<String>, Failure> {
    let words = match holder(dir, file, shard)? {
        Holder::Unknown => return Ok(None),
        Holder::Shard(found) if found == shard => return Ok(None),
        Holder::Shard(found) => {
            // The one in its own place counts, otherwise the first.
            for other in core::iter::once(found).chain(0..shard) {
                if holder(dir, file, other)? == Holder::Shard(found) {
                    let other = store_dir(dir, other);
                    return Ok(Some(format!("which holds the keys of shard {found}, as {} does", other.display())));
                }
            }
            return Ok(None);
        }
        Holder::OtherNode => "which is a shard of another node: `fawn dump` it by itself",
        Holder::OtherLayout => "which holds the keys of another layout: `fawn dump` it by itself",
    };
    Ok(Some(words.to_owned()))
}
