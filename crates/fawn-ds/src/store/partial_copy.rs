//! Copies into a directory that is there already: within it under another name until they are complete and verified.
use crate::backup::PARTIAL_NAME;
use fawn_flash::{DeviceError, DirLock, IoOperation, io_error};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directory that a new file system has.
const LOST_AND_FOUND: &str = "lost+found";
/// File that stays after its holder: another process may wait for it.
const LOCK: &str = "LOCK";
const LOCK_BYTES_MAX: u64 = 32;

/// State of a directory that is to receive a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetState {
    /// There is no such directory.
    Missing,
    /// It has no files, except the lock file and `lost+found`.
    Empty,
    /// It has a [`PARTIAL_NAME`]: of a copy in progress, or an interrupted one.
    Unfinished,
    /// It has other files.
    Occupied,
}

/// Error of the begin of a copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// The directory is in use, or cannot be written.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The directory is not [`TargetState::Empty`].
    #[error("the directory is not empty: {0:?}")]
    NotEmpty(TargetState),
}

/// A copy into an existing directory: in [`PARTIAL_NAME`] there until it is complete. The directory is locked, so neither a
/// store nor another copy is made there meanwhile.
#[derive(Debug)]
pub struct PartialCopy {
    dir: PathBuf,
    path: PathBuf,
    /// Opened before the first file is moved: afterwards a lack of descriptors would be too late.
    open_dir: File,
    _lock: DirLock,
}

/// Looks at a directory that is to receive a copy.
///
/// # Errors
/// If it cannot be read: it may have files then.
pub fn look_at_target(dir: &Path) -> std::io::Result<TargetState> {
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(TargetState::Missing),
        Err(error) => return Err(error),
    };
    let mut state = TargetState::Empty;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name == PARTIAL_NAME {
            return Ok(TargetState::Unfinished);
        }
        // A process ID, and not another file of that name.
        let is_lock = name == LOCK && entry.file_type()?.is_file() && entry.metadata()?.len() <= LOCK_BYTES_MAX;
        if !is_lock && name != LOST_AND_FOUND {
            state = TargetState::Occupied;
        }
    }
    Ok(state)
}

/// Whether a copy to `dir` is being made, or was interrupted: what is there is no store, or not all of one. `last`: as of
/// [`PartialCopy::finish`]. If it is interrupted behind them, the copy is complete.
#[must_use]
pub fn is_unfinished(dir: &Path, last: &[&str]) -> bool {
    let Ok(found) = dir.join(PARTIAL_NAME).symlink_metadata() else { return false };
    !found.is_dir() || !last.iter().any(|name| dir.join(name).exists())
}

/// The directory of an unfinished copy to `dir`, to be removed if it was interrupted. Never the mark alone: without it the rest
/// would pass for a store.
#[must_use]
pub fn unfinished_dir(dir: &Path) -> PathBuf {
    let partial = dir.join(PARTIAL_NAME);
    if partial.is_dir() { partial } else { dir.to_owned() }
}

impl PartialCopy {
    /// Locks the directory `dir` and creates [`PARTIAL_NAME`] in it.
    ///
    /// # Errors
    /// [`BeginError`]. Nothing was created then, except the lock file.
    pub fn begin(dir: &Path) -> Result<Self, BeginError> {
        let failed = |what| move |error| io_error(&dir.display().to_string(), what, &error);
        let check = || match look_at_target(dir).map_err(failed("read the directory"))? {
            TargetState::Empty => Ok(()),
            state => Err(BeginError::NotEmpty(state)),
        };
        // The lock is a file, which a directory with other content does not get.
        check()?;
        let lock = DirLock::take(dir)?;
        // Between the look and the lock, a store may have been created and closed again.
        check()?;
        let open_dir = File::open(dir).map_err(failed("open the directory"))?;
        let path = dir.join(PARTIAL_NAME);
        // A directory that was there already would be of another copy: it would not be this one's to remove.
        DirBuilder::new().mode(0o700).create(&path).map_err(failed("create copy.partial"))?;
        Ok(Self { dir: dir.to_owned(), path, open_dir, _lock: lock })
    }

    /// The directory that the copy is written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what was written.
    pub fn discard(self) {
        // If it cannot be removed, the next attempt reports it.
        _ = std::fs::remove_dir_all(&self.path);
    }

