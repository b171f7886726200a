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

fn look_at(dir: &Path, file: &LayoutFile, shard: u16) -> Result<(), Failure> {
    let store = store_dir(dir, shard);
    let path = store.join(manifest::FILE_NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Err(super::named(&path)(error)),
        // One may be missing. Opening or checking the store reports one that the disk cannot read, and a corrupt one.
        Err(_) => return Ok(()),
    };
    let Ok(decoded) = manifest::decode_all(&bytes) else { return Ok(()) };
    if decoded.state.identity.is_some_and(|identity| identity.secret != file.secret) {
        return refuse(
            &store,
            "has another hash secret than the directory's layout: it is a shard of another node; put the right one back, \
             nothing was changed",
        );
    }
    check_slice(&store, file, shard, &decoded.state)
}

fn check_slice(store: &Path, file: &LayoutFile, shard: u16, state: &ManifestState) -> Result<(), Failure> {
    let slice_of = |shard| Placement::new(ShardId(shard), file.shards).map(Placement::range);
    // A crash may come before a new store lists its range.
    for (&range, entry) in &state.ranges {
        let found = Some((range, entry.keys));
        if found == slice_of(shard) {
            continue;
        }
        return match (0..file.shards).find(|other| slice_of(*other) == found) {
            Some(other) => refuse(
                store,
                format_args!(
                    "holds the keys of shard {other}, not of shard {shard}: the directories were swapped; swap them back, \
                     nothing was changed"
                ),
            ),
            None => refuse(
                store,
                format_args!(
                    "holds the keys of another layout, not of shard {shard} of {}; put the right store back, nothing was \
                     changed",
                    file.shards
                ),
            ),
        };
    }
    Ok(())
}
