//! Configuration: precedence of the three sources, and clear refusals of bad settings.
use crate::harness::{Reaped, Server, eventually, fawn, run, run_refused};
use std::net::TcpListener;

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("fawn.toml");
    std::fs::write(&file, "memory = \"100M\"\nsegment = \"32M\"\ndurability = \"memory\"\n").expect("written");
    let mut command = fawn();
    command.args(["config", "check", "--memory", "300M", "--config"]).arg(&file);
    command.env("FAWN_MEMORY", "200M").env("FAWN_SEGMENT", "16M");
    let shown = String::from_utf8(command.output().expect("it runs").stdout).expect("text");
    for line in ["memory = \"300M\"", "segment = \"16M\"", "durability = \"memory\""] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
}

#[test]
fn mistakes_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("fawn.toml");
    std::fs::write(&file, "max-conections = 5\n").expect("written");
    let file = file.to_str().expect("text");
    for (args, expected) in [
        (&["serve", "--config", file][..], "1: unknown key `max-conections`, did you mean `max-connections`?"),
        (&["config", "check", "--config", "/nowhere/fawn.toml"], "give the path of a readable TOML file"),
        (&["serve", "--resp", "0.0.0.0:0"], "--allow-public"),
        (&["serve", "--capacity", "500K"], "expected at least 8 segments, 512K"),
        (&["serve", "--memory", "lots"], "expected a number with K, M, G or T"),
        (&["serve", "--memroy", "1G"], "--memory"),
        (&["get", "k", "--server", "nonsense"], "--server nonsense: expected ADDR:PORT"),
        (&["get", "k", "--server", "127.0.0.1:x"], "--server 127.0.0.1:x: expected ADDR:PORT"),
    ] {
        let (code, _, error) = run(args);
        assert!(code == 2 && error.contains(expected), "{args:?}: {code} {error}");
    }
}

#[test]
fn a_taken_address_is_told_apart() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().to_str().expect("text");
    for listener in ["--resp", "--memcached", "--admin"] {
        let mut args = vec!["serve", "--dir", data];
        for other in ["--resp", "--memcached", "--admin"] {
            args.extend([other, if other == listener { &address } else { "off" }]);
        }
        let (code, _, error) = run(&args);
        assert!(code == 7 && error.contains(&address) && error.contains(listener), "{listener}: {code} {error}");
    }
}

/// Settings are checked before the data is opened: a start that must fail creates nothing.
#[test]
fn a_ready_file_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, ready) = (dir.path().join("data"), dir.path().join("nowhere/ready"));
    let (data_text, ready) = (data.to_str().expect("text"), ready.to_str().expect("text"));
    let off = ["--resp", "off", "--memcached", "off", "--admin", "off"];
    let (code, _, error) = run(&[&["serve", "--dir", data_text, "--ready-file", ready][..], &off].concat());
    assert!(code == 1 && error.contains(ready) && error.contains("may write"), "{code} {error}");
    assert!(!data.exists(), "nothing was made");
}

#[test]
fn a_directory_without_a_store_is_not_called_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().to_str().expect("text");
    std::fs::write(dir.path().join("batch"), "not a store").expect("written");
    let (code, out, error) = run(&["check", text]);
    assert!(code == 3 && out.is_empty() && error.contains("holds no store"), "{code} {out} {error}");
    // Segments without their manifest are damage.
    std::fs::write(dir.path().join("segment-000000-091da8d0213e38b4.fawn"), "").expect("written");
    let (code, out, _) = run(&["check", text]);
    assert!(code == 3 && out.contains("DAMAGE: manifest"), "{code} {out}");
}

#[test]
fn the_manual_lists_commands_and_exit_codes() {
    let (code, manual, _) = run(&["--help"]);
    assert_eq!(code, 0);
    for word in ["serve", "get", "set", "del", "load", "config", "Exit codes:", "a repair lost more"] {
        assert!(manual.contains(word), "{word} in {manual}");
    }
}

