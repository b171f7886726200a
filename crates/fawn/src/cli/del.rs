//! Command `fawn del`.
use super::target::Target;
use crate::failure::{Exit, Failure};
use crate::printing::print_result;
use fawn_wire::client::resp::RespReply;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Removes keys and prints how many existed; exit code 6 if none did.
#[derive(clap::Args)]
pub(super) struct Del {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    target: Target,
}

impl Del {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut args: Vec<&[u8]> = vec![b"DEL"];
        args.extend(self.keys.iter().map(|key| key.as_bytes()));
        let removed = self.target.connect()?.call(&args, |reply| match reply {
            RespReply::Integer(removed) => removed,
            _ => 0,
        })?;
        print_result(removed);
        if removed == 0 { Err(Failure::silent(Exit::Absent)) } else { Ok(()) }
    }
}
