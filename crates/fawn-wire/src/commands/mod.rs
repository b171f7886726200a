//! Owns what a command is: the table's row, and looking one up.
use crate::Protocol;
use crate::{CommandQuery, RespVersion};
use alloc::vec::Vec;

/// One command, as the parser, `COMMAND` and the documentation know it.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Lower case; a subcommand is `container|sub`.
    pub name: &'static str,
    /// Which protocol it belongs to.
    pub protocol: Protocol,
}

/// Every command of both protocols.
pub static COMMANDS: &[CommandSpec] = &[];

/// Answers `COMMAND` and its subcommands.
pub fn answer(_query: &CommandQuery<'_>, _version: RespVersion, _out: &mut Vec<u8>) {}
