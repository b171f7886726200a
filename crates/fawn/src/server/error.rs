//! Errors of starting and running a server, each with its exit code.
use crate::cli::{Exit, Failure};
use crate::config::ConfigError;
use crate::data_dir::LayoutError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reasons why a server does not start or ends with a failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The address is in use or not local.
    #[error(
        "{what} cannot listen on {address}: {detail}; stop the program that uses it or choose another with --{what}"
    )]
    Listen {
        /// The listener, by the name of its flag.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error text.
        detail: std::io::Error,
    },
    /// The ready file cannot be removed or written.
    #[error("ready-file = {}: {detail}; give a path in a directory that this user may write", path.display())]
    ReadyFile {
        /// Its path.
        path: PathBuf,
        /// The system's error text.
        detail: std::io::Error,
    },
    /// The settings do not match the directory.
    #[error("{0}")]
    Settings(#[from] ConfigError),
    /// The data directory cannot be used.
    #[error("{0}")]
    Data(String),
    /// The system refused an operation that every server needs.
    #[error("{what}: {detail}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error text.
        detail: std::io::Error,
    },
    /// A shard ended on its own.
    #[error("{0}; see the log above; restart, and run `fawn check` on the data directory if it happens again")]
    Died(String),
}

impl ServeError {
    /// Converts an error of the system.
    pub(super) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |detail| Self::System { what, detail }
    }
}

impl From<LayoutError> for ServeError {
    fn from(error: LayoutError) -> Self {
        Self::Data(error.to_string())
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let exit = match &error {
            ServeError::Listen { .. } => Exit::Address,
            ServeError::Settings(_) => Exit::Usage,
            ServeError::Data(_) => Exit::Data,
            ServeError::ReadyFile { .. } | ServeError::System { .. } | ServeError::Died(_) => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}
