//! The data directory: restarts, kills, a second server, damage; both protocols see one store.
use crate::harness::{Server, connect, exchange, run};
use fawn_types::checksum::checksum64;
use rustix::process::Signal;
use std::io::{Read, Write};

#[test]
fn both_protocols_see_the_same_keys() {
    let server = Server::start(&[]);
    let (mut redis, mut memcached) = (connect(server.resp), connect(server.memcached));
    exchange(&mut redis, b"SET k from-redis\r\n", b"+OK\r\n");
    exchange(&mut memcached, b"get k\r\n", b"VALUE k 0 10\r\nfrom-redis\r\nEND\r\n");
    exchange(&mut memcached, b"set k 7 0 2\r\nmc\r\n", b"STORED\r\n");
    exchange(&mut redis, b"GET k\r\n", b"$2\r\nmc\r\n");
}

#[test]
fn data_outlive_an_orderly_end_on_either_device() {
    for device in ["auto", "portable"] {
        let dir = tempfile::tempdir().expect("a directory");
        let flags = ["--device", device, "--segment", "64K"];
        let mut server = Server::start_in(dir.path(), &flags);
        let mut client = connect(server.resp);
        for round in 0..200 {
            let value = "v".repeat(round * 10);
            let request = format!("*3\r\n$3\r\nSET\r\n$4\r\nk{round:03}\r\n${}\r\n{value}\r\n", value.len());
            exchange(&mut client, request.as_bytes(), b"+OK\r\n");
        }
        server.signal(Signal::TERM);
        assert_eq!(server.wait(), Some(0));
        let server = Server::start_in(dir.path(), &flags);
        let mut client = connect(server.resp);
        exchange(&mut client, b"DBSIZE\r\n", b":200\r\n");
        exchange(&mut client, b"STRLEN k123\r\n", b":1230\r\n");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    for mode in ["sync", "everysec"] {
        let dir = tempfile::tempdir().expect("a directory");
        for round in 0..3_u32 {
            let mut server = Server::start_in(dir.path(), &["--durability", mode]);
            let mut client = connect(server.resp);
            for earlier in 0..round {
                exchange(&mut client, format!("GET last{earlier}\r\n").as_bytes(), b"$2\r\nok\r\n");
            }
            // Pipelined, so that the kill falls between writes; every acknowledged write must be found.
            let mut acked = 0_u32;
            let batch = "SET counter 1\r\n".repeat(50) + &format!("SET last{round} ok\r\n");
            client.write_all(batch.as_bytes()).expect("it reads");
            let mut reply = [0; 5];
            while acked < 51 && client.read_exact(&mut reply).is_ok() {
                assert_eq!(&reply, b"+OK\r\n");
                acked += 1;
            }
            server.signal(Signal::KILL);
            assert_eq!(server.wait(), None, "killed");
        }
    }
}

#[test]
fn a_second_server_is_refused_and_the_first_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Server::start_in(dir.path(), &[]);
    let data = dir.path().join("data");
    let data = data.to_str().expect("text");
    let (code, _, error) = run(&["serve", "--dir", data, "--resp", "off", "--memcached", "off", "--admin", "off"]);
    assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    let (code, _, error) = run(&["check", data]);
    assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    exchange(&mut connect(server.resp), b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn a_directory_that_cannot_be_made_is_told_apart() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let below = file.path().join("data");
    let below = below.to_str().expect("text");
    let (code, _, error) = run(&["serve", "--dir", below, "--resp", "off", "--memcached", "off", "--admin", "off"]);
    assert!(code == 3 && error.contains(below) && error.contains("--dir"), "{code} {error}");
    let (code, _, error) = run(&["check", below]);
    assert!(code == 3 && error.contains("no such directory"), "{code} {error}");
    let file = file.path().to_str().expect("text");
    let off = ["--resp", "off", "--memcached", "off", "--admin", "off"];
    let (serve, backup) = ([&["serve", "--dir", file][..], &off].concat(), format!("{file}.backup"));
    for args in
        [&serve[..], &["check", file], &["check", file, "--repair"], &["dump", file], &["backup", file, &backup]]
    {
        let (code, _, error) = run(args);
        assert!(code == 3 && error.contains("is a file; give a directory"), "{args:?}: {code} {error}");
    }
}

#[test]
fn a_flipped_bit_is_found_and_the_store_does_not_open_as_if_nothing_were_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &[]);
    let mut client = connect(server.resp);
    for key in 0..100 {
        exchange(&mut client, format!("SET key{key} a-value-to-look-for\r\n").as_bytes(), b"+OK\r\n");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    let text = data.to_str().expect("text");
    let (code, out, _) = run(&["check", text]);
    assert!(code == 0 && out.contains("100 records") && out.ends_with("sound\n"), "{code} {out}");
    flip_a_bit(&data);
    let (code, out, error) = run(&["check", text]);
    assert!(code == 3 && out.contains("DAMAGE: segment-"), "{code} {out} {error}");
    let (code, _, error) = run(&["serve", "--dir", text, "--resp", "off", "--memcached", "off", "--admin", "off"]);
    assert!(code == 3 && error.contains("is corrupt from byte"), "{code} {error}");
}

