//! Backups, restored directories, and the swap after a repair: names of new directories.
use crate::harness::{Server, connect, exchange, fawn, run, run_refused};
use std::path::{Path, PathBuf};

/// A data directory `name` in `dir` with some keys, of a server that has stopped.
fn data_dir(dir: &Path, name: &str) -> PathBuf {
    data_dir_with(dir, name, &[])
}

fn data_dir_with(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let mut server = Server::start_in(dir, flags);
    let mut client = connect(server.resp);
    exchange(&mut client, b"SET key a-value-to-look-for\r\n", b"+OK\r\n");
    // Damage before an intact record is no unfinished end of the log.
    exchange(&mut client, b"SET other value\r\n", b"+OK\r\n");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.join(name);
    std::fs::rename(dir.join("data"), &data).expect("renamed");
    data
}

/// Runs the binary in `dir`; returns exit code and both outputs.
fn run_in(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let output = fawn().args(args).current_dir(dir).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn new_directories_may_be_named_with_a_slash_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), "data");
    let (backup, restored) = (dir.path().join("backup"), dir.path().join("restored"));
    let (code, out, error) = run(&["backup", text(&data), &format!("{}/", text(&backup))]);
    assert!(code == 0 && backup.join("manifest").exists(), "{code} {out} {error}");
    let (code, out, error) = run(&["restore", &format!("{}/", text(&backup)), &format!("{}//", text(&restored))]);
    assert!(code == 0 && restored.join("manifest").exists(), "{code} {out} {error}");
    assert_eq!(run(&["check", text(&restored)]).0, 0);
    assert!(!dir.path().join("backup.partial").exists() && !dir.path().join("restored.partial").exists());

    damage(&data);
    let repaired = dir.path().join("repaired");
    let to = format!("{}/", text(&repaired));
    let (code, out, error) = run(&["check", text(&data), "--repair", "--yes", "--to", &to]);
    assert!(code == 0 && repaired.join("manifest").exists(), "{code} {out} {error}");
}

#[test]
fn a_backup_is_outside_whatever_its_path_looks_like() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), "data");
    let (code, out, error) = run_in(&data, &["backup", ".", "../backup"]);
    assert!(code == 0 && dir.path().join("backup/manifest").exists(), "{code} {out} {error}");
    std::os::unix::fs::symlink(&data, dir.path().join("link")).expect("a link");
    let inside = dir.path().join("link/backup");
    let (code, _, error) = run(&["backup", text(&data), text(&inside)]);
    assert!(code == 3 && error.contains("which stays as it is"), "{code} {error}");
    assert!(!data.join("backup").exists() && !data.join("backup.partial").exists());
}

#[test]
fn a_new_file_system_takes_a_backup() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), "data");
    let mount = dir.path().join("mount");
    std::fs::create_dir_all(mount.join("lost+found")).expect("created");
    let (code, out, error) = run(&["backup", text(&data), text(&mount)]);
    assert!(code == 0 && mount.join("lost+found").exists(), "{code} {out} {error}");
    assert_eq!(run(&["check", text(&mount)]).0, 0);
    let (code, _, error) = run(&["backup", text(&data), text(&mount)]);
    assert!(code == 3 && error.contains("exists and is not empty"), "{code} {error}");
    let file = mount.join("manifest");
    let (code, _, error) = run(&["backup", text(&data), text(&file)]);
    assert!(code == 3 && error.contains("Not a directory"), "{code} {error}");
}

/// Whether a directory has no files, except the lock file that a copy leaves.
fn is_empty(dir: &Path) -> bool {
    dir.read_dir().expect("it is there").all(|entry| entry.expect("readable").file_name() == "LOCK")
}

/// Neither a server nor a check takes it for a data directory.
fn assert_no_store(dir: &Path) {
    let args = ["serve", "--dir", text(dir), "--resp", "off", "--memcached", "off", "--admin", "off"];
    let (code, error) = run_refused(&args);
    assert_eq!(code, 3, "{error}");
    let (code, out, error) = run(&["check", text(dir)]);
    assert!(code == 3 && !out.contains("sound"), "{code} {out} {error}");
}

