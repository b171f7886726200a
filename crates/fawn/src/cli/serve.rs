//! Command `fawn serve`.
use super::logs;
use crate::config::SettingSources;
use crate::failure::Failure;
use crate::server::{self, Service};

/// Runs one node: a complete store by itself.
///
/// Redis clients (RESP2 and RESP3) and memcached clients (text) see the same keys. On SIGTERM or SIGINT the server
/// stops accepting, answers received requests, flushes, syncs, and exits 0 within the shutdown timeout.
///
/// Every setting is a flag, an environment variable (FAWN_…), and a key of one TOML file;
/// flags override the environment, the environment overrides the file. `fawn config check` prints the effective
/// settings.
#[derive(clap::Args)]
#[command(after_long_help = "Example:\n  fawn serve --dir /var/lib/fawn --memory 512M --durability everysec\n  \
                             redis-cli -p 6380 set greeting hello")]
pub(super) struct Serve {
    #[command(flatten)]
    sources: SettingSources,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        let settings = self.sources.resolve()?;
        logs::start(settings.log_format, "info");
        settings.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        server::run(Service::Standalone, &settings, None)
    }
}
