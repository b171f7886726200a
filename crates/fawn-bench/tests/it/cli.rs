//! Tests of the command line: valid flags, errors for invalid ones, and examples in the help text.
use clap::{CommandFactory, Parser};
use fawn_bench::cli::{self, Bench};

#[derive(Parser)]
#[command(name = "bench")]
struct Host {
    #[command(flatten)]
    bench: Bench,
}

fn refused(words: &[&str]) -> String {
    match Host::try_parse_from(words.iter().copied()) {
        Ok(_) => panic!("{words:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_manual_is_complete_and_consistent() {
    Host::command().debug_assert();
    let mut command = Host::command();
    let manual = command.render_long_help().to_string();
    assert!(manual.contains("Examples:") && manual.contains("fawn bench store --engine"), "{manual}");
}

#[test]
fn nonsense_is_refused_by_name() {
    assert!(refused(&["bench", "store", "--engine", "mysql"]).contains("fawn-ds"));
    assert!(refused(&["bench", "store", "--keys", "0"]).contains("above zero"));
    assert!(refused(&["bench", "store", "--figure", "fawn09-fig99"]).contains("fawn09-table2"));
    assert!(refused(&["bench", "store", "--parts-max", "257"]).contains("256"));
    assert!(refused(&["bench", "device", "--file", "1X"]).contains("not a size"));
    assert!(refused(&["bench", "server", "--against", "mysql"]).contains("redis"));
}

#[test]
fn a_run_writes_rows_and_machine_and_the_report_reads_them() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let (data, out) = (dir.path().join("data"), dir.path().join("results/store.jsonl"));
    let words = ["bench", "store", "--json", "--pairs", "1", "--keys", "1000", "--workload", "put", "--dir"];
    let paths = [data.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let words: Vec<_> = words.iter().map(std::ffi::OsStr::new).chain(paths).collect();
    cli::run(Host::try_parse_from(words).unwrap().bench).unwrap();
    assert!(out.with_file_name("machine.json").exists());
    assert!(!data.exists(), "an empty data directory is removed");
    let rows = fawn_bench::report::read_dir(out.parent().unwrap()).unwrap();
    assert_eq!((rows.len(), &*rows[0].workload), (1, "put 256 B, memory"));
    cli::run(
        Host::try_parse_from(["bench".as_ref(), "report".as_ref(), out.parent().unwrap().as_os_str()]).unwrap().bench,
    )
    .unwrap();
}
