//! Bulk loader: bytes, counts, line numbers and exit codes.
use crate::harness::{Server, run, run_with_input};
use std::fmt::Write;

#[test]
fn every_stanza_reads_back_and_bad_ones_are_named() {
    let server = Server::start(&[]);
    let at = server.resp.to_string();
    let mut catalogue = String::new();
    for number in 0..3000 {
        writeln!(catalogue, "Package: p{number}\nDescription: package {number}\n more about it\n").expect("a String");
    }
    catalogue.push_str("Version: 1\n\nPackage: last\n");
    let args = ["load", "--format", "deb822", "--key", "Package", "--prefix", "deb:", "--server", &at];
    let (code, out, error) = run_with_input(&args, catalogue.as_bytes());
    assert_eq!(code, 5, "{out} {error}");
    assert!(out.starts_with("3001 rows loaded"), "{out}");
    assert!(error.contains("standard input:12001: no field `Package` for the key"), "{error}");
    let skipped = run_with_input(&[&args[..], &["--skip-bad"]].concat(), catalogue.as_bytes());
    assert_eq!(skipped.0, 0, "{skipped:?}");
    for number in [0, 1, 1023, 1024, 2999] {
        let value = run(&["get", &format!("deb:p{number}"), "--server", &at]).1;
        let expected = format!("Package: p{number}\nDescription: package {number}\n more about it");
        assert_eq!(value, expected);
    }
    assert_eq!(run(&["get", "deb:last", "--server", &at]).1, "Package: last");
}

#[test]
fn jsonl_from_a_file() {
    let server = Server::start(&[]);
    let at = server.resp.to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users.jsonl");
    std::fs::write(&file, "{\"id\":1,\"name\":\"Ann\"}\n{\"id\":2}\nnope\n").expect("written");
    let file = file.to_str().expect("text");
    let (code, out, error) =
        run(&["load", "--format", "jsonl", "--key", "id", "--value", "name", "--server", &at, file]);
    assert!(code == 5 && out.starts_with("1 rows loaded"), "{code} {out} {error}");
    assert!(error.contains(&format!("{file}:2: no field `name`")), "{error}");
    assert!(error.contains(&format!("{file}:3: not JSON")), "{error}");
    assert_eq!(run(&["get", "1", "--server", &at]).1, "Ann");
}

#[test]
fn rows_that_the_server_refuses_are_no_bad_rows() {
    let server = Server::start(&["--value-max", "1K"]);
    let at = server.resp.to_string();
    let long = "v".repeat(2 << 10);
    let refused = format!("{{\"id\":1,\"v\":\"a\"}}\n{{\"id\":2,\"v\":\"{long}\"}}\n{{\"id\":3,\"v\":\"c\"}}\n");
    let args = ["load", "--format", "jsonl", "--key", "id", "--value", "v", "--server", &at];
    for (flags, input, words) in [
        (&[][..], refused.clone(), "the server refused 1 row, listed above\n"),
        (&["--skip-bad"], refused.clone(), "the server refused 1 row, listed above\n"),
        (&[], format!("{refused}nope\n"), "listed above; 1 row of the input cannot be loaded\n"),
    ] {
        let (code, out, error) = run_with_input(&[&args[..], flags].concat(), input.as_bytes());
        assert!(code == 4 && error.contains(words), "{code} {out} {error}");
        assert!(error.contains("standard input:2: the server refused it: "), "{error}");
        let bad = usize::from(input.contains("nope"));
        assert!(out.ends_with(&format!("; {bad} bad rows, 1 refused by the server\n")), "{out}");
        assert_eq!(run(&["get", "3", "--server", &at]).1, "c", "later rows are loaded");
    }
}

/// As floating-point numbers, different ones become the same key.
#[test]
fn numbers_are_loaded_as_they_are_written() {
    let server = Server::start(&[]);
    let at = server.resp.to_string();
    let input = "{\"id\":12345678901234567890123,\"v\":1.10}\n{\"id\":12345678901234567890124,\"v\":[1e5, 2]}\n\
                 {\"id\":1e5,\"v\":1e999}\n{\"id\":{},\"v\":1}\n";
    let args = ["load", "--format", "jsonl", "--key", "id", "--value", "v", "--server", &at];
    let (code, out, error) = run_with_input(&args, input.as_bytes());
    assert!(code == 5 && out.starts_with("3 rows loaded"), "{code} {out} {error}");
    assert!(error.contains("standard input:4: field `id` for the key: expected a string or a number"), "{error}");
    for (key, value) in [("12345678901234567890123", "1.10"), ("12345678901234567890124", "[1e5, 2]"), ("1e5", "1e999")]
    {
        assert_eq!(run(&["get", key, "--server", &at]).1, value, "{key}");
    }
}

/// A server that answers the first requests, some with a refusal, and then `end`s.
fn load_from(end: impl FnOnce(std::net::TcpStream) + Send + 'static) -> (i32, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        std::io::Write::write_all(&mut stream, b"+OK\r\n-OOM full\r\n+OK\r\n").expect("it reads");
        end(stream);
    });
    let rows: String = (0..9).map(|row| format!("{{\"id\":\"k{row}\"}}\n")).collect();
    let args = ["load", "--format", "jsonl", "--key", "id", "--server", &at, "--timeout", "250ms"];
    let (code, _, error) = run_with_input(&args, rows.as_bytes());
    server.join().expect("it ends");
    (code, error)
}

#[test]
fn a_load_that_is_cut_short_does_not_count_refused_rows_as_stored() {
    let (code, error) = load_from(|mut stream| {
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        // Its requests are read, so that its end is no reset.
        std::io::copy(&mut stream, &mut std::io::sink()).expect("it closes");
    });
    let words = "connection lost: the server closed it; of the rows up to line 3, 2 are stored, 1 was refused; run the load again";
    assert!(code == 4 && error.contains(words), "{code} {error}");
    let (code, error) = load_from(|mut stream| {
        std::io::copy(&mut stream, &mut std::io::sink()).expect("it closes");
    });
    assert!(code == 4 && error.contains(": no reply within 250ms; of the rows"), "{code} {error}");
    assert!(!error.contains("os error"), "{error}");
}

#[test]
fn a_timeout_of_nothing_is_a_wrong_command_line() {
    let (code, _, error) = run(&["get", "key", "--server", "127.0.0.1:1", "--timeout", "0s"]);
    assert!(code == 2 && error.contains("--timeout"), "{code} {error}");
}
