//! Parsers of Redis's commands on the server.
use crate::resp::command_args::CommandArgs;
use crate::resp::decode::{ParseResult, parse_subcommand};
use crate::resp::parse_error::SYNTAX;
use crate::{Command, CommandQuery, ServerCommand};

pub(super) const fn query(query: CommandQuery<'_>) -> ParseResult<'_> {
    Ok(Command::Server(ServerCommand::Command(query)))
}

/// `COMMAND`: without arguments, the whole table; otherwise a container of subcommands.
pub(super) fn command<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count == 1 { query(CommandQuery::All) } else { parse_subcommand("command", args) }
}

pub(super) fn command_info<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    if args.count == 2 { query(CommandQuery::All) } else { query(CommandQuery::Info(args.from(2))) }
}

pub(super) fn command_list<'a>(args: &CommandArgs<'a>) -> ParseResult<'a> {
    let Some(word) = args.get(2) else { return query(CommandQuery::List(None)) };
    if !word.eq_ignore_ascii_case(b"FILTERBY") || args.count != 5 {
        return Err(SYNTAX);
    }
    let (filter, value) = (args.arg(3), args.arg(4));
    if filter.eq_ignore_ascii_case(b"PATTERN") {
        query(CommandQuery::List(Some(value)))
    } else if filter.eq_ignore_ascii_case(b"ACLCAT") {
        query(CommandQuery::ListCategory(value))
    } else if filter.eq_ignore_ascii_case(b"MODULE") {
        query(CommandQuery::ListModule)
    } else {
        Err(SYNTAX)
    }
}
