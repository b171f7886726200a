//! Layout of a directory with several shards: missing, swapped and foreign stores are refused without a change,
//! interrupted creations are completed.
use crate::harness::{Server, connect, eventually, exchange, run, run_refused};
use fawn_types::checksum::checksum64;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Small segments keep the tests quick.
const FLAGS: [&str; 2] = ["--segment", "64K"];
const KEYS: usize = 60;

fn start(dir: &Path, shards: &[&str]) -> Server {
    Server::start_in(dir, &[&FLAGS[..], shards].concat())
}

fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

fn fill(server: &Server) {
    let mut client = connect(server.resp);
    for key in 0..KEYS {
        exchange(&mut client, format!("SET key{key} of-key{key}\r\n").as_bytes(), b"+OK\r\n");
    }
}

fn assert_filled(server: &Server) {
    let mut client = connect(server.resp);
    exchange(&mut client, b"DBSIZE\r\n", format!(":{KEYS}\r\n").as_bytes());
    for key in 0..KEYS {
        let value = format!("of-key{key}");
        exchange(
            &mut client,
            format!("GET key{key}\r\n").as_bytes(),
            format!("${}\r\n{value}\r\n", value.len()).as_bytes(),
        );
    }
}

/// Exit code and message of a server that must not start on `dir`.
fn refused(dir: &Path, flags: &[&str]) -> (i32, String) {
    let data = dir.join("data");
    let mut args = vec!["serve", "--dir", data.to_str().expect("text"), "--memory", "64M"];
    args.extend(["--resp", "off", "--memcached", "off", "--admin", "off"]);
    args.extend(flags);
    run_refused(&args)
}

fn shards_of(server: &Server) -> usize {
    let page = crate::harness::http(server.admin, "GET", "/metrics").1;
    page.lines().filter(|line| line.starts_with("fawn_loop_iterations_total{")).count()
}

/// Each shard's directory may be the mount point of its own device.
#[test]
fn directories_for_the_shards_may_be_there_before_the_first_start() {
    let dir = tempfile::tempdir().expect("a directory");
    for inside in ["data/shard-0/lost+found", "data/shard-1"] {
        fs::create_dir_all(dir.path().join(inside)).expect("a mount point");
    }
    for shards in [&["--shards", "2"][..], &[]] {
        let server = start(dir.path(), shards);
        if !shards.is_empty() {
            fill(&server);
        }
        assert_filled(&server);
        stop(server);
    }
}

#[test]
fn the_number_is_for_life() {
    for (made, others) in [(Some("3"), ["1", "2", "4"]), (None, ["2", "3", "4"])] {
        let dir = tempfile::tempdir().expect("a directory");
        let first = made.map_or(vec![], |number| vec!["--shards", number]);
        let count = made.map_or(1, |number| number.parse().expect("a number"));
        let server = start(dir.path(), &first);
        fill(&server);
        stop(server);
        for other in others {
            let (code, error) = refused(dir.path(), &["--shards", other]);
            let is_told = error.contains(&format!("was made for {count} shard")) && error.contains("new directory");
            assert!(code == 3 && is_told, "{other}: {code} {error}");
        }
        for again in [&first[..], &["--shards", "auto"], &[]] {
            let server = start(dir.path(), again);
            assert_eq!(shards_of(&server), count, "{again:?}");
            assert_filled(&server);
            stop(server);
        }
    }
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, error) = refused(dir.path(), &["--shards", "5"]);
    assert!(code == 2 && error.contains("at least 80M for 5 shards"), "{code} {error}");
    assert!(!dir.path().join("data").exists(), "nothing was made");
    for (flags, expected) in [
        (["--shards", "9", "--memory", "1G"], "9 is not in 1..=8"),
        (["--shards", "2", "--memory", "100M"], "at least 128M"),
    ] {
        let (code, _, error) = run(&[&["demo"], &flags[..]].concat());
        assert!(code == 2 && error.contains(expected), "{code} {error}");
    }
    // The directory's three shards are known only after the layout was read.
    stop(start(dir.path(), &["--shards", "3"]));
    let data = dir.path().join("data");
    let args = ["serve", "--dir", data.to_str().expect("text"), "--memory", "40M", "--admin", "off"];
    let (code, error) = run_refused(&[&args[..], &["--resp", "off", "--memcached", "off"]].concat());
    assert!(code == 2 && error.contains("at least 48M for 3 shards"), "{code} {error}");
}

