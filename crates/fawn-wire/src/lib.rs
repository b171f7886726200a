//! Codecs of memcached text, RESP2/3 and FAWN's internal protocol, in both directions, and the command table.
//!
//! Pure: no I/O and no clock (`now` is an argument), so `no_std` with `alloc`. A codec turns bytes into requests, and
//! replies into bytes. Decoding borrows from the input and does not allocate, except for inline RESP commands with
//! quotes.
//!
//! Decoding and answering one request:
//! ```
//! use fawn_types::{Reply, TimeMs};
//! use fawn_wire::{Codec, CodecLimits, Command, Decoded, Protocol, encode_reply};
//!
//! let (mut codec, mut out) = (Codec::new(Protocol::Resp, CodecLimits::default()), Vec::new());
//! let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
//! match codec.decode(input, TimeMs(0)) {
//!     Decoded::Command { command: Command::Single { request, format }, consumed } => {
//!         assert_eq!((request.key(), consumed), (&b"k"[..], input.len()));
//!         encode_reply(format, request.key(), &Reply::Absent, &mut out);
//!     }
//!     other => panic!("{other:?}"),
//! }
//! assert_eq!(out, b"$-1\r\n");
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod args;
pub mod client;
pub mod codec;
pub mod command;
pub mod commands;
pub mod glob;
pub mod identity;
mod inline;
pub mod internal;
pub mod memcached;
pub mod multi_reply;
pub mod number;
pub mod reply_format;
pub mod resp;

pub use args::Args;
pub use codec::{Codec, CodecLimits, Decoded, Protocol};
pub use command::{Command, CommandQuery, ConnectionCommand, EachKey, KeyspaceCommand, MultiCommand, ServerCommand};
pub use commands::{COMMANDS, CommandSpec};
pub use identity::{AfterReply, ClientIdentity};
pub use memcached::MemcachedState;
pub use multi_reply::{MultiReplyEncoder, ReplyFold};
pub use reply_format::{MemcachedFormat, ReplyFormat, RespFormat, encode_done, encode_error, encode_reply};
pub use resp::{RespState, RespVersion};
