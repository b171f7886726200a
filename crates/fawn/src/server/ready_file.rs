//! Ready file: created atomically once clients are served, removed when the server ends.
use super::ListenAddrs;
use crate::data_dir::with_suffix;
use crate::failure::{Exit, Failure};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// An existing ready file; dropping it removes it.
#[derive(Debug)]
pub(super) struct ReadyFile {
    path: PathBuf,
}

impl ReadyFile {
    /// Refuses a path in a directory that is missing, before the data is opened.
    pub(super) fn refuse_nowhere(path: &Path) -> Result<(), Failure> {
        let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
        let is_dir = std::fs::metadata(parent).map(|found| found.is_dir());
        match is_dir {
            Ok(true) => Ok(()),
            Ok(false) => Err(unusable(path, &ErrorKind::NotADirectory.into())),
            Err(error) => Err(unusable(path, &error)),
        }
    }

    /// Removes a file that a killed server left behind. Call once no running one can have written it.
    pub(super) fn clear(path: &Path) -> Result<(), Failure> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(unusable(path, &error)),
            _ => Ok(()),
        }
    }

    /// Writes the process id and the addresses.
    pub(super) fn write(path: &Path, listen_addrs: &ListenAddrs) -> Result<Self, Failure> {
        let fail = |error| unusable(path, &error);
        let mut content = serde_json::to_value(listen_addrs).unwrap_or_default();
        content["pid"] = std::process::id().into();
        // Renamed into place, so that readers see all of it.
        let partial = with_suffix(path, ".partial");
        std::fs::write(&partial, format!("{content}\n")).map_err(fail)?;
        std::fs::rename(&partial, path).map_err(fail)?;
        Ok(Self { path: path.to_owned() })
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    let remedy = "give a path in a directory that this user may write";
    Failure::new(Exit::Failed, format!("ready-file = {}: {error}; {remedy}", path.display()))
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the ready file");
        }
    }
}