#[test]
fn the_size_of_segments_is_for_life_and_bounds_values_and_capacity() {
    let dir = tempfile::tempdir().expect("a directory");
    stop(start(dir.path(), &[]));
    let (code, error) = refused(dir.path(), &["--segment", "1M"]);
    let is_told = error.contains("was made for segments of 64K") && error.contains("new directory");
    assert!(code == 3 && is_told, "{code} {error}");
    let (code, error) = refused(dir.path(), &["--value-max", "100K"]);
    assert!(code == 2 && error.contains("value-max = 100K"), "{code} {error}");
    for again in [&FLAGS[..], &[]] {
        let server = Server::start_in(dir.path(), again);
        let reply = b"*2\r\n$15\r\nvalue-bytes-max\r\n$5\r\n16384\r\n";
        exchange(&mut connect(server.resp), b"CONFIG GET value-bytes-max\r\n", reply);
        stop(server);
    }
    for shards in ["1", "2"] {
        let dir = tempfile::tempdir().expect("a directory");
        stop(Server::start_in(dir.path(), &["--segment", "1M", "--shards", shards]));
        let (code, error) = refused(dir.path(), &["--capacity", "4M"]);
        assert!(code == 2 && error.contains("capacity = 4M: expected at least 8 segments"), "{code} {error}");
        assert!(!error.contains("smaller segment"), "its segments keep their size: {error}");
    }
}

/// No value-max helps against the limit of a record, which includes the key.
#[test]
fn a_record_too_long_for_its_segment_is_refused_for_what_it_is() {
    let server = Server::start(&FLAGS);
    let mut client = connect(server.resp);
    let mut set = |key: usize, value: usize, reply: &str| {
        let (keys, values) = ("k".repeat(key), "v".repeat(value));
        let request = format!("*3\r\n$3\r\nSET\r\n${key}\r\n{keys}\r\n${value}\r\n{values}\r\n");
        exchange(&mut client, request.as_bytes(), reply.as_bytes());
    };
    let of_record = "-ERR records of one command longer than 16384 bytes, with keys and headers; split them\r\n";
    set(1, 16_300, "+OK\r\n");
    set(1, 16_384, of_record);
    set(20_000, 1, of_record);
    set(1, 16_385, "-ERR value longer than 16384 bytes; raise value-max or split the value\r\n");
    let mut client = connect(server.memcached);
    let request = format!("set k 0 0 16384\r\n{}\r\n", "v".repeat(16_384));
    exchange(&mut client, request.as_bytes(), b"SERVER_ERROR object too large for cache\r\n");
}

/// A fault of a directory: how to cause it, how to undo it, and the expected refusal.
struct Wrong {
    doing: fn(&Path, &Path),
    undoing: fn(&Path, &Path),
    expected: &'static str,
}

fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    fs::rename(from, to).expect("renamed");
}

fn put_layout_aside(data: &Path, aside: &Path) {
    rename(data.join("layout.toml"), aside.join("layout.toml"));
}

fn put_layout_back(data: &Path, aside: &Path) {
    rename(aside.join("layout.toml"), data.join("layout.toml"));
}

fn swap(data: &Path, aside: &Path) {
    rename(data.join("shard-0"), aside.join("shard"));
    rename(data.join("shard-2"), data.join("shard-0"));
    rename(aside.join("shard"), data.join("shard-2"));
}