#[test]
fn a_backup_without_one_of_its_shards_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir_with(dir.path(), "data", &["--shards", "2"]);
    let (backup, existing, new) = (dir.path().join("backup"), dir.path().join("existing"), dir.path().join("new"));
    let (code, out, error) = run(&["backup", text(&data), text(&backup)]);
    assert_eq!(code, 0, "{out} {error}");
    std::fs::remove_dir_all(backup.join("shard-1")).expect("removed");
    std::fs::create_dir(&existing).expect("created");
    for target in [&existing, &new] {
        let (code, _, error) = run(&["restore", text(&backup), text(target)]);
        assert!(code == 3 && error.contains("shard-1: missing, though shard 1 of 2 was made"), "{code} {error}");
    }
    assert!(is_empty(&existing) && !new.exists() && !dir.path().join("new.partial").exists());
}

#[test]
fn a_copy_that_fails_leaves_an_existing_directory_empty() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir_with(dir.path(), "data", &["--shards", "2"]);
    let target = dir.path().join("target");
    std::fs::create_dir(&target).expect("created");
    // Shard 0 is copied before this is noticed.
    let manifest = data.join("shard-1/manifest");
    let intact = std::fs::read(&manifest).expect("readable");
    std::fs::write(&manifest, &intact[..100]).expect("written");
    let (code, _, error) = run(&["backup", text(&data), text(&target)]);
    assert!(code == 3 && error.contains("manifest"), "{code} {error}");
    assert!(is_empty(&target), "what was copied is removed");

    std::fs::write(&manifest, intact).expect("written");
    let (code, out, error) = run(&["backup", text(&data), text(&target)]);
    assert_eq!(code, 0, "the same directory serves the next attempt: {out} {error}");
    assert!(!target.join("copy.partial").exists());
    assert_eq!(run(&["check", text(&target)]).0, 0);
}

#[test]
fn an_interrupted_copy_in_an_existing_directory_is_named_and_not_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), "data");
    let (target, complete) = (dir.path().join("target"), dir.path().join("complete"));
    let (code, out, error) = run(&["backup", text(&data), text(&complete)]);
    assert_eq!(code, 0, "{out} {error}");
    std::fs::create_dir(&target).expect("created");
    // Complete, but not verified yet.
    std::fs::rename(&complete, target.join("copy.partial")).expect("renamed");
    assert_no_store(&target);
    let (code, _, error) = run(&["backup", text(&data), text(&target)]);
    let partial = target.join("copy.partial");
    let expected = format!("{}: is of a copy that is being made, or was interrupted: then remove it", text(&partial));
    assert!(code == 3 && error.contains(&expected), "{code} {error}");
    // Verified, and moved in part.
    for entry in partial.read_dir().expect("it is there") {
        let name = entry.expect("readable").file_name();
        if name != "manifest" {
            std::fs::rename(partial.join(&name), target.join(&name)).expect("moved");
        }
    }
    assert_no_store(&target);
    // The files that are there are not all that is left.
    for args in [&["dump"][..], &["check"], &["check", "--repair", "--yes"], &["backup", "unused"]] {
        let (code, out, error) = run_in(dir.path(), &[&args[..1], &["target"], &args[1..]].concat());
        assert!(code == 3 && error.contains("target: holds an unfinished copy"), "{args:?}: {code} {out} {error}");
    }
    std::fs::remove_dir_all(&partial).expect("removed");
    assert_no_store(&target);
    let (code, _, error) = run(&["backup", text(&data), text(&target)]);
    assert!(code == 3 && error.contains("exists and is not empty; empty it"), "{code} {error}");
    std::fs::remove_dir_all(&target).expect("removed");
    std::fs::create_dir(&target).expect("created");
    damage(&data);
    let (code, out, error) = run(&["check", text(&data), "--repair", "--yes", "--to", text(&target)]);
    assert!(code == 0 && target.join("manifest").exists() && !partial.exists(), "{code} {out} {error}");
}

/// Flips a bit of the value.
fn damage(data: &Path) {
    for entry in data.read_dir().expect("it is there") {
        let path = entry.expect("readable").path();
        let mut bytes = std::fs::read(&path).expect("readable");
        let value = b"a-value-to-look-for";
        if text(&path).ends_with(".fawn")
            && let Some(at) = bytes.windows(value.len()).position(|window| window == value)
        {
            bytes[at] ^= 4;
            return std::fs::write(&path, bytes).expect("written");
        }
    }
    panic!("no segment has the value");
}

