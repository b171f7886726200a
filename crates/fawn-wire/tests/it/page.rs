//! Test that `docs/guide/commands.md` equals the command table, from which it is generated.
use fawn_wire::Protocol;
use fawn_wire::commands::{COMMANDS, CommandFlags, CommandGroup, CommandSpec};
use std::path::Path;

/// With `FAWN_REGENERATE` set (as by `cargo xtask fix`), the page is written first.
#[test]
fn commands_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    let expected = markdown();
    if std::env::var_os("FAWN_REGENERATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/guide/commands.md differs from the command table: run `cargo xtask fix` and commit it"
    );
}

const INTRO: &str = "\
# Commands

Generated from the table in `crates/fawn-wire/src/commands/table.rs` by `cargo xtask fix`; a test compares the two.
Both protocols access the same keys and values. *Since* is the first version of Redis or memcached with the command.

Limits: keys 65,535 bytes (250 in memcached text), values 8 MiB unless configured, 1,048,576 arguments and 64 MiB per
request. Differences from Redis and memcached:

- There is one database: `SELECT 0` succeeds, any other number is an error. `FLUSHDB` is `FLUSHALL`.
- `SET` has an option that Redis has not, `FLAGS`: memcached's flags. Without it a `SET` sets them to 0.
- A value longer than the limit is rejected and its bytes are dropped; the connection remains open.
- A key and its value, with a short header, take at most a quarter of a segment; all of an `MSET` at most a half.
- `MSET` is atomic across crashes, not only among clients.
- A read of an expired key waits while an update is in flight that may keep the key.
- Keys expire by a time that runs with the monotonic clock and follows a step of the wall clock, or the hours that the machine was off, a minute later. A relative expiry that is given in that
  minute, and ends behind it, is no shorter than it says; `TTL` and `EXPIRETIME` show it longer by the step until then.
- `DBSIZE` includes expired keys until a request accesses them or cleaning returns their space; nothing else looks for them. A `SET` with an expiry
  time in the past only removes the key.
- `TOUCH` counts keys; there are no access times. A full store rejects writes; there is no eviction.
- memcached's versions (`gets`, `cas`) are those of the store: they grow with every write and survive restarts.
- Arguments are checked before the key is read: `GETEX` with an invalid time is an error even if the key is absent.
- `SCAN` accepts the cursors that it returned, and rejects text that is not a number. If a record cannot be read, the step answers
  `TRYAGAIN` and the client repeats it with the same cursor. Only the key of a lost record is left out: one that is corrupt, or whose reads
  have failed for 10 s. `fawn_scan_damaged_total` counts them.
- A step of `SCAN` examines about `COUNT` records per range, expired ones included, so it may return a cursor without a key. A pattern of
  `MATCH` has up to 256 bytes.
- `MISCONF`, in memcached `SERVER_ERROR device failed`, is the reply to every write once a device write or sync has failed. Its text says
  `may or may not have been applied` if the write's record was in flight then: after the restart the record may be there. Without
  these words a write of one key was refused; one of several keys may have been applied in part. A read that waited for such
  a write gets the same error.
- A delayed `flush_all` is forgotten by a restart. If it fails when it is due, the log says so, and nothing repeats it.
- A rejected memcached `set` leaves the old value in place. The data block after a rejected line is dropped with it,
  never executed as commands. Surplus words, keys with control characters and plus signs are rejected.
- memcached times after 2038 are taken literally.
";

/// The whole page.
fn markdown() -> String {
    let mut page = String::from(INTRO);
    page.push_str("\n## Redis protocol (RESP2, RESP3)\n");
    for (group, title) in [
        (CommandGroup::String, "Strings and counters"),
        (CommandGroup::Generic, "Keys"),
        (CommandGroup::Connection, "Connection"),
        (CommandGroup::Server, "Server"),
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
    // A container has no action of its own; its subcommands have rows.
    for spec in COMMANDS.iter().filter(|spec| wanted(spec) && !spec.is_container()) {
        page.push_str(&row(spec));
    }
}

fn row(spec: &CommandSpec) -> String {
    let name = match spec.protocol {
        Protocol::Resp => spec.name.replace('|', " ").to_ascii_uppercase(),
        Protocol::Memcached => String::from(spec.name),
    };
    // A bar would end the table cell.
    let syntax = spec.syntax.replace('|', "\\|");
    let usage = if syntax.is_empty() { name } else { format!("{name} {syntax}") };
    let kind = match spec.flags {
        flags if flags.contains(CommandFlags::WRITE) => "write",
        flags if flags.contains(CommandFlags::READONLY) => "read",
        flags if flags.contains(CommandFlags::ADMIN) => "admin",
        _ => "",
    };
    format!("| `{usage}` | {} | {kind} | {} |\n", spec.summary, spec.since)
}
