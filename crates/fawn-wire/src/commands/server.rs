//! Parsers of Redis's commands on the server.
use crate::resp::decode::{Parsed, parse_subcommand};
use crate::resp::invocation::Invocation;
use crate::resp::refusal::SYNTAX;
use crate::{Command, CommandQuery, Server};

pub(super) fn info<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    Ok(Command::Server(Server::Info { sections: invocation.rest(1) }))
}

pub(super) fn config_get<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    Ok(Command::Server(Server::ConfigGet { patterns: invocation.rest(2) }))
}

const fn query(query: CommandQuery<'_>) -> Parsed<'_> {
    Ok(Command::Server(Server::Command(query)))
}

/// `COMMAND`: without arguments, the whole table; otherwise a container of subcommands.
pub(super) fn command<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count == 1 { query(CommandQuery::All) } else { parse_subcommand("command", invocation) }
}

pub(super) fn command_count<'a>(_: &Invocation<'a>) -> Parsed<'a> {
    query(CommandQuery::Count)
}

pub(super) fn command_info<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    if invocation.count == 2 { query(CommandQuery::All) } else { query(CommandQuery::Info(invocation.rest(2))) }
}

pub(super) fn command_docs<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    query(CommandQuery::Docs(invocation.rest(2)))
}

pub(super) fn command_list<'a>(invocation: &Invocation<'a>) -> Parsed<'a> {
    let Some(word) = invocation.get(2) else { return query(CommandQuery::List(None)) };
    if !word.eq_ignore_ascii_case(b"FILTERBY") || invocation.count != 5 {
        return Err(SYNTAX);
    }
    let (filter, value) = (invocation.arg(3), invocation.arg(4));
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
