//! Dumps of data directories, their loading, and repair: content, damage, exit codes.
use crate::harness::{Server, connect, exchange, fawn, read_to_end, run, run_with_input};
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A value with every byte, at the length limit.
fn long_value() -> Vec<u8> {
    (0..8 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect()
}

fn command(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).into_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn set(server: &Server, args: &[&[u8]]) {
    exchange(&mut connect(server.resp), &command(&[&[&b"SET"[..]], args].concat()), b"+OK\r\n");
}

/// Binary and empty keys, empty and long values, expiries, flags, deletes and overwrites.
fn fill(server: &Server) {
    set(server, &[b"plain", b"text"]);
    set(server, &["caf\u{e9} \"\\".as_bytes(), "line\nline\ttab\r\u{1F98C}\u{7f}".as_bytes()]);
    set(server, &[&[0, 255, 128, 10, 13], b"\x00\x01binary\xff"]);
    set(server, &[b"control", b"bell\x07"]);
    set(server, &[b"", b"the empty key"]);
    set(server, &[b"empty", b""]);
    set(server, &[b"quotes", &vec![b'"'; 100 << 10]]);
    set(server, &[b"expires", b"later", b"PXAT", b"4102444800123"]);
    set(server, &[b"gone soon", b"x", b"PX", b"1"]);
    set(server, &[b"overwritten", b"old"]);
    set(server, &[b"overwritten", b"new"]);
    set(server, &[b"deleted", b"x"]);
    exchange(&mut connect(server.resp), &command(&[b"DEL", b"deleted"]), b":1\r\n");
    exchange(&mut connect(server.memcached), b"set flagged 4294967295 0 3\r\nabc\r\n", b"STORED\r\n");
    exchange(&mut connect(server.memcached), b"set both 7 4102444800 3\r\nabc\r\n", b"STORED\r\n");
}

/// memcached's version of a key.
pub(crate) fn version(server: &Server, key: &str) -> u64 {
    let mut stream = connect(server.memcached);
    stream.write_all(format!("gets {key}\r\nquit\r\n").as_bytes()).expect("it reads");
    let reply = String::from_utf8(read_to_end(&mut stream)).expect("text");
    let line = reply.lines().next().expect("a line");
    line.rsplit(' ').next().and_then(|version| version.parse().ok()).expect("a version")
}

fn stop(mut server: Server) {
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A directory with a data directory `data`, filled by a server that has stopped.
fn filled(flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), &[flags, &["--segment", "1M"]].concat());
    fill(&server);
    stop(server);
    let data = dir.path().join("data");
    (dir, data)
}

/// Dumps to a file; returns its lines between header and end.
fn dump(data: &Path, file: &Path) -> BTreeSet<String> {
    let (code, out, error) = run(&["dump", text(data), "-o", text(file)]);
    assert_eq!((code, &out[..]), (0, ""), "{error}");
    lines(file)
}

fn lines(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).expect("a dump");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert!(lines.first().is_some_and(|line| line.starts_with("{\"fawn_dump\":1,")), "{:?}", lines.first());
    assert!(lines.pop().is_some_and(|line| line.starts_with("{\"fawn_dump_end\":1,")), "the end");
    lines.drain(1..).collect()
}

/// Every file below `dir` with its content.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in dir.read_dir().expect("it is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else if path.file_name().is_none_or(|name| name != "LOCK") {
            files.push((path.clone(), std::fs::read(&path).expect("readable")));
        }
    }
    files.sort();
    files
}

/// memcached accepts times that are later than a load's `PXAT` can say.
#[test]
fn an_expiry_in_the_far_future_is_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), &[]);
    exchange(&mut connect(server.memcached), b"set far 0 9223372036854775807 1\r\nx\r\n", b"STORED\r\n");
    stop(server);
    let (file, data) = (dir.path().join("dump.jsonl"), dir.path().join("data"));
    let dumped = dump(&data, &file);
    let row = r#"{"key":"far","value":"x","expires_at_ms":9223372036854775807}"#;
    assert_eq!(dumped, BTreeSet::from([row.to_owned()]));
    let other = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(other.path(), &[]);
    let (code, out, error) = run(&["load", text(&file), "--server", &server.resp.to_string()]);
    assert!(code == 0 && out.starts_with("1 rows loaded"), "{code} {out} {error}");
    exchange(&mut connect(server.memcached), b"get far\r\n", b"VALUE far 0 1\r\nx\r\nEND\r\n");
    stop(server);
}