/// Such settings are seldom meant, and not always wrong.
#[test]
fn settings_that_let_no_client_in_or_exceed_the_machine_are_logged_as_warnings() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let mut command = fawn();
    command.args(["serve", "--resp", "off", "--memcached", "off", "--admin", "off", "--memory", "900T", "--dir"]);
    command.arg(dir.path().join("data")).stderr(std::fs::File::create(&log).expect("a file"));
    let _server = Reaped(command.spawn().expect("the binary runs"));
    let log = eventually("the server", || {
        std::fs::read_to_string(&log).ok().filter(|log| log.lines().any(|line| line.contains(" serving ")))
    });
    assert!(log.contains("more than this machine or container has"), "{log}");
    assert!(log.contains("no client can connect"), "{log}");
}

/// No file system has space for this store: it is refused before anything is made, so that a start with smaller segments
/// is a first start.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_too_small_for_a_store_is_refused_before_one_is_made() {
    let (code, _, error) =
        run(&["serve", "--dir", "/proc/fawn-data", "--resp", "off", "--memcached", "off", "--admin", "off"]);
    let is_told = error.contains("/proc/fawn-data")
        && error.contains("at least 4 segments of 64M, 256M")
        && error.contains("free space");
    assert!(code == 3 && is_told, "{code} {error}");
}

/// Its owner still serves, and others wait for the file.
#[test]
fn a_start_that_is_refused_leaves_the_ready_file_of_the_running_server() {
    let dir = tempfile::tempdir().expect("a directory");
    for shards in ["1", "2"] {
        let place = dir.path().join(shards);
        std::fs::create_dir(&place).expect("created");
        let server = Server::start_in(&place, &["--shards", shards]);
        let (ready, data) = (server.ready_file().to_owned(), place.join("data"));
        let [ready_text, data] = [&ready, &data].map(|path| path.to_str().expect("text"));
        let other = place.join("other");
        let (taken, free) = (server.resp.to_string(), "127.0.0.1:0");
        for (resp, dir, expected) in [(free, data, 3), (&taken, other.to_str().expect("text"), 7)] {
            let off = ["--memcached", "off", "--admin", "off", "--memory", "64M"];
            let args = ["serve", "--dir", dir, "--resp", resp, "--ready-file", ready_text];
            let (code, error) = run_refused(&[&args[..], &off].concat());
            assert_eq!(code, expected, "{error}");
            assert!(ready.exists(), "{shards} {error}");
        }
    }
}

#[test]
fn a_server_whose_ready_file_cannot_be_written_stops_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, ready) = (dir.path().join("data"), dir.path().join("ready"));
    std::fs::create_dir(dir.path().join("ready.partial")).expect("created");
    let (data_text, ready) = (data.to_str().expect("text"), ready.to_str().expect("text"));
    let args = ["serve", "--dir", data_text, "--ready-file", ready, "--durability", "everysec", "--memory", "64M"];
    let off = ["--resp", "off", "--memcached", "off", "--admin", "off"];
    let (code, error) = run_refused(&[&args[..], &off].concat());
    assert!(code == 1 && error.contains(ready), "{code} {error}");
    assert!(data.join("manifest").exists() && !data.join("tail").exists(), "a close removes the mapped file");
}

/// Two servers of one directory of ready files may write theirs at once.
#[test]
fn the_unfinished_ready_file_has_a_name_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("ready.partial")).expect("created");
    let ready = dir.path().join("ready.a");
    let mut command = fawn();
    command.args(["serve", "--resp", "127.0.0.1:0", "--memcached", "off", "--admin", "off", "--memory", "64M"]);
    command.arg("--dir").arg(dir.path().join("data")).arg("--ready-file").arg(&ready);
    let mut server = Reaped(command.stderr(std::process::Stdio::null()).spawn().expect("the binary runs"));
    eventually("the ready file", || {
        assert_eq!(server.0.try_wait().expect("it is ours"), None, "it ended");
        ready.exists().then_some(())
    });
}
