//! Owns what a command is: a row of the table, and finding it by name.
mod answer;
mod connection;
mod expiry;
mod keyspace;
mod lookup;
mod markdown;
mod options;
mod server;
mod strings;
mod table;

pub use answer::answer;
pub use markdown::markdown;
pub use table::COMMANDS;

pub(crate) use lookup::{find, find_subcommand};

use crate::resp::decode::Parsed;
use crate::resp::invocation::Invocation;
use crate::{Decoded, MemcachedState, Protocol, memcached};

/// One command, as the parser, `COMMAND` and the documentation know it.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Lower case; a subcommand is `container|sub`.
    pub name: &'static str,
    /// Which protocol it belongs to.
    pub protocol: Protocol,
    /// Number of words, the name included; negative: at least so many. memcached's `noreply` is not counted.
    pub arity: i16,
    /// What it does and when it is allowed.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: KeyPlaces,
    /// The first version that had it, of the server whose protocol it is.
    pub since: &'static str,
    /// The family it is documented in.
    pub group: Group,
    /// Its arguments.
    pub syntax: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    pub(crate) parse: Parse,
}

/// Makes a command of a framed request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parse {
    Resp(for<'a> fn(&Invocation<'a>) -> Parsed<'a>),
    /// By the table's row for the subcommand.
    Container,
    Memcached(for<'a> fn(&mut MemcachedState, &memcached::line::Line<'a>) -> Decoded<'a>),
}

/// Which arguments are keys, as Redis counts them: the name is 0, a negative `last` counts from the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPlaces {
    /// The first key; 0: there is none.
    pub first: i16,
    /// The last key.
    pub last: i16,
    /// From one key to the next.
    pub step: i16,
}

impl KeyPlaces {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    pub(crate) const ONE: Self = Self { first: 1, last: 1, step: 1 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2 };
    pub(crate) const FROM_SECOND: Self = Self { first: 2, last: -1, step: 1 };
}

/// Redis's command flags, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(pub(crate) u16);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// It may change a key.
    pub const WRITE: Self = Self(1);
    /// It changes no key.
    pub const READONLY: Self = Self(1 << 1);
    /// Refused when the store is full.
    pub const DENYOOM: Self = Self(1 << 2);
    /// It is for operators.
    pub const ADMIN: Self = Self(1 << 3);
    /// Not for scripts.
    pub const NOSCRIPT: Self = Self(1 << 4);
    /// Allowed while loading.
    pub const LOADING: Self = Self(1 << 5);
    /// Allowed on a stale replica.
    pub const STALE: Self = Self(1 << 6);
    /// Takes constant or logarithmic time.
    pub const FAST: Self = Self(1 << 7);
    /// Needs no authentication.
    pub const NO_AUTH: Self = Self(1 << 8);
    /// Allowed while a script blocks.
    pub const ALLOW_BUSY: Self = Self(1 << 9);
    /// In the category `@dangerous`; no flag of Redis's own.
    pub(crate) const DANGEROUS: Self = Self(1 << 15);

    /// Names in the order Redis lists them.
    pub(crate) const NAMES: [(Self, &'static str); 10] = [
        (Self::WRITE, "write"),
        (Self::READONLY, "readonly"),
        (Self::DENYOOM, "denyoom"),
        (Self::ADMIN, "admin"),
        (Self::NOSCRIPT, "noscript"),
        (Self::LOADING, "loading"),
        (Self::STALE, "stale"),
        (Self::FAST, "fast"),
        (Self::NO_AUTH, "no_auth"),
        (Self::ALLOW_BUSY, "allow_busy"),
    ];

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names Redis gives them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| name)
    }
}

/// The families commands are documented in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Values as strings and counters.
    String,
    /// Keys, whatever they hold.
    Generic,
    /// The connection.
    Connection,
    /// The server.
    Server,
}

impl Group {
    /// As `COMMAND DOCS` names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Group::String => "string",
            Group::Generic => "generic",
            Group::Connection => "connection",
            Group::Server => "server",
        }
    }
}

impl CommandSpec {
    /// Whether a request of `count` words, the name included, fits its arity.
    #[inline]
    pub(crate) const fn takes(&self, count: usize) -> bool {
        if self.arity >= 0 { count == self.arity as usize } else { count >= self.arity.unsigned_abs() as usize }
    }

    /// The container it is a subcommand of.
    #[must_use]
    pub fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// The access-control categories Redis puts it in.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> {
        let is_container = matches!(self.parse, Parse::Container);
        let on_data = self.flags.has(Flags::WRITE) || self.flags.has(Flags::READONLY);
        let on_command = self.name.starts_with("command");
        [
            (self.group != Group::String && on_data, "@keyspace"),
            (self.flags.has(Flags::READONLY), "@read"),
            (self.flags.has(Flags::WRITE), "@write"),
            (self.group == Group::String, "@string"),
            (self.flags.has(Flags::ADMIN), "@admin"),
            (self.flags.has(Flags::FAST), "@fast"),
            (!self.flags.has(Flags::FAST), "@slow"),
            (self.flags.has(Flags::DANGEROUS), "@dangerous"),
            (self.group == Group::Connection && !is_container || on_command, "@connection"),
        ]
        .into_iter()
        .filter_map(|(applies, name)| applies.then_some(name))
    }
}
