//! The demo: every package reads back through both protocols and is loaded once; a kill during the load is
//! repaired; the printed commands work.
use crate::harness::{Reaped, Server, connect, eventually, exchange, fawn, http, run, run_refused};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes a catalogue of this many packages; returns the file and the stanzas.
fn catalogue(dir: &Path, packages: usize, text_bytes: usize) -> (PathBuf, Vec<String>) {
    let text = "x".repeat(text_bytes);
    let stanzas: Vec<String> =
        (0..packages).map(|number| format!("Package: p{number}\nSize: {number}\nDescription: {text}\n more")).collect();
    let file = dir.join("catalogue");
    std::fs::write(&file, stanzas.join("\n\n") + "\n").expect("written");
    (file, stanzas)
}

fn text(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).expect("text")
}

/// Reads every stanza through both protocols, byte for byte, in one pipeline each.
fn reads_back(server: &Server, stanzas: &[String]) {
    let (mut asked, mut expected) = (String::new(), String::new());
    let (mut mc_asked, mut mc_expected) = (String::new(), String::new());
    for (number, stanza) in stanzas.iter().enumerate() {
        write!(asked, "GET p{number}\r\n").expect("a String");
        write!(expected, "${}\r\n{stanza}\r\n", stanza.len()).expect("a String");
        write!(mc_asked, "get p{number}\r\n").expect("a String");
        write!(mc_expected, "VALUE p{number} 0 {}\r\n{stanza}\r\nEND\r\n", stanza.len()).expect("a String");
    }
    for (address, asked, expected) in [(server.resp, asked, expected), (server.memcached, mc_asked, mc_expected)] {
        let mut stream = connect(address);
        let mut writer = stream.try_clone().expect("a second handle");
        let sent = std::thread::spawn(move || writer.write_all(asked.as_bytes()));
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).expect("it answers");
        assert!(got == expected.as_bytes(), "a package differs at {address}");
        sent.join().expect("no panic").expect("it reads");
    }
}

#[test]
fn a_catalogue_is_loaded_once_and_reads_back_by_both_protocols() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, stanzas) = catalogue(dir.path(), 2000, 200);
    let flags = ["--catalogue", file.to_str().expect("text")];
    let mut server = Server::demo_in(dir.path(), &flags);
    reads_back(&server, &stanzas);
    assert!(text(dir.path(), "out").contains("loaded 2000 packages"), "{}", text(dir.path(), "out"));
    exchange(&mut connect(server.resp), b"SET own value\r\n", b"+OK\r\n");
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
    assert!(!server.ready_file().exists());
    // The catalogue file is no longer needed.
    std::fs::remove_file(&file).expect("removed");
    let server = Server::demo_in(dir.path(), &[]);
    reads_back(&server, &stanzas);
    exchange(&mut connect(server.resp), b"GET own\r\n", b"$5\r\nvalue\r\n");
    assert!(text(dir.path(), "out").contains("nothing to load"), "{}", text(dir.path(), "out"));
    assert_eq!(server.metric("fawn_user_bytes_total"), 0, "nothing was written again");
    for part in 1..=3 {
        assert!(dir.path().join(format!("data/node-{part}/manifest")).exists(), "a store per back-end");
    }
}

#[test]
fn a_kill_in_the_middle_of_loading_is_made_good() {
    for attempt in 0..5 {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, stanzas) = catalogue(dir.path(), 20_000, 1000);
        let flags = ["--catalogue", file.to_str().expect("text")];
        let mut child = Server::spawn("demo", dir.path(), &flags);
        eventually("progress", || text(dir.path(), "err").contains("10%").then_some(()));
        child.0.kill().expect("it is ours");
        child.0.wait().expect("it is ours");
        if text(dir.path(), "out").contains("loaded") {
            eprintln!("attempt {attempt}: all was loaded before the kill");
            continue;
        }
        let server = Server::demo_in(dir.path(), &flags);
        let out = text(dir.path(), "out");
        let number_before = |words: &str| {
            let line = out.lines().find(|line| line.contains(words)).expect(words);
            line.split_whitespace().find_map(|word| word.parse::<usize>().ok()).expect("a number")
        };
        let (loaded, kept) = (number_before("loaded"), number_before("more were here from an interrupted load"));
        assert!(loaded + kept == 20_000 && kept >= 1000, "{out}");
        reads_back(&server, &stanzas);
        exchange(&mut connect(server.resp), b"DBSIZE\r\n", b":20001\r\n");
        return;
    }
    panic!("no kill fell into a load");
}

#[test]
fn the_commands_that_it_prints_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, stanzas) = catalogue(dir.path(), 10, 20);
    let _server = Server::demo_in(dir.path(), &["--catalogue", file.to_str().expect("text")]);
    let out = text(dir.path(), "out");
    let (_, after) = out.split_once("try next").expect("it says what to do");
    let commands: Vec<&str> = after.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(commands.len(), 3, "{out}");
    for (command, expected) in commands.iter().zip([&stanzas[0][..], &stanzas[0], "\"uptime_s\""]) {
        let output = Command::new("sh").args(["-c", command]).output().expect("a shell");
        let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains(expected), "{command}: {said} {error}");
    }
}

