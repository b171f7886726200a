//! Command `fawn set`.
use super::target::Target;
use crate::config::TimeSpan;
use crate::failure::{Exit, Failure};
use fawn_types::limits::VALUE_BYTES_MAX;
use fawn_wire::client::resp::RespReply;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Sets a key; without a value, reads it from standard input.
#[derive(clap::Args)]
pub(super) struct Set {
    /// The key.
    key: OsString,
    /// The value.
    value: Option<OsString>,
    /// Time until the key expires.
    #[arg(long, value_name = "SPAN")]
    ttl: Option<TimeSpan>,
    /// Set only if the key does not exist.
    #[arg(long, conflicts_with = "only_if_present")]
    only_if_absent: bool,
    /// Set only if the key exists.
    #[arg(long)]
    only_if_present: bool,
    #[command(flatten)]
    target: Target,
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let value = match self.value {
            Some(value) => value.into_vec(),
            None => read_value()?,
        };
        let ttl_ms = self.ttl.map(|span| span.0.as_millis().to_string());
        let mut args: Vec<&[u8]> = vec![b"SET", self.key.as_bytes(), &value];
        if let Some(ttl_ms) = &ttl_ms {
            args.extend([&b"PX"[..], ttl_ms.as_bytes()]);
        }
        if self.only_if_absent {
            args.push(b"NX");
        }
        if self.only_if_present {
            args.push(b"XX");
        }
        let done = self.target.connect()?.call(&args, |reply| reply != RespReply::Null)?;
        if done { Ok(()) } else { Err(Failure::new(Exit::Failed, "not set: the condition does not hold")) }
    }
}

/// One byte above every server's limit: distinguishes a value that is too long from one that just fits.
fn read_value() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = std::io::stdin().take(2 * VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value);
    read.map_err(Failure::about(Exit::Failed, "standard input"))?;
    Ok(value)
}
