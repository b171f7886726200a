//! Command `fawn get`.
use super::target::Target;
use crate::failure::{Exit, Failure};
use fawn_wire::client::resp::RespReply;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

/// Prints a key's value, byte for byte; exit code 6 if the key does not exist.
#[derive(clap::Args)]
pub(super) struct Get {
    /// The key.
    key: OsString,
    #[command(flatten)]
    target: Target,
}

impl Get {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut client = self.target.connect()?;
        let value = client.call(&[b"GET", self.key.as_bytes()], |reply| match reply {
            RespReply::Bulk(value) => Some(value.to_vec()),
            _ => None,
        })?;
        let Some(mut value) = value else { return Err(Failure::silent(Exit::Absent)) };
        let mut out = std::io::stdout();
        if out.is_terminal() {
            value.push(b'\n');
        }
        let written = out.write_all(&value).and_then(|()| out.flush());
        written.map_err(Failure::about(Exit::Failed, "standard output"))
    }
}
