//! Server address of client commands.
use super::{Exit, Failure};
use crate::client::{Client, ClientError};
use crate::config::Span;

/// The server to use.
#[derive(clap::Args)]
pub(super) struct Target {
    /// RESP address of the server.
    #[arg(long, env = "FAWN_SERVER", value_name = "ADDR:PORT", default_value = "127.0.0.1:6380")]
    server: String,
    /// Maximum wait for the server.
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    timeout: Span,
}

impl Target {
    pub(super) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.server, self.timeout.0)?)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(Exit::Server, error.to_string())
    }
}
