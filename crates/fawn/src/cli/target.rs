//! Server address of client commands.
use super::{Exit, Failure};
use crate::client::{CliClient, ClientError};
use crate::config::TimeSpan;

/// The server to use.
#[derive(clap::Args)]
pub(super) struct Target {
    /// RESP address of the server.
    #[arg(long, env = "FAWN_SERVER", value_name = "ADDR:PORT", default_value = "127.0.0.1:6380")]
    server: String,
    /// Maximum wait for the server.
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    timeout: TimeSpan,
}

impl Target {
    pub(super) fn connect(&self) -> Result<CliClient, Failure> {
        Ok(CliClient::connect(&self.server, self.timeout.0)?)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(Exit::Server, error.to_string())
    }
}