/// Repairs, and runs the commands that the repair prints: afterwards the copy has the directory's name.
fn repaired_and_swapped(name: &str, from: impl FnOnce(&Path) -> PathBuf, dir_arg: impl FnOnce(&Path) -> String) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), name);
    damage(&data);
    let from = from(&data);
    let (code, out, error) = run_in(&from, &["check", &dir_arg(&data), "--repair", "--yes"]);
    assert_eq!(code, 0, "{out} {error}");
    let commands = out.lines().find_map(|line| line.strip_prefix("  mv ")).expect("commands");
    let script = format!("mv {commands}");
    let shell = std::process::Command::new("sh").args(["-c", &script]).current_dir(&from).output().expect("a shell");
    assert!(shell.status.success(), "{script}: {shell:?}");
    let (code, out, error) = run(&["check", text(&data)]);
    assert!(code == 0 && out.contains("sound"), "{script}: {code} {out} {error}");
    let damaged = dir.path().join(format!("{name}.damaged"));
    assert!(damaged.join("manifest").exists(), "{script}");
    assert_eq!(run(&["check", text(&damaged)]).0, 3, "the damaged directory is unchanged");
}

#[test]
fn the_printed_commands_swap_a_repaired_copy() {
    let parent = |data: &Path| data.parent().expect("it has one").to_owned();
    repaired_and_swapped("data-1", parent, |data| format!("{}/", text(data)));
    repaired_and_swapped("it's my data", parent, |data| text(data).to_owned());
    repaired_and_swapped("data-2", Path::to_owned, |_| ".".to_owned());
}

/// A data directory in `dir` with complete segments, of a server that has stopped.
fn data_dir_of_segments(dir: &Path) -> PathBuf {
    let mut server = Server::start_in(dir, &["--segment", "64K"]);
    let mut client = connect(server.resp);
    exchange(&mut client, b"SET key a-value-to-look-for\r\n", b"+OK\r\n");
    for key in 0..100 {
        let value = "v".repeat(2000);
        exchange(&mut client, format!("SET key{key} {value}\r\n").as_bytes(), b"+OK\r\n");
    }
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    dir.join("data")
}

/// An opening does without it, and so does `fawn check`.
#[test]
fn a_lost_checkpoint_blocks_neither_a_backup_nor_its_restoration() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &[]);
    let mut client = connect(server.resp);
    // So much that a stop writes a checkpoint.
    let value = "v".repeat(6 << 20);
    for key in 0..3 {
        let request = format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n${}\r\n{value}\r\n", value.len());
        exchange(&mut client, request.as_bytes(), b"+OK\r\n");
    }
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    let (backup, restored) = (dir.path().join("backup"), dir.path().join("restored"));
    let (code, out, error) = run(&["backup", text(&data), text(&backup)]);
    assert_eq!(code, 0, "{out} {error}");
    let is_checkpoint = |path: &PathBuf| text(path).contains("/checkpoint-");
    let files = backup.read_dir().expect("listed").map(|entry| entry.expect("readable").path());
    let checkpoints: Vec<_> = files.filter(is_checkpoint).collect();
    assert!(!checkpoints.is_empty(), "a stop writes one");
    checkpoints.iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
    assert_eq!(run(&["check", text(&backup)]).0, 0);
    let (code, out, error) = run(&["restore", text(&backup), text(&restored)]);
    assert_eq!(code, 0, "{out} {error}");
    let (code, out, error) = run(&["dump", text(&restored)]);
    assert!(code == 0 && out.lines().count() == 5, "{code} {error}");
}

/// The copy is removed, and has nothing that the source has not.
#[test]
fn a_backup_of_damaged_files_names_their_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir_of_segments(dir.path());
    damage(&data);
    let to = dir.path().join("backup");
    let expected = format!("{}: is damaged; `fawn check {}` tells where", text(&data), text(&data));
    for args in [&["backup"][..], &["backup", "--copy"], &["restore"]] {
        let (code, out, error) = run(&[args, &[text(&data), text(&to)]].concat());
        assert!(code == 3 && error.contains(&expected), "{args:?}: {code} {out} {error}");
        assert!(!error.contains("both disks") && !to.exists(), "{error}");
    }
}

#[test]
fn a_failed_read_of_a_backup_names_both_directories() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = data_dir(dir.path(), "data");
    std::fs::remove_file(data.join("manifest")).expect("removed");
    std::fs::create_dir(data.join("manifest")).expect("created");
    let to = dir.path().join("backup");
    let (code, _, error) = run(&["backup", text(&data), text(&to)]);
    let expected = format!("fawn: copying {} to {}.partial: manifest: ", text(&data), text(&to));
    assert!(code == 1 && error.contains(&expected), "{code} {error}");
}
