//! Configuration: flags over environment (`FAWN_…`) over one TOML file over defaults.
//!
//! [`SettingFlags`] is the only list of settings: a key of the file is the long name of a flag, and the flag's own
//! parser reads its value, so the three sources cannot diverge.
mod file;
mod flags;
mod memory;
mod settings;
mod shards;
mod units;

pub(crate) use flags::{SettingFlags, SettingSources};
pub(crate) use settings::{DeviceChoice, DurabilityMode, LogFormat, Settings};
pub(crate) use shards::ShardCount;
pub(crate) use units::{Endpoint, Size, TimeSpan};

/// Reasons to refuse a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file does not exist or cannot be read.
    #[error("{path}: {detail}; give the path of a readable TOML file with --config or FAWN_CONFIG")]
    Unreadable {
        /// Its path.
        path: String,
        /// The system's error text.
        detail: String,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: not valid TOML: {detail}")]
    Syntax {
        /// Its path.
        path: String,
        /// Line, from 1.
        line: usize,
        /// The parser's error text.
        detail: String,
    },
    /// A key of the file is not the name of a flag.
    #[error("{path}:{line}: unknown key `{key}`{suggestion}; `fawn serve --help` lists every setting")]
    UnknownKey {
        /// The file's path.
        path: String,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// `, did you mean …?` or nothing.
        suggestion: String,
    },
    /// A value of the file that its setting does not accept.
    #[error("{path}:{line}: {key}: {detail}")]
    BadValue {
        /// The file's path.
        path: String,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// Expected and found.
        detail: String,
    },
    /// Settings that contradict each other or would do harm.
    #[error("{0}")]
    Refused(String),
}
