//! Admin port: pages and bounds.
use crate::harness::{Server, connect, eventually, exchange, http};
use std::io::Read;

#[test]
fn pages_answer_and_others_say_what_there_is() {
    let server = Server::start(&[]);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http(server.admin, "GET", path).0, 200, "{path}");
    }
    let (status, body) = http(server.admin, "GET", "/nothing");
    assert!(status == 404 && body.contains("/metrics"), "{status} {body}");
    assert_eq!(http(server.admin, "POST", "/metrics").0, 405);
    let status: serde_json::Value = serde_json::from_str(&http(server.admin, "GET", "/status").1).expect("JSON");
    assert_eq!(status["pid"], server.pid());
}

#[test]
fn metrics_count_what_clients_do() {
    let server = Server::start(&[]);
    let mut client = connect(server.resp);
    exchange(&mut client, b"PING\r\n", b"+PONG\r\n");
    assert_eq!((server.metric("fawn_connections"), server.metric("fawn_connections_accepted_total")), (1, 1));
    assert_eq!((server.metric("fawn_received_bytes_total"), server.metric("fawn_sent_bytes_total")), (6, 7));
    drop(client);
    eventually("the connection to be noticed gone", || (server.metric("fawn_connections") == 0).then_some(()));
}

#[test]
fn an_idle_server_takes_no_turns() {
    let server = Server::start(&[]);
    // Until then it certifies what its start has written.
    eventually("the server to rest", || {
        let before = server.metric("fawn_loop_iterations_total");
        std::thread::park_timeout(std::time::Duration::from_millis(300));
        let turns = server.metric("fawn_loop_iterations_total") - before;
        // The scrape itself counts as one.
        (turns <= 2).then_some(())
    });
}

#[test]
fn silent_connections_do_not_shut_others_out_for_good() {
    let server = Server::start(&[]);
    let mut silent: Vec<_> = (0..40).map(|_| connect(server.admin)).collect();
    // Connections without a request head are closed after the time-out, which frees their permits.
    assert_eq!(http(server.admin, "GET", "/healthz").0, 200);
    let mut byte = [0];
    assert!(silent[0].read(&mut byte).is_ok_and(|got| got == 0) || byte[0] == b'H');
}
