//! Owns configuration: flags over environment (`FAWN_…`) over one TOML file over defaults.
//!
//! [`Flags`] is the only list of settings: a key of the file is the long name of a flag and its value is parsed by
//! that flag's own parser, so that the three sources cannot drift apart.
mod file;
mod flags;
mod memory;
mod settings;
mod shards;
mod units;

pub(crate) use flags::Flags;
pub(crate) use settings::{DeviceChoice, DurabilityMode, LogFormat, Settings};
pub(crate) use shards::Shards;
pub(crate) use units::{Endpoint, Size, Span};

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file is not there or not readable.
    #[error("{path}: {detail}; give the path of a readable TOML file with --config or FAWN_CONFIG")]
    Unreadable {
        /// Which.
        path: String,
        /// The system's words.
        detail: String,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: not valid TOML: {detail}")]
    Syntax {
        /// Which.
        path: String,
        /// From 1.
        line: usize,
        /// The parser's words.
        detail: String,
    },
    /// The file has a key that no flag is called.
    #[error("{path}:{line}: unknown key `{key}`{suggestion}; `fawn serve --help` lists every setting")]
    UnknownKey {
        /// Which.
        path: String,
        /// From 1.
        line: usize,
        /// The key.
        key: String,
        /// `, did you mean …?` or nothing.
        suggestion: String,
    },
    /// A value of the file that its setting does not take.
    #[error("{path}:{line}: {key}: {detail}")]
    BadValue {
        /// Which.
        path: String,
        /// From 1.
        line: usize,
        /// The key.
        key: String,
        /// Expected and found.
        detail: String,
    },
    /// Settings that do not go together or would do harm.
    #[error("{0}")]
    Refused(String),
}
