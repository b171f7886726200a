//! Logging set-up: standard error, human or JSON, filtered by `FAWN_LOG`.
use crate::config::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging, at this level unless `FAWN_LOG` gives another; later calls change nothing.
pub(super) fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_env("FAWN_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // It would report a failed write by `eprintln!`, which panics: a server outlives the reader of its log.
    let builder = builder.log_internal_errors(false);
    let outcome = match format {
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    // A second start within one process (only in tests) keeps the first one's settings.
    drop(outcome);
}
