//! Command `fawn config`.
use super::{Exit, Failure};
use crate::config::{SettingFlags, Settings};
use clap::Subcommand;
use std::path::PathBuf;

/// Inspects the configuration without starting a server.
#[derive(clap::Args)]
pub(super) struct Config {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Subcommand)]
enum ConfigAction {
    /// Checks flags, environment and file together and prints the effective settings as a configuration file.
    Check(ConfigCheck),
}

#[derive(clap::Args)]
struct ConfigCheck {
    /// TOML file of settings; its keys are the long names of the flags below.
    #[arg(long, env = "FAWN_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: SettingFlags,
}

impl Config {
    pub(super) fn run(self) -> Result<(), Failure> {
        let ConfigAction::Check(check) = self.action;
        let settings = Settings::resolve(check.flags, check.config.as_deref())
            .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        print!("{}", settings.to_toml());
        Ok(())
    }
}
