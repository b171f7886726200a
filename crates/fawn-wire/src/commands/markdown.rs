//! Owns `docs/commands.md`: the table as a page.
use super::{COMMANDS, CommandSpec, Flags, Group, Parse};
use crate::Protocol;
use alloc::format;
use alloc::string::String;

const INTRO: &str = "\
# Commands

Made from the table in `crates/fawn-wire/src/commands/table.rs` by `cargo xtask fix`; a test keeps the two equal.
Both protocols see the same keys and values. *Since* is the first version of the protocol's own server that had it.

Limits: keys 65,535 bytes (250 in memcached text), values 8 MiB unless configured, 1,048,576 arguments and 64 MiB a
request. Differences from the servers whose protocols these are:

- There is one database: `SELECT 0` succeeds, any other number is refused. `FLUSHDB` is `FLUSHALL`.
- A value longer than the limit is refused, its bytes dropped, and the connection goes on.
- `MSET` is atomic across crashes, not only among clients.
- `DBSIZE` counts keys whose time has come until a request meets them; nothing looks for them. A `SET` whose time is past
  only removes what was there.
- `TOUCH` counts keys; no access times are kept. A full store refuses writes; nothing is evicted.
- memcached's versions (`gets`, `cas`) are the store's own: they grow with every write and survive restarts.
- Arguments are checked before the key is looked at: `GETEX` of an absent key with a time that is no number is an error.
- `SCAN` takes cursors it gave out and refuses text that is no number.
- A refused memcached `set` leaves the old value in place, and the block after a refused line is dropped with it, never
  taken for commands. More words than a command has, keys with control characters and signs of plus are refused.
- memcached times after 2038 are what they say.
";

/// The page, whole.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(INTRO);
    page.push_str("\n## Redis protocol (RESP2, RESP3)\n");
    for (group, title) in [
        (Group::String, "Strings and counters"),
        (Group::Generic, "Keys"),
        (Group::Connection, "Connection"),
        (Group::Server, "Server"),
    ] {
        page.push_str(&format!("\n### {title}\n\n"));
        table(|spec| spec.protocol == Protocol::Resp && spec.group == group, &mut page);
    }
    page.push_str("\n## memcached text protocol\n\n");
    table(|spec| spec.protocol == Protocol::Memcached, &mut page);
    page
}

fn table(wanted: impl Fn(&CommandSpec) -> bool, page: &mut String) {
    page.push_str("| command | does | kind | since |\n|---|---|---|---|\n");
    // A container alone does nothing; its subcommands have rows.
    for spec in COMMANDS.iter().filter(|spec| wanted(spec) && !matches!(spec.parse, Parse::Container)) {
        page.push_str(&row(spec));
    }
}

fn row(spec: &CommandSpec) -> String {
    let name = match spec.protocol {
        Protocol::Resp => spec.name.replace('|', " ").to_ascii_uppercase(),
        Protocol::Memcached | Protocol::Native => String::from(spec.name),
    };
    // A bar would end the cell.
    let syntax = spec.syntax.replace('|', "\\|");
    let usage = if syntax.is_empty() { name } else { format!("{name} {syntax}") };
    let kind = match spec.flags {
        flags if flags.has(Flags::WRITE) => "write",
        flags if flags.has(Flags::READONLY) => "read",
        flags if flags.has(Flags::ADMIN) => "admin",
        _ => "",
    };
    format!("| `{usage}` | {} | {kind} | {} |\n", spec.summary, spec.since)
}
