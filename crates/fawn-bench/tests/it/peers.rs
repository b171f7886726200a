//! Tests of peer stores as processes: the protocol with a scripted program, and the real programs where they are built.
#![expect(clippy::unwrap_used, reason = "a failure in a helper of the tests fails the test")]
use fawn_bench::store::mix::{ArrivalPattern, Mix};
use fawn_bench::store::peer::{self, Peer, PeerKind};
use fawn_bench::store::{Contender, DataShape, FillEnd, Gets, LoadParts, PartUnit, Puts};
use fawn_bench::workload::KeyDistribution;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SHAPE: DataShape = DataShape { keys: 3000, value_bytes: 100, memory_bytes: 4 << 20 };
const RUN: Duration = Duration::from_millis(50);

/// A peer that answers its commands in turn with these lines, and keeps the commands in `asked`.
fn scripted(dir: &Path, lines: &[&str]) -> Peer {
    let mut script = format!("#!/bin/sh\nasked={}\n", dir.join("asked").display());
    for line in lines {
        script += &format!("read -r command && echo \"$command\" >> \"$asked\" && echo '{line}'\n");
    }
    script += "echo 'out of script' >&2\n";
    write_program(&dir.join(peer::LMDB.program), &script);
    Peer::new(dir, peer::LMDB, dir)
}

/// Another process writes the file: a descriptor open for writing here would be inherited by a process that another
/// test starts at that moment, and the program could not be run until that process has replaced itself (`ETXTBSY`).
fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success(), "{} was not written", path.display());
}

fn mix(arrival: ArrivalPattern) -> Mix {
    Mix {
        put_percent: 40,
        delete_percent: 10,
        keys: KeyDistribution::zipf(SHAPE.keys, 0.99),
        arrival,
        run: RUN,
        operations_max: u64::MAX,
        seed: 3,
    }
}

#[test]
fn commands_say_what_the_workload_is_and_results_become_rows() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let lines = [
        r#"{"operations": 3000, "seconds": 2, "seconds_acknowledged": 1}"#,
        r#"{"operations": 3000, "wrong": 0}"#,
        r#"{"operations": 500, "seconds": 0.5, "gets": 500, "p50_us": 1.5, "max_us": 9}"#,
        r#"{"operations": 50, "seconds": 0.5, "gets": 25, "puts": 20, "deletes": 5, "unserved": 7}"#,
    ];
    let mut peer = scripted(dir.path(), &lines);
    let filled = peer.fill(&SHAPE, FillEnd::Acknowledged).unwrap();
    assert_eq!((filled.ops_per_s, &*filled.config["durability"]), (3000.0, "memory"));
    peer.verify().unwrap();
    let gets = peer.gets(&Gets { depth: 4, run: RUN, present: false, warm: false, seed: 5 }).unwrap();
    assert_eq!((gets.ops_per_s, gets.p50_us, gets.max_us), (1000.0, Some(1.5), Some(9.0)));
    let mixed = peer.mixed(&mix(ArrivalPattern::PerSecond(100.0))).unwrap().unwrap();
    assert_eq!((mixed.measured["puts"], mixed.measured["unserved"]), (20.0, 7.0));
    assert!(mixed.config["note"].contains("page cache"), "{mixed:?}");
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    let asked: Vec<_> = asked.lines().collect();
    assert!(asked[0].starts_with("fill keys=3000 value_bytes=100 memory_bytes=4194304"), "{asked:?}");
    assert_eq!(asked[1..3], ["verify", "mix seconds=0.05 threads=4 absent=1 seed=5"]);
    for word in ["put_percent=40", "delete_percent=10", "mix_keys=3000", "zipf=0.99", "rate=100", "seed=3"] {
        assert!(asked[3].contains(word), "{word} missing in {}", asked[3]);
    }
    let error = peer.verify().unwrap_err().to_string();
    assert!(error.contains("out of script"), "the program's last words: {error}");
}

#[test]
fn wrong_values_too_few_keys_and_nonsense_are_errors() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let filled = r#"{"operations": 3000, "seconds": 1}"#;
    let cases = [
        (r#"{"operations": 3000, "wrong": 2, "first_wrong": 17}"#, "key number 17"),
        (r#"{"operations": 2999}"#, "2999 keys, expected 3000"),
        ("segmentation fault", "segmentation fault"),
    ];
    for (line, expected) in cases {
        let mut peer = scripted(dir.path(), &[filled, line]);
        peer.fill(&SHAPE, FillEnd::Written).unwrap();
        let error = peer.verify().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut peer = scripted(dir.path(), &[filled, r#"{"operations": 9, "seconds": 1, "wrong": 1}"#]);
    peer.fill(&SHAPE, FillEnd::Written).unwrap();
    assert!(peer.mixed(&mix(ArrivalPattern::InFlight(1))).unwrap_err().to_string().contains("unexpected result"));
    let mut absent = Peer::new(dir.path(), peer::BDB, &dir.path().join("none"));
    assert!(absent.fill(&SHAPE, FillEnd::Written).unwrap_err().to_string().contains("eval/peers/build.sh"));
    assert!(absent.verify().unwrap_err().to_string().contains("before it was filled"));
}

fn complete_run(dir: &Path, kind: PeerKind, programs: &Path) {
    let mut peer = Peer::new(dir, kind, programs);
    peer.fill(&SHAPE, FillEnd::Written).unwrap();
    peer.verify().unwrap();
    for present in [true, false] {
        let row = peer.gets(&Gets { depth: 4, run: RUN, present, warm: false, seed: 1 }).unwrap();
        assert!(row.ops_per_s > 0.0 && row.p999_us.is_some(), "{row:?}");
    }
    // Threads that put the same hot keys.
    let row = peer.mixed(&mix(ArrivalPattern::InFlight(8))).unwrap().unwrap();
    let shares = ["gets", "puts", "deletes"].map(|name| row.measured[name]);
    assert!(shares[0] > 0.0 && shares[1] > shares[2] && shares[2] > 0.0, "{row:?}");
    peer.verify().unwrap();
    for in_sequence in [false, true] {
        let parts = LoadParts { count: 3, unit: PartUnit::Store, in_sequence };
        assert!(peer.fill_parts(&SHAPE, parts).unwrap().unwrap().ops_per_s > 0.0);
        peer.verify().unwrap();
    }
    let puts = Puts { writers: 2, run: RUN, seed: 1 };
    assert_eq!(peer.durable_puts(&SHAPE, &puts).unwrap().config["durability"], "sync");
    peer.discard().unwrap();
}

#[test]
fn built_peers_run_every_workload_on_a_verified_load() {
    let programs = Path::new("../../target/peers");
    let mut built = 0;
    for kind in [peer::LMDB, peer::BDB, peer::REDB, peer::FJALL, peer::ROCKSDB, peer::ROCKSDB_ROW_CACHE] {
        if programs.join(kind.program).exists() {
            let dir = tempfile::tempdir_in(".").unwrap();
            complete_run(dir.path(), kind, programs);
            built += 1;
        }
    }
    // The gate builds some of them in a step of its own, and then asks for that many here.
    let built_min = std::env::var("FAWN_PEERS_MIN").map_or(0, |least| least.parse().unwrap());
    assert!(built >= built_min, "{built} peers are built, expected {built_min}: run eval/peers/build.sh");
}
