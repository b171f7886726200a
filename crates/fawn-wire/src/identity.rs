//! The name of a client connection, and replies to requests on the connection itself.
use crate::resp::encode::{bulk, entries, integer, map_header, null, simple};
use crate::{Codec, ConnectionCommand, RespVersion, encode_done};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The Redis version that this server's commands follow; clients may select features by it.
pub const REDIS_VERSION: &str = "7.0.0";
/// Maximum length of a client's or a library's name, bytes. A name is kept as long as the connection.
pub const NAME_BYTES_MAX: usize = 256;

/// The identity of a client, partly set by the client itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientIdentity {
    /// The connection's number, unique within the process.
    pub id: u64,
    /// `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// `CLIENT SETINFO LIB-NAME`.
    pub lib_name: Vec<u8>,
    /// `CLIENT SETINFO LIB-VER`.
    pub lib_version: Vec<u8>,
}

/// The action on the connection after a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum AfterReply {
    /// Keep the connection open.
    KeepOpen,
    /// Close the connection once the output is sent.
    Close,
}

impl ConnectionCommand<'_> {
    /// Appends the reply, and changes the connection's codec and identity as requested.
    pub fn answer(&self, codec: &mut Codec, identity: &mut ClientIdentity, out: &mut Vec<u8>) -> AfterReply {
        match *self {
            ConnectionCommand::Ping(None) => simple("PONG", out),
            ConnectionCommand::Ping(Some(message)) | ConnectionCommand::Echo(message) => bulk(message, out),
            ConnectionCommand::Hello { version, name } => {
                if let Some(version) = version {
                    codec.set_resp_version(version);
                }
                if let Some(name) = name {
                    identity.name = name.to_vec();
                }
                hello(codec.resp_version(), identity.id, out);
            }
            ConnectionCommand::Quit(format) => {
                // memcached's `quit` has no reply, Redis's `QUIT` has `OK`.
                if matches!(format, crate::ReplyFormat::Resp(..)) {
                    encode_done(format, out);
                }
                return AfterReply::Close;
            }
            ConnectionCommand::Reset => {
                codec.set_resp_version(RespVersion::V2);
                identity.name.clear();
                simple("RESET", out);
            }
            ConnectionCommand::NoEffect(format) => encode_done(format, out),
            ConnectionCommand::Version => {
                out.extend_from_slice(concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes());
            }
            ConnectionCommand::ClientId => integer(identity.id as i64, out),
            ConnectionCommand::ClientGetName if identity.name.is_empty() => null(codec.resp_version(), out),
            ConnectionCommand::ClientGetName => bulk(&identity.name, out),
            ConnectionCommand::ClientSetName(name) => set(&mut identity.name, name, out),
            ConnectionCommand::ClientSetLibName(name) => set(&mut identity.lib_name, name, out),
            ConnectionCommand::ClientSetLibVersion(name) => set(&mut identity.lib_version, name, out),
            ConnectionCommand::ClientInfo => client_info(codec.resp_version(), identity, out),
        }
        AfterReply::KeepOpen
    }
}

fn set(field: &mut Vec<u8>, value: &[u8], out: &mut Vec<u8>) {
    assert!(value.len() <= NAME_BYTES_MAX, "the decoder rejects longer names");
    field.clear();
    field.extend_from_slice(value);
    simple("OK", out);
}

fn hello(version: RespVersion, id: u64, out: &mut Vec<u8>) {
    map_header(version, 7, out);
    entries(&[("server", "fawn"), ("version", REDIS_VERSION)], out);
    bulk(b"proto", out);
    integer(version as i64, out);
    bulk(b"id", out);
    integer(id as i64, out);
    entries(&[("mode", "standalone"), ("role", "master")], out);
    bulk(b"modules", out);
    out.extend_from_slice(b"*0\r\n");
}

fn client_info(version: RespVersion, identity: &ClientIdentity, out: &mut Vec<u8>) {
    let ClientIdentity { id, name, lib_name, lib_version } = identity;
    // The decoder has checked that names are printable.
    let [name, lib_name, lib_version] = [name, lib_name, lib_version].map(|name| String::from_utf8_lossy(name));
    let resp = version as u8;
    let text = format!("id={id} name={name} lib-name={lib_name} lib-ver={lib_version} db=0 resp={resp}\n");
    crate::resp::encode::text(version, text.as_bytes(), out);
}