/// A store of another format is whole: nothing that is meant for damaged ones applies to it.
#[test]
fn a_store_of_another_format_is_not_called_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &["--segment", "64K"]);
    exchange(&mut connect(server.resp), b"SET k v\r\n", b"+OK\r\n");
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    let (text, dump, backup) = (data.to_str().expect("text"), dir.path().join("dump"), dir.path().join("copy"));
    let off = ["--resp", "off", "--memcached", "off", "--admin", "off"];
    let commands = [
        &["check", text][..],
        &["check", text, "--repair", "--yes"],
        &["dump", text, "-o", dump.to_str().expect("text")],
        &["backup", text, backup.to_str().expect("text")],
        &[&["serve", "--dir", text][..], &off].concat(),
    ];
    let files = std::fs::read_dir(&data).expect("a directory").map(|entry| entry.expect("an entry").path());
    // The content of the manifest's spare counts for nothing.
    let has_header = |path: &std::path::Path| path.extension().is_some_and(|extension| extension != "spare");
    let is_checked = |path: &std::path::PathBuf| path.ends_with("manifest") || has_header(path);
    for file in files.filter(is_checked) {
        let made = std::fs::read(&file).expect("a file");
        for (format, remedy) in [(3, "; upgrade fawn\n"), (1, "move the directory away and create a new store\n")] {
            let mut other = made.clone();
            other[8] = format;
            let checksum = checksum64(&other[..504]);
            other[504..512].copy_from_slice(&checksum.to_le_bytes());
            std::fs::write(&file, other).expect("written");
            let is_outdated = format == 1 && !file.ends_with("manifest");
            if is_outdated {
                // Its manifest can be read, and no other fawn reads all of it: what is left is saved as after damage.
                let (code, out, error) = run(&["check", text]);
                assert!(code == 3 && out.contains("DAMAGE: segment-"), "{file:?}: {code} {out} {error}");
                let (code, out, error) = run(&["dump", text]);
                assert!(code == 8 && out.contains(r#"{"key":"k","value":"v"}"#), "{file:?}: {code} {out} {error}");
            }
            for args in if is_outdated { &commands[3..] } else { &commands[..] } {
                let (code, out, error) = run(args);
                let is_told = error.contains(&format!("format {format} was written by")) && error.ends_with(remedy);
                assert!(code == 3 && is_told, "{file:?} {args:?}: {code} {out} {error}");
                let all = out + &error;
                let is_alarm =
                    ["DAMAGE", "corrupt", "damaged", "backup", "fawn check"].iter().any(|word| all.contains(word));
                assert!(!is_alarm, "{file:?} {args:?}: {all}");
            }
        }
        std::fs::write(&file, made).expect("written back");
    }
    assert!(!dump.exists() && !backup.exists(), "nothing was written");
    Server::start_in(dir.path(), &[]);
}

/// Messages of a check do not send the reader to a check, and counts of one are in the singular.
#[test]
fn an_empty_manifest_is_reported_with_one_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_in(dir.path(), &["--segment", "64K"]);
    exchange(&mut connect(server.resp), b"SET k v\r\n", b"+OK\r\n");
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let data = dir.path().join("data");
    let (text, backup) = (data.to_str().expect("text"), dir.path().join("backup"));
    let (_, out, _) = run(&["check", text]);
    assert!(out.starts_with("1 segment, 1 frame, 1 record, "), "{out}");
    let (_, out, error) = run(&["backup", text, backup.to_str().expect("text")]);
    assert!((out.clone() + &error).contains("1 segment; "), "{out} {error}");
    let (_, _, error) = run(&["dump", text]);
    assert!(error.contains("1 key dumped"), "{error}");
    std::fs::write(data.join("manifest"), "").expect("written");
    let (code, out, _) = run(&["check", text]);
    assert!(code == 3 && out.contains("the file was cut short\n"), "{code} {out}");
    let (code, _, error) = run(&["serve", "--dir", text, "--resp", "off", "--memcached", "off", "--admin", "off"]);
    let remedy = "cut short; restore it from a backup, or save what is left with `fawn check --repair`\n";
    assert!(code == 3 && error.ends_with(remedy), "{code} {error}");
}

/// Damages the first record of the first segment that has one.
fn flip_a_bit(data: &std::path::Path) {
    let files = std::fs::read_dir(data).expect("a directory").map(|entry| entry.expect("an entry").path());
    for file in files.filter(|path| path.extension().is_some_and(|extension| extension == "fawn")) {
        let mut bytes = std::fs::read(&file).expect("a segment");
        let needle = b"a-value-to-look-for";
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at] ^= 4;
            return std::fs::write(&file, bytes).expect("written back");
        }
    }
    panic!("no segment holds the value");
}
