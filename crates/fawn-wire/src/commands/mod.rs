//! Commands: the specification of a command, the command table, and the lookup by name.
mod connection;
mod expiry;
mod introspection;
mod keyspace;
mod lookup;
mod options;
mod server;
mod strings;
mod table;

pub use introspection::answer;
pub use table::COMMANDS;

pub(crate) use lookup::{find, find_subcommand};

use crate::resp::command_args::CommandArgs;
use crate::resp::decode::ParseResult;
use crate::{Decoded, MemcachedState, Protocol, memcached};
use alloc::string::String;

/// Specification of a command, used by the parser, by `COMMAND` and by the documentation.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Name in lower case; a subcommand is `container|sub`.
    pub name: &'static str,
    /// Protocol of the command.
    pub protocol: Protocol,
    /// Number of words, including the name; negative: a minimum. memcached's `noreply` does not count.
    pub arity: i16,
    /// Properties of the command, as in Redis.
    pub flags: CommandFlags,
    /// Positions of the keys among the arguments.
    pub keys: KeyPlaces,
    /// First version of Redis or memcached with this command.
    pub since: &'static str,
    /// Group in the documentation.
    pub group: CommandGroup,
    /// Syntax of the arguments.
    pub syntax: &'static str,
    /// Description in one sentence.
    pub summary: &'static str,
    pub(crate) parse: Parse,
}

/// The parser that turns a framed request into a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parse {
    Resp(for<'a> fn(&CommandArgs<'a>) -> ParseResult<'a>),
    /// Dispatches to the subcommand's row.
    Container,
    Memcached(for<'a> fn(&mut MemcachedState, &memcached::line::MemcachedLine<'a>) -> Decoded<'a>),
}

/// Positions of the keys among the arguments, as in Redis: the name is 0, and a negative `last` counts from the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPlaces {
    /// Position of the first key; 0: no keys.
    pub first: i16,
    /// Position of the last key.
    pub last: i16,
    /// Distance between keys.
    pub step: i16,
}

impl KeyPlaces {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    pub(crate) const ONE: Self = Self { first: 1, last: 1, step: 1 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2 };
    pub(crate) const FROM_SECOND: Self = Self { first: 2, last: -1, step: 1 };
}

bitflags::bitflags! {
    /// A set of Redis's command flags, in Redis's order.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CommandFlags: u16 {
        /// May change a key.
        const WRITE = 1;
        /// Changes no key.
        const READONLY = 1 << 1;
        /// Rejected if the store is full.
        const DENYOOM = 1 << 2;
        /// Intended for operators.
        const ADMIN = 1 << 3;
        /// Not allowed in scripts.
        const NOSCRIPT = 1 << 4;
        /// Allowed while the server loads data.
        const LOADING = 1 << 5;
        /// Allowed on a stale replica.
        const STALE = 1 << 6;
        /// Takes constant or logarithmic time.
        const FAST = 1 << 7;
        /// Needs no authentication.
        const NO_AUTH = 1 << 8;
        /// Allowed while a script blocks.
        const ALLOW_BUSY = 1 << 9;
        /// Puts the command into the category `@dangerous`; not one of Redis's flags.
        const DANGEROUS = 1 << 15;
    }
}

impl CommandFlags {
    /// Redis's names of the flags.
    pub fn names(self) -> impl Iterator<Item = String> {
        self.difference(Self::DANGEROUS).iter_names().map(|(name, _)| name.to_ascii_lowercase())
    }
}

/// Groups of commands in the documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandGroup {
    /// Strings and counters.
    String,
    /// Keys of any type.
    Generic,
    /// The connection.
    Connection,
    /// The server.
    Server,
}

impl CommandGroup {
    /// The group's name in `COMMAND DOCS`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CommandGroup::String => "string",
            CommandGroup::Generic => "generic",
            CommandGroup::Connection => "connection",
            CommandGroup::Server => "server",
        }
    }
}

impl CommandSpec {
    /// Whether the arity allows a request of `count` words, including the name.
    #[inline]
    pub(crate) const fn takes(&self, count: usize) -> bool {
        if self.arity >= 0 { count == self.arity as usize } else { count >= self.arity.unsigned_abs() as usize }
    }

    /// The container of a subcommand.
    #[must_use]
    pub fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// Whether it only has subcommands.
    #[must_use]
    pub const fn is_container(&self) -> bool {
        matches!(self.parse, Parse::Container)
    }

    /// The command's access-control categories in Redis.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> {
        let on_data = self.flags.contains(CommandFlags::WRITE) || self.flags.contains(CommandFlags::READONLY);
        let on_command = self.name.starts_with("command");
        [
            (self.group != CommandGroup::String && on_data, "@keyspace"),
            (self.flags.contains(CommandFlags::READONLY), "@read"),
            (self.flags.contains(CommandFlags::WRITE), "@write"),
            (self.group == CommandGroup::String, "@string"),
            (self.flags.contains(CommandFlags::ADMIN), "@admin"),
            (self.flags.contains(CommandFlags::FAST), "@fast"),
            (!self.flags.contains(CommandFlags::FAST), "@slow"),
            (self.flags.contains(CommandFlags::DANGEROUS), "@dangerous"),
            (self.group == CommandGroup::Connection && !self.is_container() || on_command, "@connection"),
        ]
        .into_iter()
        .filter_map(|(applies, name)| applies.then_some(name))
    }
}