    /// Moves the copy up to its directory, durably. The files named in `last` are the last: those without which the directory
    /// holds no store.
    ///
    /// # Errors
    /// If a file cannot be moved, or the directory not be synced. Everything is kept then.
    pub fn finish(self, last: &[&str]) -> Result<(), DeviceError> {
        self.move_up(last).map_err(|error| {
            let (dir, partial, last) = (self.dir.display(), self.path.display(), last.join("` or `"));
            DeviceError::Io {
                operation: IoOperation::Metadata("move the copy to"),
                name: dir.to_string(),
                offset: 0,
                detail: format!(
                    "{error}; the copy is complete and was kept, in part in {partial}: move what is left there to {dir}, \
                     `{last}` last, or remove the content of {dir} and copy again"
                ),
            }
        })?;
        // The copy is complete, so a directory that stays does no harm.
        _ = std::fs::remove_file(self.path.join(LOCK));
        _ = std::fs::remove_dir(&self.path);
        Ok(())
    }

    fn move_up(&self, last: &[&str]) -> std::io::Result<()> {
        let names = self.path.read_dir()?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
        // The directory has a lock file, which is held.
        names.retain(|name| name != LOCK);
        let (last, first): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| last.iter().any(|last| name == last));
        for names in [first, last] {
            names.iter().try_for_each(|name| self.move_file(name))?;
            self.open_dir.sync_all()?;
        }
        Ok(())
    }

    fn move_file(&self, name: &OsString) -> std::io::Result<()> {
        let (from, to) = (self.path.join(name), self.dir.join(name));
        // A rename would replace it. Stores and copies respect the lock, so such a file is not theirs.
        match to.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => std::fs::rename(from, to),
            Err(error) => Err(error),
            Ok(_) => Err(std::io::Error::new(ErrorKind::AlreadyExists, format!("{} exists", to.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn neither_a_store_nor_another_copy_is_made_in_the_target_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let copy = PartialCopy::begin(dir.path()).unwrap();
        std::fs::write(copy.path().join("manifest"), "content").unwrap();
        assert!(matches!(DirLock::take(dir.path()), Err(DeviceError::Locked { .. })));
        let refused = PartialCopy::begin(dir.path()).unwrap_err();
        assert_eq!(refused, BeginError::NotEmpty(TargetState::Unfinished));
        assert_eq!(names(copy.path()), ["manifest"], "the other attempt removed nothing");
        copy.discard();
        assert_eq!(names(dir.path()), [LOCK]);
        PartialCopy::begin(dir.path()).unwrap();
    }

    #[test]
    fn the_lock_file_of_a_copy_does_not_replace_the_one_that_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let copy = PartialCopy::begin(dir.path()).unwrap();
        drop(DirLock::take(copy.path()).unwrap());
        std::fs::write(copy.path().join("manifest"), "content").unwrap();
        let held = std::fs::read(dir.path().join(LOCK)).unwrap();
        std::fs::write(copy.path().join(LOCK), "of the copy").unwrap();
        copy.finish(&["manifest"]).unwrap();
        assert_eq!(std::fs::read(dir.path().join(LOCK)).unwrap(), held);
        assert_eq!(names(dir.path()), [LOCK, "manifest"]);
    }

    #[test]
    fn a_copy_that_cannot_be_moved_replaces_nothing_and_is_kept() {
        for name in ["manifest", "segment"] {
            let dir = tempfile::tempdir().unwrap();
            let copy = PartialCopy::begin(dir.path()).unwrap();
            let partial = copy.path().to_owned();
            for name in ["manifest", "segment"] {
                std::fs::write(partial.join(name), "copied").unwrap();
            }
            std::fs::write(dir.path().join(name), "foreign").unwrap();
            let error = copy.finish(&["manifest"]).unwrap_err().to_string();
            for part in [dir.path(), &partial].map(|path| path.display().to_string()) {
                assert!(error.contains(&part), "{error}");
            }
            assert!(error.contains("`manifest` last"), "{error}");
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"foreign", "{name}");
            assert_eq!(std::fs::read(partial.join("manifest")).unwrap(), b"copied", "{name}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_read_does_not_count_as_new() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look_at_target(dir.path()).unwrap(), TargetState::Empty);
        assert_eq!(look_at_target(&dir.path().join("none")).unwrap(), TargetState::Missing);
        let path = dir.path().join("loop");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        look_at_target(&path).unwrap_err();
        assert!(matches!(PartialCopy::begin(&path), Err(BeginError::Device(_))));
    }
}
