//! Parsers of Redis's commands on the connection.
use crate::identity::NAME_BYTES_MAX;
use crate::number::parse_i64_strict;
use crate::resp::command_args::CommandArgs;
use crate::resp::decode::ParseResult;
use crate::resp::parse_error::{ParseError, SYNTAX, arity, line, lossy};
use crate::{Command, ConnectionCommand, RespFormat, RespVersion};
use alloc::format;

const VERSION_NOT_A_NUMBER: ParseError =
    ParseError::Borrowed(b"-ERR Protocol version is not an integer or out of range\r\n");
const VERSION_UNKNOWN: ParseError = ParseError::Borrowed(b"-NOPROTO unsupported protocol version\r\n");
const WRONG_PASS: ParseError =
    ParseError::Borrowed(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n");
const NO_SUCH_DB: ParseError = ParseError::Borrowed(b"-ERR DB index is out of range\r\n");

pub(super) const fn done(connection: ConnectionCommand<'_>) -> ParseResult<'_> {
    Ok(Command::Connection(connection))
}

const fn no_effect<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    done(ConnectionCommand::NoEffect(args.format(RespFormat::OkOrNull)))
}

pub(super) fn ping<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count > 2 {
        return Err(arity("ping"));
    }
    done(ConnectionCommand::Ping(args.get(1)))
}

pub(super) fn select<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.integer(1)? == 0 { no_effect(args) } else { Err(NO_SUCH_DB) }
}

pub(super) fn hello<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let version = match args.get(1).map(parse_i64_strict) {
        None => None,
        Some(None) => return Err(VERSION_NOT_A_NUMBER),
        Some(Some(2)) => Some(RespVersion::V2),
        Some(Some(3)) => Some(RespVersion::V3),
        Some(Some(_)) => return Err(VERSION_UNKNOWN),
    };
    let (mut options, mut name) = (args.from(2), None);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"AUTH") && options.len() >= 2 {
            // The default user without a password is the only user, and it accepts any password.
            if (options.next(), options.next()).0 != Some(b"default") {
                return Err(WRONG_PASS);
            }
        } else if word.eq_ignore_ascii_case(b"SETNAME") && !options.is_empty() {
            name = options.next().map(|name| checked(name, "Client names")).transpose()?;
        } else {
            return Err(line(&format!("ERR Syntax error in HELLO option '{}'", lossy(word, 64))));
        }
    }
    done(ConnectionCommand::Hello { version, name })
}

/// Validates a name: printable, without spaces, of limited length. Names are shown in client lists.
pub(super) fn checked<'a>(name: &'a [u8], what: &str) -> Result<&'a [u8], ParseError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(line(&format!("ERR {what} cannot be longer than {NAME_BYTES_MAX} bytes")));
    }
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err(line(&format!("ERR {what} cannot contain spaces, newlines or special characters.")));
    }
    Ok(name)
}

pub(super) fn client_setinfo<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let (attribute, value) = (args.arg(2), args.arg(3));
    if attribute.eq_ignore_ascii_case(b"LIB-NAME") {
        done(ConnectionCommand::ClientSetLibName(checked(value, "lib-name")?))
    } else if attribute.eq_ignore_ascii_case(b"LIB-VER") {
        done(ConnectionCommand::ClientSetLibVersion(checked(value, "lib-ver")?))
    } else {
        Err(line(&format!("ERR Unrecognized option '{}'", lossy(attribute, 64))))
    }
}

/// `CLIENT NO-EVICT` and `NO-TOUCH`: without effect, since there is no eviction and no access time.
pub(super) fn client_switch<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let word = args.arg(2);
    if word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF") {
        return no_effect(args);
    }
    Err(SYNTAX)
}
