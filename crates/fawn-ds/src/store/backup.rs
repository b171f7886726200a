//! Backups of embedded stores: a verified copy of the directory, taken while the store is in use.
use super::builder::{random_secret, refuse_unfinished_copy};
use super::partial_copy::{BeginError, PartialCopy, TargetState, look_at_target, unfinished_dir};
use super::{Error, Result};
use crate::backup::{CopyError, Sharing, copy_dir};
use crate::check::{CheckFinding, Severity, check};
use crate::format::manifest;
use fawn_flash::{DeviceKind, DeviceOptions, FileDevice, create_dirs, io_error};
use std::path::Path;

/// Copies the store in the directory `from` to the new or empty directory `to`, and verifies the copy. Both may be in use
/// afterwards, and `from` may be in use meanwhile, by this process or another: a backup, or its restoration.
///
/// The copy has every write that had reached the device by then, so all that were acknowledged, except in
/// [`Durability::Memory`](crate::Durability::Memory) without a [`Store::sync`](crate::Store::sync) before. Complete files are
/// linked where the file system can; to be safe from the loss of a disk, copy to another one.
///
/// The target is locked meanwhile, and the copy is in its directory `copy.partial` until it is verified.
///
/// # Errors
/// [`Error::Corrupt`] if a file is damaged or missing, [`Error::Full`], [`Error::Device`]. The target has no files then, except
/// its lock file; but if the verified copy cannot be moved out of `copy.partial`, everything is kept and [`Error::Device`] reports
/// what to do.
/// [`Error::InvalidOption`] if the target has files, or the source holds no store or an unfinished copy. A copy that was
/// interrupted has left a directory `copy.partial` in the target: remove it. [`Error::InUse`] if a store is being created in the
/// target.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if !from.is_dir() {
        return Err(CopyError::NoStore { dir: from.display().to_string() }.into());
    }
    refuse_unfinished_copy("from", from)?;
    let failed = |what| move |error| io_error(&to.display().to_string(), what, &error);
    if look_at_target(to).map_err(failed("read the directory"))? == TargetState::Missing {
        create_dirs(to, 0o777).map_err(failed("create the directory"))?;
    }
    let target = PartialCopy::begin(to).map_err(|error| match error {
        BeginError::Device(error) => error.into(),
        BeginError::NotEmpty(TargetState::Unfinished) => {
            let found = unfinished_dir(to).display().to_string();
            invalid("to", found, "no unfinished copy: if none is being made, it was interrupted, and can be removed")
        }
        BeginError::NotEmpty(_) => invalid("to", to.display().to_string(), "a new or empty directory"),
    })?;
    let random = u64::from_le_bytes(*random_secret().0.first_chunk().unwrap_or(&[0; 8]));
    if let Err(error) = copy_verified(from, target.path(), random) {
        target.discard();
        return Err(error);
    }
    Ok(target.finish(&[manifest::FILE_NAME])?)
}

fn copy_verified(from: &Path, to: &Path, random: u64) -> Result<()> {
    let copied = copy_dir(from, to, Sharing::Links, random, &mut |_, _| {})?;
    if !copied.can_be_copied() {
        // It may be a restoration, which is of use.
        tracing::warn!("the copy is one that cannot be copied: {}", CopyError::UsedUp);
    }
    let portable = DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() };
    let found = check(&mut FileDevice::open(to, &portable)?)?;
    if let Some((file, error)) = found.other_format {
        return Err(CopyError::Format { file, error }.into());
    }
    match found.findings.into_iter().find(|finding| finding.severity == Severity::Damage) {
        None => Ok(()),
        Some(CheckFinding { file, offset_bytes, detail, .. }) => {
            let error = CopyError::Damaged { file: file.clone(), detail };
            Err(Error::Corrupt { file, offset_bytes, source: std::sync::Arc::new(error) })
        }
    }
}

fn invalid(name: &'static str, found: String, expected: &'static str) -> Error {
    Error::InvalidOption { name, found, expected }
}

impl From<CopyError> for Error {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Device(error) => error.into(),
            CopyError::NoStore { dir } => invalid("from", dir, "the directory of a store"),
            CopyError::Damaged { ref file, .. } => {
                Self::Corrupt { file: file.clone(), offset_bytes: 0, source: std::sync::Arc::new(error) }
            }
            CopyError::Format { .. } => Self::Foreign { source: std::sync::Arc::new(error) },
            CopyError::Unsettled { .. } => Self::Overloaded,
            CopyError::UsedUp => invalid("from", error.to_string(), "a store with generations left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::backup::PARTIAL_NAME;

    #[test]
    fn an_unfinished_copy_is_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        let [from, whole, to] = ["from", "whole", "to"].map(|name| dir.path().join(name));
        Store::open(&from).unwrap().close().unwrap();
        backup(&from, &whole).unwrap();
        // As of a repair that was killed: it has a manifest from the first record on.
        std::fs::write(from.join(PARTIAL_NAME), "").unwrap();
        let refused = backup(&from, &to).unwrap_err();
        assert!(matches!(refused, Error::InvalidOption { name: "from", .. }), "{refused:?}");
        assert!(!to.exists());
        // Without the mark alone, the rest would pass for a store.
        for refused in [refused, Store::open(&from).unwrap_err(), backup(&whole, &from).unwrap_err()] {
            let Error::InvalidOption { found, expected, .. } = refused else { panic!("{refused:?}") };
            assert!(Path::new(&found) == from && !expected.contains(PARTIAL_NAME), "{found}: {expected}");
        }
    }
}
