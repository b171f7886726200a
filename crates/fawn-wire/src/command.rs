//! Owns what a decoded request is: on one key, on several, on the keyspace, on the connection, on the server.
use crate::native::WideRequest;
use crate::{Args, Fold, Gather, RespVersion, Shape};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update};

/// A decoded request, borrowing from the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// One key: the hot ones. Answer by [`crate::encode_reply`] with `shape`.
    Single {
        /// What to do.
        request: Request<'a>,
        /// How its reply is worded.
        shape: Shape,
    },
    /// Several keys, or one whose reply is framed as a list.
    Multi(Multi<'a>),
    /// The whole keyspace.
    Keyspace(Keyspace<'a>),
    /// A shard's range as a whole, asked by another shard. Answer in [`Shape::Native`].
    Wide(WideRequest<'a>),
    /// The connection itself. Answer by [`Connection::answer`].
    Connection(Connection<'a>),
    /// The server.
    Server(Server<'a>),
}

impl Command<'_> {
    /// How many values its reply holds at most; 0: the reply is short whatever the keys hold.
    #[must_use]
    #[inline]
    pub const fn values(&self) -> u32 {
        match self {
            Self::Single { request, .. } => request.returns_value() as u32,
            Self::Multi(multi) => match multi.gather.fold {
                Fold::Each(_) => multi.gather.len,
                Fold::Count | Fold::Atomic(_) => 0,
            },
            Self::Keyspace(_) | Self::Wide(_) | Self::Connection(_) | Self::Server(_) => 0,
        }
    }
}

/// What is done to each key of a [`Multi`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Each {
    /// Read (`MGET`, `EXISTS`, memcached `get`, `gets`).
    Get,
    /// Removed (`DEL`, `UNLINK`).
    Delete,
    /// Its expiry changed, its entry returned (memcached `gat`, `gats`).
    Touch(Expiry),
    /// Set to the argument after it (`MSET`).
    Set,
}

/// A request on several keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Multi<'a> {
    pub(crate) keys: Args<'a>,
    /// What is done to each key.
    pub each: Each,
    /// How the replies become one. [`Fold::Atomic`]: all of it or nothing, across crashes too.
    pub gather: Gather,
}

impl<'a> Multi<'a> {
    /// Number of requests it consists of.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.gather.len as usize
    }

    /// Never: a request on no key is refused.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let step = if self.each == Each::Set { 2 } else { 1 };
        self.keys.step_by(step)
    }

    /// One request per key, in order, without allocation.
    pub fn requests(&self) -> impl Iterator<Item = Request<'a>> + Clone + use<'a> {
        let (mut args, each) = (self.keys, self.each);
        core::iter::from_fn(move || {
            let key = args.next()?;
            Some(match each {
                Each::Get => Request::Get { key },
                Each::Delete => {
                    let update = Update::Delete { condition: Condition::Always, return_previous: false };
                    Request::Update { key, update }
                }
                Each::Touch(expiry) => {
                    let condition = ExpiryCondition::Always;
                    Request::Update { key, update: Update::Touch { expiry, condition, return_value: true } }
                }
                Each::Set => Request::Update { key, update: plain_set(args.next()?) },
            })
        })
    }
}

/// An unconditional write that clears the expiry.
pub(crate) const fn plain_set(value: &[u8]) -> Update<'_> {
    let (expiry, condition) = (Expiry::Never, Condition::Always);
    Update::Set { value, flags: 0, expiry, condition, return_previous: false }
}

/// A request on the whole keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keyspace<'a> {
    /// Removes every key. Answer by [`crate::encode_done`].
    FlushAll {
        /// When, ms since the Unix epoch; 0: at once. A later time voids what is there then (memcached).
        at_ms: u64,
        /// How the reply is worded.
        shape: Shape,
    },
    /// One step of a scan. Answer by [`crate::resp::encode::scan`].
    Scan {
        /// Where to go on; 0 starts.
        cursor: u64,
        /// Only keys that match, by [`crate::glob::matches`].
        pattern: Option<&'a [u8]>,
        /// About how many keys to look at.
        count: usize,
        /// Only keys of this type, as `TYPE` names it, whatever its case; a type that does not exist matches none.
        kind: Option<&'a [u8]>,
    },
    /// Number of keys. Answer by [`crate::resp::encode::integer`].
    DbSize,
}

impl Keyspace<'_> {
    /// Whether a scan's `TYPE` lets strings through.
    #[must_use]
    pub fn wants_strings(&self) -> bool {
        match self {
            Keyspace::Scan { kind: Some(kind), .. } => kind.eq_ignore_ascii_case(b"string"),
            _ => true,
        }
    }
}

/// A request on the connection itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection<'a> {
    /// `PING`: `PONG`, or the message.
    Ping(Option<&'a [u8]>),
    /// `ECHO`.
    Echo(&'a [u8]),
    /// `HELLO`: perhaps another version of RESP, perhaps a name.
    Hello {
        /// The version asked for.
        version: Option<RespVersion>,
        /// `SETNAME`.
        name: Option<&'a [u8]>,
    },
    /// `SELECT 0`; others are refused by the decoder.
    Select,
    /// `QUIT`, in either protocol: close after the replies so far.
    Quit(Shape),
    /// `RESET`: back to RESP2, no name.
    Reset,
    /// `CLIENT ID`.
    ClientId,
    /// `CLIENT GETNAME`.
    ClientGetName,
    /// `CLIENT SETNAME`.
    ClientSetName(&'a [u8]),
    /// `CLIENT SETINFO LIB-NAME`.
    ClientSetLibName(&'a [u8]),
    /// `CLIENT SETINFO LIB-VER`.
    ClientSetLibVersion(&'a [u8]),
    /// `CLIENT INFO`.
    ClientInfo,
    /// `CLIENT NO-EVICT` and `NO-TOUCH`: accepted, nothing to do.
    ClientNoOp,
    /// memcached `verbosity`: accepted, logging has its own switch.
    Verbosity(Shape),
    /// memcached `version`.
    Version,
}

/// A request on the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server<'a> {
    /// `INFO`: the sections asked for, none meaning the default ones. Answer by [`crate::resp::encode::text`].
    Info {
        /// The sections' names.
        sections: Args<'a>,
    },
    /// `CONFIG GET`: parameters that match any of the patterns. Answer by [`crate::resp::encode::pairs`].
    ConfigGet {
        /// The patterns.
        patterns: Args<'a>,
    },
    /// `COMMAND` and its subcommands. Answer by [`crate::commands::answer`].
    Command(CommandQuery<'a>),
    /// memcached `stats`. Answer by [`crate::memcached::encode::stats`].
    Stats {
        /// `settings`, `items`, …; none: the general ones.
        argument: Option<&'a [u8]>,
    },
}

/// What `COMMAND` is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandQuery<'a> {
    /// `COMMAND`: the whole table.
    All,
    /// `COMMAND COUNT`.
    Count,
    /// `COMMAND INFO [name …]`.
    Info(Args<'a>),
    /// `COMMAND DOCS [name …]`.
    Docs(Args<'a>),
    /// `COMMAND LIST`, perhaps only names matching a pattern.
    List(Option<&'a [u8]>),
    /// `COMMAND LIST FILTERBY ACLCAT`.
    ListCategory(&'a [u8]),
    /// `COMMAND LIST FILTERBY MODULE`: there are none.
    ListModule,
}
