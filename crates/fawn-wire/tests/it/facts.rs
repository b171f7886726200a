//! Comparison of the command table with the output of `COMMAND INFO` of redis-server 7.0.15.
use fawn_wire::{COMMANDS, CommandSpec, Protocol};

/// Name, arity, flags, first and last key, step, categories. Commands added in 7.2 are not included.
const REDIS: &str = "\
append: 3: write denyoom fast: 1 1 1: @fast @string @write
client: -2: : 0 0 0: @slow
client|getname: 2: noscript loading stale: 0 0 0: @connection @slow
client|id: 2: noscript loading stale: 0 0 0: @connection @slow
client|info: 2: noscript loading stale: 0 0 0: @connection @slow
client|no-evict: 3: admin noscript loading stale: 0 0 0: @admin @connection @dangerous @slow
client|setname: 3: noscript loading stale: 0 0 0: @connection @slow
command: -1: loading stale: 0 0 0: @connection @slow
command|count: 2: loading stale: 0 0 0: @connection @slow
command|docs: -2: loading stale: 0 0 0: @connection @slow
command|info: -2: loading stale: 0 0 0: @connection @slow
command|list: -2: loading stale: 0 0 0: @connection @slow
config: -2: : 0 0 0: @slow
config|get: -3: admin noscript loading stale: 0 0 0: @admin @dangerous @slow
dbsize: 1: readonly fast: 0 0 0: @fast @keyspace @read
decr: 2: write denyoom fast: 1 1 1: @fast @string @write
decrby: 3: write denyoom fast: 1 1 1: @fast @string @write
del: -2: write: 1 -1 1: @keyspace @slow @write
echo: 2: loading stale fast: 0 0 0: @connection @fast
exists: -2: readonly fast: 1 -1 1: @fast @keyspace @read
expire: -3: write fast: 1 1 1: @fast @keyspace @write
expireat: -3: write fast: 1 1 1: @fast @keyspace @write
expiretime: 2: readonly fast: 1 1 1: @fast @keyspace @read
flushall: -1: write: 0 0 0: @dangerous @keyspace @slow @write
flushdb: -1: write: 0 0 0: @dangerous @keyspace @slow @write
get: 2: readonly fast: 1 1 1: @fast @read @string
getdel: 2: write fast: 1 1 1: @fast @string @write
getex: -2: write fast: 1 1 1: @fast @string @write
getset: 3: write denyoom fast: 1 1 1: @fast @string @write
hello: -1: noscript loading stale fast no_auth allow_busy: 0 0 0: @connection @fast
incr: 2: write denyoom fast: 1 1 1: @fast @string @write
incrby: 3: write denyoom fast: 1 1 1: @fast @string @write
info: -1: loading stale: 0 0 0: @dangerous @slow
mget: -2: readonly fast: 1 -1 1: @fast @read @string
mset: -3: write denyoom: 1 -1 2: @slow @string @write
persist: 2: write fast: 1 1 1: @fast @keyspace @write
pexpire: -3: write fast: 1 1 1: @fast @keyspace @write
pexpireat: -3: write fast: 1 1 1: @fast @keyspace @write
pexpiretime: 2: readonly fast: 1 1 1: @fast @keyspace @read
ping: -1: fast: 0 0 0: @connection @fast
psetex: 4: write denyoom: 1 1 1: @slow @string @write
pttl: 2: readonly fast: 1 1 1: @fast @keyspace @read
quit: -1: noscript loading stale fast no_auth allow_busy: 0 0 0: @connection @fast
reset: 1: noscript loading stale fast no_auth allow_busy: 0 0 0: @connection @fast
scan: -2: readonly: 0 0 0: @keyspace @read @slow
select: 2: loading stale fast: 0 0 0: @connection @fast
set: -3: write denyoom: 1 1 1: @slow @string @write
setex: 4: write denyoom: 1 1 1: @slow @string @write
setnx: 3: write denyoom fast: 1 1 1: @fast @string @write
strlen: 2: readonly fast: 1 1 1: @fast @read @string
touch: -2: readonly fast: 1 -1 1: @fast @keyspace @read
ttl: 2: readonly fast: 1 1 1: @fast @keyspace @read
type: 2: readonly fast: 1 1 1: @fast @keyspace @read
unlink: -2: write fast: 1 -1 1: @fast @keyspace @write";

fn told(spec: &CommandSpec) -> String {
    let flags: Vec<_> = spec.flags.names().collect();
    let mut categories: Vec<_> = spec.categories().collect();
    categories.sort_unstable();
    let keys = spec.keys;
    let places = format!("{} {} {}", keys.first, keys.last, keys.step);
    format!("{}: {}: {}: {places}: {}", spec.name, spec.arity, flags.join(" "), categories.join(" "))
}

#[test]
fn the_table_says_what_redis_says() {
    for line in REDIS.lines() {
        let name = line.split(':').next().unwrap();
        let spec = COMMANDS.iter().find(|spec| spec.protocol == Protocol::Resp && spec.name == name);
        assert_eq!(told(spec.unwrap_or_else(|| panic!("{name} is not in the table"))), line);
    }
    let newer = COMMANDS.iter().filter(|spec| spec.protocol == Protocol::Resp && spec.since == "7.2.0").count();
    let all = COMMANDS.iter().filter(|spec| spec.protocol == Protocol::Resp).count();
    assert_eq!(
        REDIS.lines().count() + newer,
        all,
        "a RESP command of the table is missing in REDIS above: add its line from `redis-cli COMMAND INFO`"
    );
}

/// The syntax in each row is a request that the row's parser accepts.
#[test]
fn every_row_decodes() {
    for spec in COMMANDS.iter().filter(|spec| spec.syntax != "subcommand") {
        let mut line = spec.name.replace('|', " ");
        for word in spec.syntax.split(' ').take_while(|word| !word.starts_with('[') && *word != "|") {
            line += " ";
            line += match word {
                "key" => "k",
                "0" => "0",
                option if option.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => option,
                _ => "1",
            };
        }
        line += "\r\n";
        if spec.protocol == Protocol::Memcached {
            line += "x\r\n";
        }
        let trace = crate::driver::run(spec.protocol, line.as_bytes());
        let first = trace.log.lines().next().unwrap_or_default();
        assert!(!first.is_empty() && !first.starts_with("refused"), "{line}: {}", trace.log);
    }
}

/// The replies to `COMMAND` and its subcommands are complete in both RESP versions.
#[test]
fn command_replies_are_whole() {
    use fawn_wire::client::{ParsedReply, resp};
    for hello in ["", "HELLO 3\r\n"] {
        for query in ["COMMAND", "COMMAND DOCS", "COMMAND INFO get nope", "COMMAND LIST", "COMMAND COUNT"] {
            let out = crate::driver::run(Protocol::Resp, format!("{hello}{query}\r\n").as_bytes()).out;
            let (mut rest, mut replies) = (&out[..], 0);
            while !rest.is_empty() {
                let ParsedReply::Reply { consumed, .. } = resp::parse_reply(rest) else { panic!("{query}") };
                rest = &rest[consumed..];
                replies += 1;
            }
            assert_eq!(replies, 1 + usize::from(!hello.is_empty()), "{query}");
        }
    }
    let count = crate::driver::run(Protocol::Resp, b"COMMAND COUNT\r\n").out;
    let top = COMMANDS.iter().filter(|spec| spec.protocol == Protocol::Resp && spec.container().is_none()).count();
    assert_eq!(count, format!(":{top}\r\n").as_bytes());
}