#[test]
fn without_a_catalogue_there_is_the_shipped_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = fawn();
    // No PATH, no apt-cache.
    command.env("PATH", "").args(["demo", "--resp", "127.0.0.1:0", "--memcached", "off", "--admin", "off", "--dir"]);
    let out = std::fs::File::create(dir.path().join("out")).expect("a file");
    let mut child = Reaped(command.arg(dir.path().join("data")).stdout(out).spawn().expect("it runs"));
    eventually("the shipped catalogue", || {
        let out = text(dir.path(), "out");
        (out.contains("the small catalogue that comes with fawn") && out.contains("try next")).then_some(())
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), Signal::TERM).expect("it is ours");
    assert_eq!(child.0.wait().expect("it is ours").code(), Some(0));
}

#[test]
fn what_it_cannot_use_it_refuses_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    let off = ["--memcached", "off", "--admin", "off"];
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let demo = |more: &[&str]| run(&[&["demo", "--dir", data][..], &off, more].concat());
    let (code, _, error) = demo(&["--resp", &address]);
    assert!(code == 7 && error.contains("--resp"), "{code} {error}");
    let (code, _, error) = demo(&["--resp", "off"]);
    assert!(code == 2 && error.contains("--resp off"), "{code} {error}");
    let (code, _, error) = demo(&["--resp", "127.0.0.1:0", "--memory", "32M"]);
    assert!(code == 2 && error.contains("64M"), "{code} {error}");
    let (code, _, error) = demo(&["--resp", "127.0.0.1:0", "--catalogue", "/dev/null"]);
    assert!(code == 1 && error.contains("/dev/null: no stanza"), "{code} {error}");
    std::fs::create_dir_all(data).expect("made");
    std::fs::write(dir.path().join("data/manifest"), "x").expect("written");
    let (code, _, error) = demo(&["--resp", "127.0.0.1:0"]);
    assert!(code == 3 && error.contains("--dir"), "{code} {error}");
}

#[test]
fn it_is_not_ready_while_it_loads_and_a_signal_then_ends_it_well() {
    let dir = tempfile::tempdir().expect("a directory");
    // A catalogue that never arrives: the pipe has no writer.
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let mut command = fawn();
    command.args(["demo", "--resp", "127.0.0.1:0", "--memcached", "off", "--admin", &free.to_string()]);
    command.arg("--dir").arg(dir.path().join("data")).arg("--catalogue").arg(&pipe);
    command.arg("--ready-file").arg(dir.path().join("ready"));
    let mut child = Reaped(command.stdout(std::process::Stdio::null()).spawn().expect("it runs"));
    eventually("the admin port", || std::net::TcpStream::connect(free).ok());
    assert_eq!(http(free, "GET", "/healthz").0, 200);
    eventually("the stores are open", || {
        let (code, why) = http(free, "GET", "/readyz");
        assert!(code == 503 && (why.contains("loading") || why.contains("opening")), "{code} {why}");
        why.contains("loading").then_some(())
    });
    assert!(!dir.path().join("ready").exists());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), Signal::TERM).expect("it is ours");
    assert_eq!(child.0.wait().expect("it is ours").code(), Some(0));
}

/// The directories of the stores in a demo's data directory, in order.
fn stores(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("node-"));
    names.sort();
    names
}

/// A member that served alone would not know what the others agree on.
#[test]
fn the_store_of_a_member_is_not_served_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, _) = catalogue(dir.path(), 10, 20);
    let mut server = Server::demo_in(dir.path(), &["--catalogue", file.to_str().expect("text")]);
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data").canonicalize().expect("a path");
    let node = data.join("node-1");
    let before = std::fs::read(node.join("manifest")).expect("a manifest");
    let off = ["--resp", "off", "--memcached", "off", "--admin", "off"];
    let (code, error) = run_refused(&[&["serve", "--dir", node.to_str().expect("text")][..], &off].concat());
    let command = format!("`fawn demo --dir {}`", data.display());
    assert!(code == 3 && error.contains("is the store of a cluster's member") && error.contains(&command), "{error}");
    assert!(std::fs::read(node.join("manifest")).expect("a manifest") == before, "it was not opened");
}

/// The refusal of a start with another number of shards leaves no stores behind.
#[test]
fn a_start_with_more_shards_is_refused_before_stores_are_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, _) = catalogue(dir.path(), 10, 20);
    let flags = ["--catalogue", file.to_str().expect("text"), "--shards", "2", "--memory", "128M"];
    let mut server = Server::demo_in(dir.path(), &flags);
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    let before = stores(&data);
    let off = ["--resp", "127.0.0.1:0", "--memcached", "off", "--admin", "off", "--shards", "3"];
    let (code, _, error) = run(&[&["demo", "--dir", data.to_str().expect("text")][..], &off].concat());
    assert!(code == 3 && error.contains("created with shards = 2 per node"), "{code} {error}");
    assert_eq!(stores(&data), before, "nothing was made");
}

/// The first store in order is lost, as any other may be: the other nodes' copies are copied to a new one.
#[test]
fn a_lost_store_of_the_first_node_is_made_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, stanzas) = catalogue(dir.path(), 10, 20);
    let flags = ["--catalogue", file.to_str().expect("text")];
    let mut server = Server::demo_in(dir.path(), &flags);
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
    std::fs::remove_dir_all(dir.path().join("data/node-1")).expect("removed");
    let server = Server::demo_in(dir.path(), &flags);
    reads_back(&server, &stanzas);
}
