//! One-shot client: exit codes, and bytes that return unchanged.
use crate::harness::{Server, run, run_with_input};

#[test]
fn set_get_del() {
    let server = Server::start(&[]);
    let at = ["--server", &server.resp.to_string()].map(str::to_owned);
    let call = |args: &[&str]| run(&[args, &[&at[0], &at[1]]].concat());
    assert_eq!(call(&["get", "k"]), (6, String::new(), String::new()));
    assert_eq!(call(&["set", "k", "a value"]).0, 0);
    assert_eq!(call(&["get", "k"]), (0, "a value".to_owned(), String::new()));
    let from_stdin = run_with_input(&["set", "k", &at[0], &at[1]], b"line\nline\n");
    assert_eq!(from_stdin.0, 0, "{from_stdin:?}");
    assert_eq!(call(&["get", "k"]).1, "line\nline\n");
    assert_eq!(call(&["del", "k", "other"]), (0, "1\n".to_owned(), String::new()));
    assert_eq!(call(&["del", "k"]), (6, "0\n".to_owned(), String::new()));
}

#[test]
fn conditions_and_time() {
    let server = Server::start(&[]);
    let at = server.resp.to_string();
    let set = |flags: &[&str]| run(&[&["set", "k", "v", "--server", &at], flags].concat()).0;
    assert_eq!(set(&["--only-if-present"]), 1);
    assert_eq!(set(&["--only-if-absent", "--ttl", "1h"]), 0);
    assert_eq!(set(&["--only-if-absent"]), 1);
    assert_eq!(set(&["--only-if-present"]), 0);
}

#[test]
fn no_server_is_told_apart() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let (code, _, error) = run(&["get", "k", "--server", &free.to_string()]);
    assert!(code == 4 && error.contains("is `fawn serve` running there?"), "{code} {error}");
}
