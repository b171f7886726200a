//! Backups of embedded stores: a verified copy of the directory, taken while the store is in use.
use super::builder::random_secret;
use super::{Error, Result};
use crate::backup::{CopyError, PARTIAL_NAME, Sharing, copy_dir, move_up};
use crate::check::{CheckFinding, Severity, check};
use crate::format::manifest;
use fawn_flash::{DeviceError, DeviceKind, DeviceOptions, FileDevice, IoOperation};
use std::path::Path;

/// Copies the store in the directory `from` to the new or empty directory `to`, and verifies the copy. Both may be in use
/// afterwards, and `from` may be in use meanwhile, by this process or another: a backup, or its restoration.
///
/// The copy has every write that had reached the device by then, so all that were acknowledged, except in
/// [`Durability::Memory`](crate::Durability::Memory) without a [`Store::sync`](crate::Store::sync) before. Complete files are
/// linked where the file system can; to be safe from the loss of a disk, copy to another one.
///
/// # Errors
/// [`Error::Corrupt`] if a file is damaged or missing, [`Error::Full`], [`Error::Device`]. The target is empty then.
/// [`Error::InvalidOption`] if the target has files, or the source holds no store. A copy that was interrupted has left a
/// directory `copy.partial` in the target: remove it.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if to.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(invalid("to", to.display().to_string(), "a new or empty directory"));
    }
    let random = u64::from_le_bytes(*random_secret().0.first_chunk().unwrap_or(&[0; 8]));
    // Until it is verified, it must not be taken for a store.
    let partial = to.join(PARTIAL_NAME);
    let copied = copy_verified(from, &partial, random).and_then(|()| {
        let failed = |error: std::io::Error| DeviceError::Io {
            operation: IoOperation::Metadata("rename"),
            name: partial.display().to_string(),
            offset: 0,
            detail: error.to_string(),
        };
        Ok(move_up(&partial, to, &[manifest::FILE_NAME]).map_err(failed)?)
    });
    copied.inspect_err(|_| _ = std::fs::remove_dir_all(&partial))
}

fn copy_verified(from: &Path, to: &Path, random: u64) -> Result<()> {
    copy_dir(from, to, Sharing::Links, random, &mut |_, _| {})?;
    let portable = DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() };
    let found = check(&mut FileDevice::open(to, &portable)?)?;
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
            CopyError::Unsettled { .. } => Self::Overloaded,
            CopyError::UsedUp => invalid("from", error.to_string(), "a store with generations left"),
        }
    }
}