fn round_trip(flags: &[&str], loaded_flags: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), flags);
    fill(&server);
    set(&server, &[b"long", &long_value()]);
    stop(server);
    let data = dir.path().join("data");
    let before = tree(&data);
    let (first, second) = (dir.path().join("first.jsonl"), dir.path().join("second.jsonl"));
    let dumped = dump(&data, &first);
    assert!(before == tree(&data), "a dump changes nothing");
    assert_eq!(dumped.len(), 12, "{:?}", dumped.iter().map(|line| line.get(..60)).collect::<Vec<_>>());
    let has = |line: &str| assert!(dumped.contains(line), "{line}");
    has(r#"{"key":"plain","value":"text"}"#);
    has(r#"{"key_base64":"AP+ACg0=","value_base64":"AAFiaW5hcnn/"}"#);
    has(r#"{"key":"control","value_base64":"YmVsbAc="}"#);
    has(r#"{"key":"overwritten","value":"new"}"#);
    has(r#"{"key":"expires","value":"later","expires_at_ms":4102444800123}"#);
    has(r#"{"key":"flagged","value":"abc","flags":4294967295}"#);
    has(r#"{"key":"both","value":"abc","flags":7,"expires_at_ms":4102444800000}"#);
    has("{\"key\":\"caf\u{e9} \\\"\\\\\",\"value\":\"line\\nline\\ttab\\r\u{1F98C}\u{7f}\"}");

    let other = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(other.path(), loaded_flags);
    let (code, out, error) = run(&["load", text(&first), "--server", &server.resp.to_string()]);
    assert!(code == 0 && out.starts_with("12 rows loaded"), "{code} {out} {error}");
    exchange(&mut connect(server.memcached), b"get flagged\r\n", b"VALUE flagged 4294967295 3\r\nabc\r\nEND\r\n");
    stop(server);
    assert!(dump(&other.path().join("data"), &second) == dumped, "the same set");
}

/// A SET whose time has passed would delete the key, which may have a newer value by now.
#[test]
fn an_expired_row_of_a_dump_changes_nothing() {
    let server = Server::start(&[]);
    set(&server, &[b"key", b"newer"]);
    let mut dump = String::from("{\"fawn_dump\":1}\n{\"key\":\"key\",\"value\":\"old\",\"expires_at_ms\":1000}\n");
    dump += "{\"key\":\"other\",\"value\":\"v\"}\n";
    let mut checksum = fawn_types::checksum::StreamChecksum::new();
    checksum.update(dump.as_bytes());
    dump += &format!("{{\"fawn_dump_end\":1,\"records\":2,\"complete\":true,\"xxh3\":\"{:016x}\"}}\n", checksum.get());
    let (code, out, error) = run_with_input(&["load", "--server", &server.resp.to_string()], dump.as_bytes());
    assert!(code == 0 && out.starts_with("1 rows loaded") && out.contains(", 1 expired"), "{code} {out} {error}");
    exchange(&mut connect(server.resp), &command(&[b"GET", b"key"]), b"$5\r\nnewer\r\n");
}

#[test]
fn a_dump_is_loaded_and_dumped_the_same() {
    round_trip(&[], &["--shards", "3", "--memory", "128M"]);
}

#[test]
fn a_dump_of_shards_is_loaded_and_dumped_the_same() {
    round_trip(&["--shards", "3", "--memory", "128M"], &[]);
}

#[test]
fn resp_is_a_stream_of_commands_and_says_what_it_leaves_out() {
    let (dir, data) = filled(&[]);
    let file = dir.path().join("dump.resp");
    let (code, _, error) = run(&["dump", text(&data), "--format", "resp", "-o", text(&file)]);
    assert!(code == 0 && error.contains("2 keys have memcached flags"), "{code} {error}");
    let server = Server::start(&[]);
    let mut stream = connect(server.resp);
    let mut commands = std::fs::read(&file).expect("written");
    assert!(commands.windows(4).any(|bytes| bytes == b"PXAT"), "expiries are in it");
    commands.extend_from_slice(b"*1\r\n$4\r\nQUIT\r\n");
    stream.write_all(&commands).expect("it reads");
    assert_eq!(read_to_end(&mut stream), b"+OK\r\n".repeat(12), "the replies of a pipe");
    let at = server.resp.to_string();
    assert_eq!(run(&["get", "overwritten", "--server", &at]).1, "new");
    let (code, _, error) = run(&["load", text(&file), "--server", &at]);
    assert!(code == 2 && error.contains("redis-cli --pipe"), "{code} {error}");
}

#[test]
fn a_dump_that_is_cut_short_or_changed_is_refused() {
    let (dir, data) = filled(&[]);
    let file = dir.path().join("dump.jsonl");
    dump(&data, &file);
    let whole = std::fs::read(&file).expect("written");
    let server = Server::start(&[]);
    let at = server.resp.to_string();
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').expect("lines") + 1;
    let mut changed = whole.clone();
    let place = changed.windows(4).position(|bytes| bytes == b"text").expect("it");
    changed[place] = b'n';
    let mut fewer = whole.clone();
    let line = fewer.iter().position(|&byte| byte == b'\n').expect("lines") + 1;
    let line_end = line + fewer[line..].iter().position(|&byte| byte == b'\n').expect("lines") + 1;
    fewer.drain(line..line_end);
    let longer = [&whole[..], b"{\"key\":\"a\",\"value\":\"b\"}\n"].concat();
    for (bytes, words) in [
        (&whole[..last], "cut short: its last line is missing"),
        (&whole[..last - 10], "cut short: its last line is incomplete"),
        (&whole[..whole.len() - 20], "cut short: its last line is incomplete"),
        (&changed, "was changed: its checksum is"),
        (&fewer, "was changed: it has 10 keys, and its last line says 11"),
        (&longer, "more behind the dump's end"),
    ] {
        std::fs::write(&file, bytes).expect("written");
        let (code, _, error) = run(&["load", text(&file), "--server", &at]);
        assert!(code == 5 && error.contains(words) && error.contains("nothing of it was loaded"), "{code} {error}");
        assert_eq!(run(&["get", "plain", "--server", &at]).0, 6, "a file is looked at first");
    }
    let (code, _, error) = run_with_input(&["load", "--server", &at], &whole[..last]);
    assert!(code == 5 && error.contains("cut short") && error.contains("rows of it were loaded"), "{code} {error}");
    let newer = b"{\"fawn_dump\":2,\"fawn\":\"9\"}\n";
    let (code, _, error) = run_with_input(&["load", "--server", &at], newer);
    assert!(code == 5 && error.contains("load it with a newer fawn; 0 rows"), "{code} {error}");
    let (code, _, error) = run_with_input(&["load", "--server", &at], b"{\"id\":1}\n");
    assert!(code == 2 && error.contains("--format and --key"), "{code} {error}");
    assert_eq!(run_with_input(&["load", "--server", &at], &whole).0, 0);
}

/// Flips a byte.
fn damage(file: &Path, at: u64) {
    let mut opened = std::fs::File::options().read(true).write(true).open(file).expect("it is there");
    let mut byte = [0];
    opened.seek(SeekFrom::Start(at)).and_then(|_| opened.read_exact(&mut byte)).expect("readable");
    byte[0] ^= 1;
    opened.seek(SeekFrom::Start(at)).and_then(|_| opened.write_all(&byte)).expect("writable");
}

/// The segments with records, oldest first.
fn segments(store: &Path) -> Vec<PathBuf> {
    let entries = store.read_dir().expect("it is there").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> =
        entries.filter(|path| text(path).ends_with(".fawn")).filter(|path| find(path, b"FwnF") == Some(4096)).collect();
    files.sort();
    files
}

/// Offset of `bytes` near the beginning of the file.
fn find(file: &Path, bytes: &[u8]) -> Option<u64> {
    let mut content = Vec::new();
    let opened = std::fs::File::open(file).expect("it is there");
    opened.take(16 << 10).read_to_end(&mut content).expect("readable");
    content.windows(bytes.len()).position(|found| found == bytes).map(|at| at as u64)
}

/// All steps with a damaged directory, from the first message on: check, dump, repair, serve again.
fn salvaged(flags: &[&str], store: &str) {
    let (dir, data) = filled(flags);
    // In each shard there is something; the long value's segment is found by its first bytes.
    let stores: Vec<_> = match store {
        "" => vec![data.clone()],
        _ => (0..3).map(|shard| data.join(format!("{store}-{shard}"))).collect(),
    };
    let files: Vec<_> = stores.iter().flat_map(|store| segments(store)).collect();
    let (file, at) = files.iter().find_map(|file| Some((file, find(file, b"plaintext")?))).expect("one has the key");
    let sound = dump(&data, &dir.path().join("sound.jsonl"));
    let server = Server::start_in(dir.path(), &["--memory", "128M"]);
    let damaged_version = version(&server, "overwritten");
    stop(server);
    damage(file, at + 6);
    let before = tree(&data);

    let (code, out, error) = run(&["check", text(&data)]);
    assert!(code == 3 && out.contains("DAMAGE") && error.contains("fawn check --repair"), "{code} {out} {error}");
    let dumped = dir.path().join("damaged.jsonl");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&dumped)]);
    assert!(code == 8 && error.contains("damaged: 1 record lost, as listed"), "{code} {error}");
    let name = file.file_name().and_then(|name| name.to_str()).expect("text");
    assert!(error.contains(&format!("lost: {name}, bytes ")) && error.contains(": 1 record\n"), "{error}");
    let left = lines(&dumped);
    let lost: Vec<_> = sound.difference(&left).collect();
    assert_eq!(lost, [r#"{"key":"plain","value":"text"}"#]);
    assert!(left.is_subset(&sound), "nothing else");

    let (code, _, error) = run(&["check", text(&data), "--repair"]);
    assert!(code == 2 && error.contains("1 record lost") && error.contains("--yes"), "{code} {error}");
    let repaired = dir.path().join("data.repaired");
    assert!(!repaired.exists(), "not without an answer");
    let (code, out, error) = run(&["check", text(&data), "--repair", "--yes"]);
    assert!(code == 0 && out.contains("10 keys copied to") && out.contains("mv "), "{code} {out} {error}");
    assert!(before == tree(&data), "the damaged directory is unchanged");
    let (code, _, error) = run(&["check", text(&data), "--repair", "--yes"]);
    assert!(code == 3 && error.contains("exists and is not empty"), "{code} {error}");
    let inside = data.join("copy");
    let (code, _, error) = run(&["check", text(&data), "--repair", "--yes", "--to", text(&inside)]);
    assert!(code == 3 && error.contains("which stays as it is"), "{code} {error}");
    assert!(dump(&repaired, &dir.path().join("repaired.jsonl")) == left, "all that was left");

    std::fs::rename(&data, dir.path().join("data.damaged")).expect("renamed");
    std::fs::rename(&repaired, &data).expect("renamed");
    let server = Server::start_in(dir.path(), &["--memory", "128M"]);
    let at = server.resp.to_string();
    assert_eq!(run(&["get", "overwritten", "--server", &at]).1, "new");
    assert!(version(&server, "overwritten") > damaged_version, "no version means another value than before");
    assert_eq!(run(&["get", "plain", "--server", &at]).0, 6);
    exchange(&mut connect(server.memcached), b"get flagged\r\n", b"VALUE flagged 4294967295 3\r\nabc\r\nEND\r\n");
    assert_eq!(run(&["set", "plain", "again", "--server", &at]).0, 0);
    stop(server);
    assert_eq!(run(&["check", text(&data)]).0, 0);
    // The dump of the damaged store says so when it is loaded.
    let server = Server::start(&[]);
    let (code, _, error) = run(&["load", text(&dumped), "--server", &server.resp.to_string()]);
    assert!(code == 0 && error.contains("damaged store"), "{code} {error}");
}

#[test]
fn a_damaged_store_is_dumped_repaired_and_served_again() {
    salvaged(&[], "");
}

#[test]
fn damaged_shards_are_dumped_repaired_and_served_again() {
    salvaged(&["--shards", "3", "--memory", "128M"], "shard");
}

#[test]
fn missing_segments_and_manifests_are_reported_and_repaired() {
    let (dir, data) = filled(&[]);
    let sound = dump(&data, &dir.path().join("sound.jsonl"));
    let manifest = std::fs::read(data.join("manifest")).expect("readable");
    std::fs::remove_file(data.join("manifest")).expect("removed");
    let file = dir.path().join("damaged.jsonl");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    assert!(code == 8 && error.contains("no record is known to be lost"), "{code} {error}");
    assert!(lines(&file) == sound, "the segments have all of it");
    let copy = dir.path().join("copy");
    let (code, out, error) = run(&["check", text(&data), "--repair", "--to", text(&copy), "--yes"]);
    assert!(code == 0 && out.contains("11 keys copied to"), "{code} {out} {error}");
    assert!(dump(&copy, &file) == sound, "the same set");

    std::fs::write(data.join("manifest"), manifest).expect("written");
    let segment = segments(&data).remove(0);
    std::fs::remove_file(&segment).expect("removed");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    let name = segment.file_name().and_then(|name| name.to_str()).expect("text");
    assert!(code == 8 && error.contains(name) && error.contains("lost: "), "{code} {error}");
    assert!(lines(&dir.path().join("damaged.jsonl.damaged")).is_empty(), "all was in it");
    assert!(lines(&file) == sound, "the dump of the copy");
}

#[test]
fn a_missing_shard_is_lost_and_the_others_are_saved() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), &["--shards", "2", "--segment", "1M"]);
    fill(&server);
    // So many that both shards have some, whatever the store's secret is.
    (0..50_u8).for_each(|key| set(&server, &[&[key], b"one of many"]));
    stop(server);
    let data = dir.path().join("data");
    let sound = dump(&data, &dir.path().join("sound.jsonl"));
    std::fs::rename(data.join("shard-1"), dir.path().join("shard-1")).expect("renamed");
    let file = dir.path().join("left.jsonl");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    assert!(code == 8 && error.contains("shard 1: lost: all of"), "{code} {error}");
    assert!(error.contains("damaged: 1 part of unknown content lost, as listed"), "{error}");
    let left = lines(&file);
    assert!(left.is_subset(&sound) && !left.is_empty() && left.len() < sound.len(), "{}", left.len());
    let alone = dump(&data.join("shard-0"), &dir.path().join("alone.jsonl"));
    assert!(alone == left, "a shard's directory can be dumped by itself");
    let (code, out, error) = run(&["check", text(&data), "--repair", "--yes"]);
    assert!(code == 0, "{code} {out} {error}");
    assert!(dump(&dir.path().join("data.repaired"), &file) == left, "with an empty shard in its place");
}

#[test]
fn a_repair_of_a_sound_store_and_of_a_clusters_member_does_nothing() {
    let (dir, data) = filled(&[]);
    let (code, out, error) = run(&["check", text(&data), "--repair", "--yes"]);
    assert!(code == 0 && out.contains("nothing to repair"), "{code} {out} {error}");
    assert!(!dir.path().join("data.repaired").exists());

    let demo = tempfile::tempdir().expect("a directory");
    let catalogue = demo.path().join("catalogue");
    std::fs::write(&catalogue, "Package: a\nSize: 1\n\nPackage: b\nSize: 2\n").expect("written");
    let server = Server::demo_in(demo.path(), &["--catalogue", text(&catalogue)]);
    stop(server);
    let node = demo.path().join("data/node-1");
    let (code, out, error) = run(&["dump", text(&node)]);
    assert!(code == 0 && out.contains(r#"{"key":"a","value":"Package: a\nSize: 1"}"#), "{code} {out} {error}");
    let (code, _, error) = run(&["check", text(&node), "--repair", "--yes"]);
    assert!(code == 3 && error.contains("member"), "{code} {error}");
}

#[test]
fn what_cannot_be_dumped_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, _, error) = run(&["dump", text(dir.path())]);
    assert!(code == 3 && error.contains("holds no store"), "{code} {error}");
    let none = dir.path().join("none");
    let (code, _, error) = run(&["dump", text(&none)]);
    assert!(code == 3 && error.contains("no such directory"), "{code} {error}");
    let server = Server::start_in(dir.path(), &[]);
    let data = dir.path().join("data");
    for args in [&["dump", text(&data)][..], &["check", text(&data), "--repair", "--yes"]] {
        let (code, _, error) = run(args);
        assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    }
    stop(server);
    assert_eq!(run(&["check", text(&data), "--yes"]).0, 2, "only a repair asks");
    let unwritable = dir.path().join("none/dump.jsonl");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&unwritable)]);
    assert!(code == 1 && error.contains("dump.jsonl"), "{code} {error}");
}

