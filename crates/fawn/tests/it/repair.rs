//! Repair of directories with several shards: misplaced stores, and shards that cannot be read.
use crate::dump::version;
use crate::harness::{Server, connect, exchange, run};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};

const KEYS: usize = 60;

/// A data directory of so many shards in `dir`, each with some of the keys.
fn filled(dir: &Path, shards: &str) -> PathBuf {
    let flags = ["--segment", "64K", "--shards", shards];
    let mut server = Server::start_in(dir, &flags);
    let mut client = connect(server.resp);
    for key in 0..KEYS {
        exchange(&mut client, format!("SET key{key} of-key{key}\r\n").as_bytes(), b"+OK\r\n");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    dir.join("data")
}

fn repair(data: &Path) -> (i32, String, String) {
    run(&["check", data.to_str().expect("text"), "--repair", "--yes"])
}

fn swap(data: &Path, first: &Path, second: &Path) {
    let aside = data.join("aside");
    for (from, to) in [(first, &aside), (second, &first.to_owned()), (&aside, &second.to_owned())] {
        fs::rename(from, to).expect("moved");
    }
}

/// The segments of a store.
fn segments(store: &Path) -> Vec<PathBuf> {
    let paths = store.read_dir().expect("listed").map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "fawn")).collect()
}

/// Flips a bit of a record.
fn damage(store: &Path) {
    for segment in segments(store) {
        let mut bytes = fs::read(&segment).expect("readable");
        if let Some(at) = bytes.windows(6).position(|found| found == b"of-key") {
            bytes[at] ^= 1;
            fs::write(&segment, bytes).expect("written");
            return;
        }
    }
    panic!("no segment has a value");
}

fn assert_refused(data: &Path, expected: &str) {
    let (code, out, error) = repair(data);
    assert!(code == 3 && error.contains(expected), "{expected}: {code} {out} {error}");
    for end in ["repaired", "repaired.partial"] {
        assert!(!data.with_extension(end).exists(), "{end}");
    }
}

/// The copy would have all keys where no server looks for them.
#[test]
fn a_repair_puts_no_shard_in_the_place_of_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "2");
    let stores = [data.join("shard-0"), data.join("shard-1")];
    damage(&stores[0]);
    assert_refused(&stores[0], "is one shard of the data directory");
    swap(&data, &stores[0], &stores[1]);
    assert_refused(&data, "the directories were swapped");
    // A manifest that cannot be read names no slice. The keys do.
    for store in &stores {
        fs::remove_file(store.join("manifest")).expect("removed");
    }
    assert_refused(&data, "holds keys of another shard");
    let (code, _, error) = run(&["check", data.to_str().expect("text"), "--repair"]);
    assert!(code == 3 && error.contains("`fawn dump`"), "refused before the question: {code} {error}");
    fs::create_dir(stores[0].join("manifest")).expect("created");
    assert_refused(&data, "holds keys of another shard");
    swap(&data, &stores[0], &stores[1]);
    let (code, out, error) = repair(&data);
    assert!(code == 0 && out.contains("59 keys copied to"), "{code} {out} {error}");

    let other = tempfile::tempdir().expect("another");
    let data = filled(other.path(), "2");
    damage(&data.join("shard-0"));
    fs::remove_dir_all(data.join("shard-1")).expect("removed");
    fs::rename(dir.path().join("data.repaired/shard-1"), data.join("shard-1")).expect("moved");
    assert_refused(&data, "it is a shard of another node");
}

/// By a clock that is ahead, keys expire that should not. Without a manifest nothing else tells the time.
#[test]
fn keys_that_a_repair_leaves_out_as_expired_are_counted_before_the_question() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &["--segment", "64K", "--shards", "1"]);
    let mut client = connect(server.resp);
    for command in ["SET a 1", "SET b 2 PX 1", "SET c 3 PX 1", "SET d 4 PX 100000000"] {
        exchange(&mut client, format!("{command}\r\n").as_bytes(), b"+OK\r\n");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    fs::remove_file(data.join("manifest")).expect("removed");
    let (code, out, error) = run(&["check", data.to_str().expect("text"), "--repair"]);
    assert!(code != 0 && error.contains("2 keys left\n2 expired keys left out: "), "{code} {out} {error}");
}

