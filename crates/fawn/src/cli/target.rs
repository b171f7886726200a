//! Server address of client commands.
use crate::client::CliClient;
use crate::config::TimeSpan;
use crate::failure::{Exit, Failure};

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
        if self.timeout.0.is_zero() {
            return Err(Failure::new(Exit::Usage, "--timeout 0s: expected more than nothing, such as 10s"));
        }
        CliClient::connect(&self.server, self.timeout.0)
    }
}