#[test]
fn a_reader_that_ends_early_ends_the_dump() {
    let (_dir, data) = filled(&[]);
    let mut command = fawn();
    command.args(["dump", text(&data)]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    drop(child.stdout.take());
    let outcome = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(outcome.status.code() == Some(1) && error.contains("standard output"), "{outcome:?}");
}

#[test]
fn a_dump_leaves_the_file_of_another_one_alone() {
    let (dir, data) = filled(&[]);
    let file = dir.path().join("dump.jsonl");
    let partial = dir.path().join("dump.jsonl.partial");
    // A dump of another directory to the same file is in progress.
    std::fs::write(&partial, "in progress").expect("written");
    let other = std::fs::File::open(&partial).expect("it is there");
    other.try_lock().expect("only this test has it");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    assert!(code == 1 && error.contains("another dump is writing it"), "{code} {error}");
    assert_eq!(std::fs::read(&partial).expect("it stays"), b"in progress");
    assert!(!file.exists());

    // It is killed: its file is a leftover, of an older fawn with another mode.
    drop(other);
    let server = Server::start_in(dir.path(), &[]);
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    assert_eq!(std::fs::read(&partial).expect("it stays"), b"in progress", "a refused dump touches nothing");
    stop(server);
    std::fs::set_permissions(&partial, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("changed");
    assert!(!dump(&data, &file).is_empty() && !partial.exists());
    let mode = file.metadata().expect("it is there").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);

    let target = dir.path().join("target");
    std::fs::write(&target, "precious").expect("written");
    std::os::unix::fs::symlink(&target, &partial).expect("a link");
    let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
    assert!(code == 1 && error.contains("remove it"), "{code} {error}");
    assert_eq!(std::fs::read(&target).expect("it stays"), b"precious");
}

#[test]
fn a_dump_to_a_directory_is_refused_at_once() {
    let (dir, data) = filled(&[]);
    for path in [text(dir.path()).to_owned(), format!("{}/new/", text(dir.path()))] {
        let (code, _, error) = run(&["dump", text(&data), "-o", &path]);
        assert!(code == 1 && error.contains("is a directory"), "{code} {error}");
        assert!(!Path::new(&format!("{}.partial", path.trim_end_matches('/'))).exists());
    }
    let (code, out, error) = run(&["dump", text(&data), "-o", "/dev/stdout"]);
    assert!(code == 0 && out.starts_with("{\"fawn_dump\":1,"), "{code} {error}");
    // A shell's redirection: the link in `/dev` leads to a file, and stays.
    let file = dir.path().join("redirected");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fawn"));
    let command = command.args(["dump", text(&data), "-o", "/dev/stdout"]);
    let status = command.stdout(std::fs::File::create(&file).expect("created")).status().expect("it runs");
    assert!(status.success() && Path::new("/dev/stdout").is_symlink());
    assert_eq!(lines(&file).len(), out.lines().count() - 2, "all but the header and the end");
}

#[test]
fn a_dump_into_the_dumped_directory_is_refused() {
    for (flags, inside) in [(&[][..], "manifest"), (&["--shards", "2"], "shard-1/manifest")] {
        let (dir, data) = filled(flags);
        std::os::unix::fs::symlink(&data, dir.path().join("link")).expect("a link");
        let before = tree(&data);
        for file in [data.join(inside), data.join("new"), dir.path().join("link").join(inside)] {
            let (code, _, error) = run(&["dump", text(&data), "-o", text(&file)]);
            assert!(code == 3 && error.contains("which stays as it is"), "{code} {error}");
            assert!(before == tree(&data), "{}", file.display());
        }
    }
}
