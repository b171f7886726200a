//! Parsers of Redis's commands on the connection.
use crate::identity::NAME_BYTES_MAX;
use crate::number::parse_i64_strict;
use crate::resp::decode::Parsed;
use crate::resp::invocation::Invocation;
use crate::resp::refusal::{Refusal, SYNTAX};
use crate::{Command, Connection, RespShape, RespVersion};
use alloc::format;
use alloc::string::String;

const VERSION_NOT_A_NUMBER: Refusal = Refusal::Fixed("-ERR Protocol version is not an integer or out of range\r\n");
const VERSION_UNKNOWN: Refusal = Refusal::Fixed("-NOPROTO unsupported protocol version\r\n");
const WRONG_PASS: Refusal = Refusal::Fixed("-WRONGPASS invalid username-password pair or user is disabled.\r\n");
const NO_SUCH_DB: Refusal = Refusal::Fixed("-ERR DB index is out of range\r\n");

const fn done(connection: Connection<'_>) -> Parsed<'_> {
    Ok(Command::Connection(connection))
}

pub(super) fn ping<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count > 2 {
        return Err(Refusal::Arity("ping"));
    }
    done(Connection::Ping(invocation.get(1)))
}

pub(super) fn echo<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::Echo(invocation.arg(1)))
}

pub(super) fn quit<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::Quit(invocation.shape(RespShape::OkOrNull)))
}

pub(super) fn reset<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::Reset)
}

pub(super) fn select<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.integer(1)? == 0 { done(Connection::Select) } else { Err(NO_SUCH_DB) }
}

pub(super) fn hello<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let version = match invocation.get(1).map(parse_i64_strict) {
        None => None,
        Some(None) => return Err(VERSION_NOT_A_NUMBER),
        Some(Some(2)) => Some(RespVersion::V2),
        Some(Some(3)) => Some(RespVersion::V3),
        Some(Some(_)) => return Err(VERSION_UNKNOWN),
    };
    let (mut options, mut name) = (invocation.rest(2), None);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"AUTH") && options.len() >= 2 {
            // The default user without a password is the only user, and it accepts any password.
            if (options.next(), options.next()).0 != Some(b"default") {
                return Err(WRONG_PASS);
            }
        } else if word.eq_ignore_ascii_case(b"SETNAME") && !options.is_empty() {
            name = options.next().map(|name| checked(name, "Client names")).transpose()?;
        } else {
            let word = String::from_utf8_lossy(&word[..word.len().min(64)]);
            return Err(Refusal::Told(format!("ERR Syntax error in HELLO option '{word}'")));
        }
    }
    done(Connection::Hello { version, name })
}

/// Validates a name: printable, without spaces, of limited length. Names are shown in client lists.
fn checked<'a>(name: &'a [u8], what: &str) -> Result<&'a [u8], Refusal> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::Told(format!("ERR {what} cannot be longer than {NAME_BYTES_MAX} bytes")));
    }
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let told = format!("ERR {what} cannot contain spaces, newlines or special characters.");
        return Err(Refusal::Told(told));
    }
    Ok(name)
}

pub(super) fn client_id<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::ClientId)
}

pub(super) fn client_info<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::ClientInfo)
}

pub(super) fn client_getname<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::ClientGetName)
}

pub(super) fn client_setname<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    done(Connection::ClientSetName(checked(invocation.arg(2), "Client names")?))
}

pub(super) fn client_setinfo<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let (attribute, value) = (invocation.arg(2), invocation.arg(3));
    if attribute.eq_ignore_ascii_case(b"LIB-NAME") {
        done(Connection::ClientSetLibName(checked(value, "lib-name")?))
    } else if attribute.eq_ignore_ascii_case(b"LIB-VER") {
        done(Connection::ClientSetLibVersion(checked(value, "lib-ver")?))
    } else {
        let attribute = String::from_utf8_lossy(&attribute[..attribute.len().min(64)]);
        Err(Refusal::Told(format!("ERR Unrecognized option '{attribute}'")))
    }
}

/// `CLIENT NO-EVICT` and `NO-TOUCH`: without effect, since there is no eviction and no access time.
pub(super) fn client_switch<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let word = invocation.arg(2);
    if word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF") {
        return done(Connection::ClientNoOp);
    }
    Err(SYNTAX)
}