const WRONGS: &[Wrong] = &[
    Wrong {
        doing: |data, aside| rename(data.join("shard-1"), aside.join("shard-1")),
        undoing: |data, aside| rename(aside.join("shard-1"), data.join("shard-1")),
        expected: "shard-1: missing, though shard 1 of 3 was made",
    },
    Wrong {
        doing: |data, aside| {
            rename(data.join("shard-1"), aside.join("shard-1"));
            fs::create_dir(data.join("shard-1")).expect("a mount point without its file system");
        },
        undoing: |data, aside| rename(aside.join("shard-1"), data.join("shard-1")),
        expected: "shard-1: holds no store, though shard 1 of 3 was made",
    },
    Wrong { doing: swap, undoing: swap, expected: "shard-0: holds the keys of shard 2, not of shard 0" },
    Wrong {
        doing: put_layout_aside,
        undoing: put_layout_back,
        expected: "layout.toml: missing, though stores of shards are here",
    },
    Wrong {
        doing: |data, aside| {
            fs::copy(data.join("layout.toml"), aside.join("layout.toml")).expect("copied");
            let text = fs::read_to_string(data.join("layout.toml")).expect("text");
            fs::write(data.join("layout.toml"), text.replace("shards = 3", "shards = 2")).expect("written");
        },
        undoing: put_layout_back,
        expected: "layout.toml: corrupt",
    },
    Wrong {
        doing: |data, aside| {
            put_layout_aside(data, aside);
            fs::write(data.join("layout.toml"), "").expect("written");
        },
        undoing: put_layout_back,
        expected: "layout.toml: corrupt",
    },
    Wrong {
        doing: |data, aside| {
            put_layout_aside(data, aside);
            fs::write(data.join("layout.toml"), "format = 7\nrings = 3\n").expect("written");
        },
        undoing: put_layout_back,
        expected: "layout.toml: has format 7, from a newer fawn",
    },
    Wrong {
        doing: |data, aside| {
            put_layout_aside(data, aside);
            fs::create_dir(data.join("layout.toml")).expect("something that cannot be read");
        },
        undoing: |data, aside| {
            fs::remove_dir(data.join("layout.toml")).expect("removed");
            put_layout_back(data, aside);
        },
        expected: "give the directory to the user that runs fawn",
    },
    Wrong {
        doing: |data, _| assert!(fs::copy(data.join("shard-0/manifest"), data.join("manifest")).is_ok()),
        undoing: |data, _| fs::remove_file(data.join("manifest")).expect("removed"),
        expected: "holds a store of its own (`manifest`) and one of several shards",
    },
    Wrong {
        doing: |data, aside| {
            stop(start(&aside.join("other"), &["--shards", "3"]));
            rename(data.join("shard-1"), aside.join("shard-1"));
            rename(aside.join("other/data/shard-1"), data.join("shard-1"));
        },
        undoing: |data, aside| {
            rename(data.join("shard-1"), aside.join("other/data/shard-1"));
            rename(aside.join("shard-1"), data.join("shard-1"));
        },
        expected: "shard-1: has another hash secret than the directory's layout",
    },
];

#[test]
fn what_is_not_as_it_was_made_is_refused_and_left_alone() {
    let (dir, aside) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
    fs::create_dir(aside.path().join("other")).expect("room for another server");
    let server = start(dir.path(), &["--shards", "3"]);
    fill(&server);
    stop(server);
    let data = dir.path().join("data");
    for Wrong { doing, undoing, expected } in WRONGS {
        doing(&data, aside.path());
        let (code, error) = refused(dir.path(), &["--shards", "3"]);
        assert!(code == 3 && error.contains(expected), "{expected}: {code} {error}");
        let (code, out, error) = run(&["check", data.to_str().expect("text")]);
        let is_told = error.contains(expected) || out.contains(expected);
        assert!(code == 3 && is_told, "{expected}: {code} {out} {error}");
        undoing(&data, aside.path());
    }
    assert_filled(&start(dir.path(), &[]));
}

#[test]
fn a_kill_at_any_time_of_the_first_start_is_harmless() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut were_half_made = 0;
    for round in 0..20 {
        let place = dir.path().join(round.to_string());
        fs::create_dir(&place).expect("a directory");
        let child = Server::spawn("serve", &place, &[&FLAGS[..], &["--shards", "3"]].concat());
        // Interrupted at each step of the creation, later and later.
        eventually("the directory", || place.join("data").exists().then_some(()));
        std::thread::park_timeout(Duration::from_micros(500 * round));
        drop(child);
        let layout = fs::read_to_string(place.join("data/layout.toml")).unwrap_or_default();
        were_half_made += usize::from(layout.contains("making"));
        let server = start(&place, &["--shards", "3"]);
        assert_eq!(shards_of(&server), 3);
        fill(&server);
        stop(server);
        let layout = fs::read_to_string(place.join("data/layout.toml")).expect("a layout");
        assert!(layout.contains("stores = \"made\""), "{layout}");
    }
    println!("{were_half_made} of 20 kills left a layout without all of its stores");
}

#[test]
fn one_process_at_a_time_serves_or_checks() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), &["--shards", "2"]);
    let data = dir.path().join("data");
    for flags in [&[][..], &["--shards", "2"], &["--shards", "4"]] {
        let (code, error) = refused(dir.path(), flags);
        assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    }
    for place in [data.clone(), data.join("shard-1")] {
        let (code, _, error) = run(&["check", place.to_str().expect("text")]);
        assert!(code == 3 && error.contains("in use by another process"), "{code} {error}");
    }
    stop(server);
    // The store of one shard cannot serve alone: it has a slice of the ring.
    for shard in ["shard-0", "shard-1"] {
        let place = data.join(shard);
        let args = ["serve", "--dir", place.to_str().expect("text"), "--resp", "off", "--memcached", "off"];
        let (code, error) = run_refused(&[&args[..], &["--admin", "off"]].concat());
        assert!(
            code == 3 && error.contains("is one shard of the data directory") && error.contains("give that one"),
            "{code} {error}"
        );
    }
}

