//! Owns the ready file: appears whole once clients are served, goes when the server does.
use super::{Places, ServeError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A ready file in place; dropped, it is removed.
#[derive(Debug)]
pub(super) struct ReadyFile {
    path: PathBuf,
}

impl ReadyFile {
    /// Removes one that a killed server left behind, so that nobody takes it for ours.
    pub(super) fn clear(path: &Path) -> Result<(), ServeError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ServeError::system("removing the old ready file")(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes it: the process and where it listens.
    pub(super) fn write(path: &Path, places: &Places) -> Result<Self, ServeError> {
        let fail = ServeError::system("writing the ready file");
        let mut content = serde_json::to_value(places).unwrap_or_default();
        content["pid"] = std::process::id().into();
        // Renamed into place: whoever sees it sees all of it.
        let partial = path.with_extension("partial");
        let mut file = std::fs::File::create(&partial).map_err(&fail)?;
        writeln!(file, "{content}").map_err(&fail)?;
        std::fs::rename(&partial, path).map_err(&fail)?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "the ready file could not be removed");
        }
    }
}
