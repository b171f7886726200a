//! Command `fawn config`.
use crate::config::SettingSources;
use crate::failure::Failure;
use crate::printing::print_result;
use clap::Subcommand;

/// Inspects the configuration without starting a server.
#[derive(clap::Args)]
pub(super) struct Config {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Subcommand)]
enum ConfigAction {
    /// Checks flags, environment and file together and prints the effective settings as a configuration file.
    Check(SettingSources),
}

impl Config {
    pub(super) fn run(self) -> Result<(), Failure> {
        let ConfigAction::Check(sources) = self.action;
        print_result(sources.resolve()?.to_toml().trim_end());
        Ok(())
    }
}