#[test]
fn check_looks_at_every_shard() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), &["--shards", "3"]);
    fill(&server);
    stop(server);
    let data = dir.path().join("data");
    let text = data.to_str().expect("text");
    let (code, out, _) = run(&["check", text]);
    let records: usize = out
        .lines()
        .filter_map(|line| line.split(", ").find_map(|part| part.strip_suffix(" records")))
        .map(|number| number.parse::<usize>().expect("a number"))
        .sum();
    assert!(code == 0 && records == KEYS && out.starts_with("3 shards") && out.ends_with("sound\n"), "{code} {out}");
    let manifest = data.join("shard-1/manifest");
    let made = fs::read(&manifest).expect("a manifest");
    let mut bytes = made.clone();
    bytes[8] = 3;
    let checksum = checksum64(&bytes[..504]);
    bytes[504..512].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&manifest, bytes).expect("written");
    let (code, out, error) = run(&["check", text]);
    let is_told = out.contains("format 3 was written by a newer fawn") && out.contains("shard 2:\n1 segment, ");
    assert!(code == 3 && is_told && error.ends_with("upgrade fawn\n"), "{code} {out} {error}");
    let mut bytes = made;
    bytes[520] ^= 1;
    fs::write(&manifest, bytes).expect("written back");
    let (code, out, error) = run(&["check", text]);
    // The next store is checked all the same.
    let is_told =
        out.contains("shard 1:\n") && out.contains("DAMAGE: manifest") && out.contains("shard 2:\n1 segment, ");
    assert!(code == 3 && is_told && error.contains("corrupt, as listed"), "{code} {out} {error}");
    let (code, error) = refused(dir.path(), &[]);
    assert!(code == 3 && error.contains("shard-1") && error.contains("manifest"), "{code} {error}");
}

#[test]
fn a_lost_shard_keeps_neither_check_nor_repair_from_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(dir.path(), &["--shards", "2"]);
    fill(&server);
    stop(server);
    let data = dir.path().join("data");
    let (text, lost) = (data.to_str().expect("text"), data.join("shard-0"));
    let steps: [(fn(&Path), _); 3] = [
        (|lost| fs::remove_file(lost.join("manifest")).expect("removed"), "DAMAGE: manifest at byte 0"),
        (|lost| fs::remove_dir_all(lost).expect("removed"), "missing, though shard 0 of 2 was made"),
        (|lost| fs::create_dir(lost).expect("made"), "holds no store, though shard 0 of 2 was made"),
    ];
    for (lose, expected) in steps {
        lose(&lost);
        let (code, out, error) = run(&["check", text]);
        let is_told = out.contains("DAMAGE: ") && out.contains(expected) && error.contains("`fawn check --repair`");
        assert!(code == 3 && is_told, "{expected}: {code} {out} {error}");
        assert!(out.contains("shard 1:\n1 segment"), "the other is checked all the same: {out}");
    }
    let (code, _, error) = run(&["check", text, "--repair", "--yes"]);
    assert_eq!(code, 0, "{error}");
    // The lost shard was made again, with segments of the size that the start asks for.
    fs::rename(&data, dir.path().join("damaged")).expect("moved");
    fs::rename(dir.path().join("data.repaired"), &data).expect("moved");
    stop(start(dir.path(), &["--shards", "2"]));
}

#[test]
fn a_store_is_not_made_among_other_files() {
    for shards in [&[][..], &["--shards", "3"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("made");
        fs::write(data.join("batch"), "mine").expect("written");
        let (code, error) = refused(dir.path(), &[&FLAGS[..], shards].concat());
        assert!(code == 3 && error.contains("`batch`") && error.contains("of its own"), "{code} {error}");
        assert_eq!(fs::read_dir(&data).expect("listed").count(), 1, "nothing was made there");
        fs::remove_file(data.join("batch")).expect("removed");
        // Files of a new file system, and files that an interrupted first start leaves.
        fs::create_dir(data.join("lost+found")).expect("made");
        fs::write(data.join("manifest.new"), "half").expect("written");
        let server = start(dir.path(), shards);
        fill(&server);
        stop(server);
        // Once the directory has a store, other files in it are ignored.
        fs::write(data.join("batch"), "mine").expect("written");
        let server = start(dir.path(), &[]);
        assert_filled(&server);
        stop(server);
    }
}