/// As one whose directory is missing, though its files are still there.
#[test]
fn a_shard_that_cannot_be_read_at_all_is_lost_and_the_others_are_saved() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "3");
    let lost = data.join("shard-1");
    for file in segments(&lost).into_iter().chain([lost.join("manifest")]) {
        fs::write(file, "").expect("cut");
    }
    let (code, out, error) = run(&["dump", data.to_str().expect("text")]);
    let left = out.lines().filter(|line| line.starts_with("{\"key\":")).count();
    let line = format!("shard 1: lost: all of {}, which cannot be read: ", lost.display());
    assert!(code == 8 && error.contains(&line) && left > 0 && left < KEYS, "{code} {left} {error}");
    let (code, out, error) = repair(&data);
    assert!(code == 0 && error.contains(&line), "{code} {out} {error}");
    assert!(out.contains(&format!("{left} keys copied to")), "{out}");

    // Alone, it has nothing to be saved.
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "1");
    for file in segments(&data).into_iter().chain([data.join("manifest")]) {
        fs::write(file, "").expect("cut");
    }
    let (code, out, error) = repair(&data);
    assert!(code == 3 && error.contains("restore a backup"), "{code} {out} {error}");
    let (code, out, error_of_check) = run(&["check", data.to_str().expect("text")]);
    assert!(code == 3 && out.contains("DAMAGE: manifest at byte 0"), "{code} {out} {error_of_check}");
    for error in [error, error_of_check] {
        assert!(!error.contains("--repair"), "{error}");
    }
}

/// Its records are intact: the copy, or the dump that replaces the last one, would be without them.
#[test]
fn a_shard_that_only_cannot_be_locked_is_not_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "3");
    let lock = data.join("shard-1/LOCK");
    fs::remove_file(&lock).expect("removed");
    fs::create_dir(&lock).expect("created");
    assert_refused(&data, "LOCK: could not lock");
    let (code, _, error) = run(&["dump", data.to_str().expect("text")]);
    assert!(code == 3 && error.contains("LOCK: could not lock"), "{code} {error}");
}

/// An empty copy could take the place of the damaged directory, and an empty dump that of the last good one.
#[test]
fn a_directory_of_which_no_shard_can_be_read_is_neither_copied_nor_dumped() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "2");
    let (text, dump) = (data.to_str().expect("text"), dir.path().join("dump.jsonl"));
    let run_dump = || run(&["dump", text, "-o", dump.to_str().expect("text")]);
    let (code, _, error) = run_dump();
    assert_eq!(code, 0, "{error}");
    let good = fs::read(&dump).expect("a dump");
    for file in segments(&data.join("shard-0")).into_iter().chain([data.join("shard-0/manifest")]) {
        fs::write(file, "").expect("cut");
    }
    fs::remove_dir_all(data.join("shard-1")).expect("removed");
    assert_refused(&data, "no shard can be read");
    let (code, _, error) = run_dump();
    assert!(code == 3 && error.contains("shard 1: lost: all of") && error.contains("no shard can be read"), "{error}");
    assert!(fs::read(&dump).is_ok_and(|kept| kept == good), "the last good dump stays");
    let (code, _, error) = run(&["check", text]);
    assert!(code == 3 && error.contains("restore a backup") && !error.contains("--repair"), "{code} {error}");
}

