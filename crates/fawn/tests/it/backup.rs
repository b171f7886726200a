//! Backups, restored directories, and the swap after a repair: names of new directories.
use crate::harness::{Server, connect, exchange, fawn, run};
use std::path::{Path, PathBuf};

/// A data directory `name` in `dir` with some keys, of a server that has stopped.
fn data_dir(dir: &Path, name: &str) -> PathBuf {
    let mut server = Server::start_in(dir, &[]);
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
