//! Replies to `COMMAND` and its subcommands, in the layouts of Redis 7.
use super::{COMMANDS, CommandFlags, CommandSpec, KeyPlaces};
use crate::resp::encode::{array_header, bulk, entries, integer, map_header, set_header, simple};
use crate::{Args, CommandQuery, Protocol, RespVersion, glob};
use alloc::vec::Vec;

/// Appends the reply to `COMMAND` or one of its subcommands.
pub fn answer(query: &CommandQuery<'_>, version: RespVersion, out: &mut Vec<u8>) {
    match *query {
        CommandQuery::Count => integer(top_level().count() as i64, out),
        CommandQuery::All => {
            array_header(top_level().count(), out);
            top_level().for_each(|spec| describe(spec, version, out));
        }
        CommandQuery::Info(names) => {
            array_header(names.len(), out);
            for name in names {
                match named(name) {
                    Some(spec) => describe(spec, version, out),
                    None if version == RespVersion::V3 => out.extend_from_slice(b"_\r\n"),
                    None => out.extend_from_slice(b"*-1\r\n"),
                }
            }
        }
        CommandQuery::Docs(names) => docs(names, version, out),
        CommandQuery::List(None) => list(|_| true, out),
        CommandQuery::List(Some(pattern)) => list(|spec| glob::matches(pattern, spec.name.as_bytes()), out),
        CommandQuery::ListCategory(category) => {
            list(|spec| spec.categories().any(|known| known.as_bytes()[1..].eq_ignore_ascii_case(category)), out);
        }
        CommandQuery::ListModule => array_header(0, out),
    }
}

fn resp() -> impl Iterator<Item = &'static CommandSpec> + Clone {
    COMMANDS.iter().filter(|spec| spec.protocol == Protocol::Resp)
}

fn top_level() -> impl Iterator<Item = &'static CommandSpec> + Clone {
    resp().filter(|spec| spec.container().is_none())
}

fn subcommands(container: &'static str) -> impl Iterator<Item = &'static CommandSpec> + Clone {
    resp().filter(move |spec| spec.container() == Some(container))
}

fn named(name: &[u8]) -> Option<&'static CommandSpec> {
    resp().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

fn list(wanted: impl Fn(&CommandSpec) -> bool, out: &mut Vec<u8>) {
    array_header(resp().filter(|spec| wanted(spec)).count(), out);
    resp().filter(|spec| wanted(spec)).for_each(|spec| bulk(spec.name.as_bytes(), out));
}

/// Appends one entry of `COMMAND INFO`: ten elements.
fn describe(spec: &'static CommandSpec, version: RespVersion, out: &mut Vec<u8>) {
    array_header(10, out);
    bulk(spec.name.as_bytes(), out);
    integer(i64::from(spec.arity), out);
    set_header(version, spec.flags.names().count(), out);
    spec.flags.names().for_each(|name| simple(&name, out));
    for place in [spec.keys.first, spec.keys.last, spec.keys.step] {
        integer(i64::from(place), out);
    }
    set_header(version, spec.categories().count(), out);
    spec.categories().for_each(|name| simple(name, out));
    // No command tips.
    array_header(0, out);
    key_specs(spec, version, out);
    array_header(subcommands(spec.name).count(), out);
    subcommands(spec.name).for_each(|sub| describe(sub, version, out));
}

/// Appends the key specification, which repeats the positions of the keys in a general form.
fn key_specs(spec: &CommandSpec, version: RespVersion, out: &mut Vec<u8>) {
    let KeyPlaces { first, last, step } = spec.keys;
    if first == 0 {
        return array_header(0, out);
    }
    array_header(1, out);
    map_header(version, 3, out);
    bulk(b"flags", out);
    let access = if spec.flags.contains(CommandFlags::WRITE) { ["RW", "update"] } else { ["RO", "access"] };
    set_header(version, access.len(), out);
    access.iter().for_each(|name| simple(name, out));
    bulk(b"begin_search", out);
    typed(version, "index", &[("index", first)], out);
    bulk(b"find_keys", out);
    // Relative to the first key; a negative position is relative to the end.
    let last = if last < 0 { last } else { last - first };
    typed(version, "range", &[("lastkey", last), ("keystep", step), ("limit", 0)], out);
}

fn typed(version: RespVersion, kind: &str, fields: &[(&str, i16)], out: &mut Vec<u8>) {
    map_header(version, 2, out);
    bulk(b"type", out);
    bulk(kind.as_bytes(), out);
    bulk(b"spec", out);
    map_header(version, fields.len(), out);
    for (name, value) in fields {
        bulk(name.as_bytes(), out);
        integer(i64::from(*value), out);
    }
}

/// Appends the reply to `COMMAND DOCS`: the named commands that exist, or all without names.
fn docs(names: Args<'_>, version: RespVersion, out: &mut Vec<u8>) {
    if names.is_empty() {
        map_header(version, top_level().count(), out);
        return top_level().for_each(|spec| document(spec, version, out));
    }
    map_header(version, names.filter(|name| named(name).is_some()).count(), out);
    names.filter_map(named).for_each(|spec| document(spec, version, out));
}

fn document(spec: &'static CommandSpec, version: RespVersion, out: &mut Vec<u8>) {
    bulk(spec.name.as_bytes(), out);
    let subs = subcommands(spec.name).count();
    map_header(version, 3 + usize::from(subs > 0), out);
    entries(&[("summary", spec.summary), ("since", spec.since), ("group", spec.group.name())], out);
    if subs > 0 {
        bulk(b"subcommands", out);
        map_header(version, subs, out);
        subcommands(spec.name).for_each(|sub| document(sub, version, out));
    }
}