/// A partial dump must not take the place of a whole one.
#[test]
fn a_dump_of_a_damaged_directory_leaves_an_earlier_one_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "2");
    let [dump, damaged] = ["dump.jsonl", "dump.jsonl.damaged"].map(|name| dir.path().join(name));
    let run_dump = || run(&["dump", data.to_str().expect("text"), "-o", dump.to_str().expect("text")]);
    let (code, _, error) = run_dump();
    assert_eq!(code, 0, "{error}");
    let good = fs::read(&dump).expect("a dump");
    fs::remove_dir_all(data.join("shard-1")).expect("removed");
    // The second time, it replaces the one before.
    for _ in 0..2 {
        let (code, _, error) = run_dump();
        assert!(code == 8 && error.contains("dump.jsonl.damaged has what is left"), "{code} {error}");
        assert!(fs::read(&dump).is_ok_and(|kept| kept == good), "the whole dump stays");
        let left = fs::read_to_string(&damaged).expect("a dump");
        assert!(left.contains(r#""complete":false"#) && left.len() < good.len(), "{left}");
        assert!(!dir.path().join("dump.jsonl.partial").exists());
    }
    fs::remove_file(&damaged).expect("removed");
    fs::remove_file(&dump).expect("removed");
    let (code, _, error) = run_dump();
    assert!(code == 8 && error.contains("the dump has what is left"), "{code} {error}");
    assert!(dump.exists() && !damaged.exists(), "there was none before");
}

/// A client that has read a lost value would overwrite another one.
#[test]
fn no_token_of_a_lost_shard_is_given_out_again() {
    let dir = tempfile::tempdir().expect("a directory");
    // A start each, with the keys' tokens for memcached's `cas`.
    let written = || {
        let mut server = Server::start_in(dir.path(), &["--shards", "2"]);
        let mut client = connect(server.resp);
        let keys = (0..8).map(|key| format!("key{key}"));
        let tokens = keys.map(|key| {
            exchange(&mut client, format!("SET {key} of-{key}\r\n").as_bytes(), b"+OK\r\n");
            version(&server, &key)
        });
        let tokens: Vec<u64> = tokens.collect();
        server.signal(Signal::TERM);
        assert_eq!(server.wait(), Some(0));
        tokens
    };
    written();
    let before = written();
    let data = dir.path().join("data");
    // The first to be copied.
    fs::remove_dir_all(data.join("shard-0")).expect("removed");
    let (code, _, error) = repair(&data);
    assert_eq!(code, 0, "{error}");
    fs::remove_dir_all(&data).expect("removed");
    fs::rename(data.with_extension("repaired"), &data).expect("moved");
    let after = written();
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?} {after:?}");
}

/// Keys of a dump, its exit code, its last line and its messages.
fn dump_keys(data: &Path) -> (Vec<String>, i32, String, String) {
    let (code, out, error) = run(&["dump", data.to_str().expect("text")]);
    let mut keys: Vec<_> = out.lines().filter(|line| line.starts_with("{\"key\":")).map(str::to_owned).collect();
    keys.sort_unstable();
    (keys, code, out.lines().last().unwrap_or_default().to_owned(), error)
}

/// Its keys would be there twice, those of the missing shard not at all, and no message would tell.
#[test]
fn a_dump_without_the_keys_of_each_shard_is_not_complete() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = filled(dir.path(), "2");
    let stores = [data.join("shard-0"), data.join("shard-1")];
    let (all, code, end, error) = dump_keys(&data);
    assert!(code == 0 && all.len() == KEYS && end.contains("\"complete\":true"), "{code} {end} {error}");
    swap(&data, &stores[0], &stores[1]);
    assert_eq!(dump_keys(&data).0, all, "swapped stores have all keys");
    swap(&data, &stores[0], &stores[1]);

    let aside = dir.path().join("aside");
    for (lost, other) in [(0, 1), (1, 0)] {
        fs::rename(&stores[lost], &aside).expect("moved");
        let left = dump_keys(&data).0;
        copy_files(&stores[other], &stores[lost]);
        let (keys, code, end, error) = dump_keys(&data);
        let words =
            format!("shard {lost}: lost: all of {}, which holds the keys of shard {other}", stores[lost].display());
        assert!(code == 8 && end.contains("\"complete\":false") && error.contains(&words), "{code} {end} {error}");
        assert!(keys == left && keys.len() < KEYS, "each key of the other shard once: {}", keys.len());
        fs::remove_dir_all(&stores[lost]).expect("removed");
        fs::rename(&aside, &stores[lost]).expect("moved");
    }

    let other = tempfile::tempdir().expect("another");
    let foreign = filled(other.path(), "2").join("shard-1");
    fs::rename(&stores[1], &aside).expect("moved");
    let left = dump_keys(&data).0;
    copy_files(&foreign, &stores[1]);
    let (keys, code, end, error) = dump_keys(&data);
    assert!(code == 8 && end.contains("\"complete\":false"), "{code} {end} {error}");
    assert!(error.contains("which is a shard of another node") && keys == left, "{error}");
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).expect("created");
    for entry in from.read_dir().expect("listed") {
        let path = entry.expect("readable").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}
