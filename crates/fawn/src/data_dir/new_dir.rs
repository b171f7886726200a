//! A directory for a copy of a data directory: new or empty, and with its name only once it is complete.
use super::refuse;
use crate::failure::{Exit, Failure};
use std::cell::Cell;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that a command writes.
pub(crate) struct NewDir {
    path: PathBuf,
    /// Its name until it is complete. A directory that is there already may be a mount point, and keeps its name.
    partial: PathBuf,
    is_begun: Cell<bool>,
}

/// Creates a directory for its owner alone, durably.
pub(crate) fn create_private(dir: &Path) -> Result<(), Failure> {
    fawn_flash::create_dirs(dir, 0o700).map_err(Failure::about(Exit::Failed, dir.display()))
}

/// `path` with something after its last name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl NewDir {
    /// The directory `path` for a copy of `source`. It must not exist, or be empty, and not be within the source.
    pub(crate) fn choose(source: &Path, path: PathBuf) -> Result<Self, Failure> {
        let inside = std::path::absolute(&path).is_ok_and(|path| {
            source.canonicalize().is_ok_and(|source| path.starts_with(source)) || path.starts_with(source)
        });
        if inside {
            return refuse(&path, format_args!("is in {}, which stays as it is; choose another one", source.display()));
        }
        let is_free = match path.read_dir() {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if !is_free {
            return refuse(&path, "exists and is not empty; remove it, or choose another directory");
        }
        let partial = if path.exists() { path.clone() } else { with_suffix(&path, ".partial") };
        Ok(Self { path, partial, is_begun: Cell::new(false) })
    }

    /// Removes what was written of it, after a failure. Files in a directory that was there before stay.
    pub(crate) fn discard(&self) {
        if self.partial != self.path && self.is_begun.get() {
            // If it cannot be removed, the next attempt names it.
            let _ = std::fs::remove_dir_all(&self.partial);
        }
    }

    /// Its path, once it is complete.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates it, under the name that it has until then.
    pub(crate) fn begin(&self) -> Result<&Path, Failure> {
        if self.partial == self.path {
            self.is_begun.set(true);
            return Ok(&self.partial);
        }
        if let Some(parent) = self.partial.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            create_private(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.partial) {
            Ok(()) => self.is_begun.set(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return refuse(&self.partial, "is of a copy that is being made, or was interrupted: then remove it");
            }
            Err(error) => return Err(Failure::about(Exit::Failed, self.partial.display())(error)),
        }
        Ok(&self.partial)
    }

    /// Gives it its name, durably.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let fail = Failure::about(Exit::Failed, self.path.display());
        if self.partial != self.path {
            std::fs::rename(&self.partial, &self.path).map_err(&fail)?;
        }
        let whole = std::path::absolute(&self.path).map_err(&fail)?;
        let synced = whole.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all());
        synced.map_err(&fail)
    }
}
