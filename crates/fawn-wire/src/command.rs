//! Decoded requests: on one key, several keys, the keyspace, the connection, or the server.
use crate::{Args, MultiReplyEncoder, ReplyFormat, RespVersion};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update};

/// A decoded request that borrows from the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// A request on one key, the most frequent kind. Reply with [`crate::encode_reply`] and `reply_format`.
    Single {
        /// The request.
        request: Request<'a>,
        /// The encoding of its reply.
        format: ReplyFormat,
    },
    /// A request on several keys, or on one key with a reply that is a list.
    Multi(MultiCommand<'a>),
    /// A request on the whole keyspace.
    Keyspace(KeyspaceCommand<'a>),
    /// A request on the connection itself. Reply with [`ConnectionCommand::answer`].
    Connection(ConnectionCommand<'a>),
    /// A request on the server.
    Server(ServerCommand<'a>),
}

/// The action on each key of a [`MultiCommand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EachKey {
    /// Reads the key (`MGET`, `EXISTS`, memcached `get`, `gets`).
    Get,
    /// Removes the key (`DEL`, `UNLINK`).
    Delete,
    /// Changes the expiry and returns the entry (memcached `gat`, `gats`).
    Touch(Expiry),
    /// Sets the key to the next argument (`MSET`).
    Set,
}

impl EachKey {
    /// The request on one key. [`EachKey::Set`] has none: its keys are set together, with their values.
    #[must_use]
    pub fn request(self, key: &[u8]) -> Request<'_> {
        let update = match self {
            Self::Get => return Request::Get { key },
            Self::Delete => Update::Delete { condition: Condition::Always, return_previous: false },
            Self::Touch(expiry) => Update::Touch { expiry, condition: ExpiryCondition::Always, return_value: true },
            Self::Set => unreachable!("its keys are set together"),
        };
        Request::Update { key, update }
    }
}

/// A request on several keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiCommand<'a> {
    pub(crate) keys: Args<'a>,
    /// The action on each key.
    pub each: EachKey,
    /// Combines the replies into one. With [`Atomic`](crate::ReplyFold::Atomic), all keys change or none does, even
    /// across a crash.
    pub multi_reply: MultiReplyEncoder,
}

impl<'a> MultiCommand<'a> {
    /// Number of single-key requests.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.multi_reply.len as usize
    }

    /// Always false: the decoder rejects a request without keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys, in the order of the request.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let step = if self.each == EachKey::Set { 2 } else { 1 };
        self.keys.step_by(step)
    }

    /// One request per key, in the order of the keys; does not allocate.
    pub fn requests(&self) -> impl Iterator<Item = Request<'a>> + Clone + use<'a> {
        let (mut args, each) = (self.keys, self.each);
        core::iter::from_fn(move || {
            let key = args.next()?;
            Some(match each {
                EachKey::Set => Request::Update { key, update: unconditional_set(args.next()?) },
                each => each.request(key),
            })
        })
    }
}

/// An unconditional write that removes the expiry.
pub(crate) const fn unconditional_set(value: &[u8]) -> Update<'_> {
    let (expiry, condition) = (Expiry::Never, Condition::Always);
    Update::Set { value, flags: 0, expiry, condition, return_previous: false }
}

/// A request on the whole keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyspaceCommand<'a> {
    /// Removes every key. Reply with [`crate::encode_done`].
    FlushAll {
        /// Time of the removal, ms since the Unix epoch; 0: immediately. A delayed removal (memcached) affects the keys
        /// present at that time.
        at_ms: u64,
        /// The encoding of the reply.
        format: ReplyFormat,
    },
    /// One step of a scan. Reply with [`crate::resp::encode::scan`].
    Scan {
        /// Position to continue from; 0 starts a scan.
        cursor: u64,
        /// Returns only keys that match this pattern, see [`crate::glob::matches`].
        pattern: Option<&'a [u8]>,
        /// Approximate number of keys to examine.
        count: usize,
        /// Returns only keys of this type: a name as in `TYPE`, in any case. An unknown type matches no key.
        kind: Option<&'a [u8]>,
    },
    /// Number of keys. Reply with [`crate::resp::encode::integer`].
    DbSize,
}

impl KeyspaceCommand<'_> {
    /// Whether the scan's `TYPE` option includes strings.
    #[must_use]
    pub fn wants_strings(&self) -> bool {
        match self {
            KeyspaceCommand::Scan { kind: Some(kind), .. } => kind.eq_ignore_ascii_case(b"string"),
            _ => true,
        }
    }
}

/// A request on the connection itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionCommand<'a> {
    /// `PING`: `PONG`, or the message.
    Ping(Option<&'a [u8]>),
    /// `ECHO`.
    Echo(&'a [u8]),
    /// `HELLO`: may change the RESP version and the connection's name.
    Hello {
        /// The requested version.
        version: Option<RespVersion>,
        /// `SETNAME`.
        name: Option<&'a [u8]>,
    },
    /// `QUIT`, in either protocol: close after the pending replies.
    Quit(ReplyFormat),
    /// `RESET`: back to RESP2, without a name.
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
    /// Accepted without effect: `SELECT 0`, since the decoder rejects other databases, `CLIENT NO-EVICT` and
    /// `NO-TOUCH`, and memcached's `verbosity`, since logging is configured elsewhere.
    NoEffect(ReplyFormat),
    /// memcached `version`.
    Version,
}

/// A request on the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerCommand<'a> {
    /// `INFO`: the requested sections; none: the default ones. Reply with [`crate::resp::encode::text`].
    Info {
        /// Names of the sections.
        sections: Args<'a>,
    },
    /// `CONFIG GET`: parameters that match any of the patterns. Reply with [`crate::resp::encode::pairs`].
    ConfigGet {
        /// The patterns.
        patterns: Args<'a>,
    },
    /// `COMMAND` and its subcommands. Reply with [`crate::commands::answer`].
    Command(CommandQuery<'a>),
    /// memcached `stats`. Reply with [`crate::memcached::encode::stats`].
    Stats {
        /// `settings`, `items` and so on; none: the general statistics.
        argument: Option<&'a [u8]>,
    },
}

/// A query about the command table (`COMMAND`).
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
    /// `COMMAND LIST`, with an optional pattern for the names.
    List(Option<&'a [u8]>),
    /// `COMMAND LIST FILTERBY ACLCAT`.
    ListCategory(&'a [u8]),
    /// `COMMAND LIST FILTERBY MODULE`: always empty, since there are no modules.
    ListModule,
}
