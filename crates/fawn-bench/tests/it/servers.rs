//! Tests of the server level's client and of starting servers; peers are tested where installed.
use fawn_bench::BenchError;
use fawn_bench::client::{self, BenchConnection, ClientProtocol, RequestLoop, key_of};
use fawn_bench::server::{ServerWorkload, redis_benchmark};
use fawn_bench::sut::{PeerDurability, ServerUnderTest};

const KEYS: u64 = 700;
const VALUE_BYTES: usize = 100;

fn unverified(outcome: Result<(), BenchError>) -> String {
    match outcome {
        Err(error @ BenchError::Unverified(_)) => error.to_string(),
        other => panic!("expected a failed verification, found {other:?}"),
    }
}

fn check(server: &ServerUnderTest, protocol: ClientProtocol) -> Result<(), BenchError> {
    let mut connection = BenchConnection::open(server.port, protocol)?;
    client::load(&mut connection, KEYS, VALUE_BYTES)?;
    client::verify(&mut connection, KEYS, VALUE_BYTES)?;
    for (writes, pipeline) in [(false, 1), (false, 32), (true, 8)] {
        let ask =
            RequestLoop { clients: 3, pipeline, requests: 300, keys: KEYS, value_bytes: VALUE_BYTES, writes, seed: 1 };
        let row = client::measure(server.port, protocol, &ask)?;
        assert!(row.ops_per_s > 0.0 && row.p50_us.is_some(), "{row:?}");
    }
    client::verify(&mut connection, KEYS, VALUE_BYTES)?;
    assert!(server.cpu() > std::time::Duration::ZERO && server.resident_bytes_max() >= server.resident_bytes());
    // A wrong value and a missing key: each must be found.
    connection.queue_set(&key_of(333), &[b'x'; VALUE_BYTES]);
    connection.send()?;
    connection.answers(1, |_, _| Ok(()))?;
    let wrong = unverified(client::verify(&mut connection, KEYS, VALUE_BYTES));
    assert!(wrong.contains("key number 333: found another value"), "{wrong}");
    let mut connection = BenchConnection::open(server.port, protocol)?;
    client::load(&mut connection, KEYS, VALUE_BYTES)?;
    let missing = unverified(client::verify(&mut connection, KEYS + 1, VALUE_BYTES));
    assert!(missing.contains("key number 700: found nothing"), "{missing}");
    Ok(())
}

#[test]
fn redis_is_started_loaded_verified_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    match ServerUnderTest::redis(dir.path(), PeerDurability::EverySecond, 0) {
        Ok(server) => {
            check(&server, ClientProtocol::Resp).unwrap();
            let workload = ServerWorkload {
                test: "get",
                pipeline: 16,
                clients: 4,
                requests: 4000,
                keys: KEYS,
                value_bytes: VALUE_BYTES,
            };
            match redis_benchmark(&server, &workload) {
                Ok(row) => assert!(row.cpu_us_per_op.unwrap() > 0.0, "{row:?}"),
                Err(error @ BenchError::MissingPeer { .. }) => eprintln!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn memcached_is_started_loaded_verified_and_measured() {
    match ServerUnderTest::memcached(64, 0) {
        Ok(server) => check(&server, ClientProtocol::Memcached).unwrap(),
        Err(error) => eprintln!("skipped: {error}"),
    }
}
