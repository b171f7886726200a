//! Batched input of several connections: the replies are the same as one connection at a time.
use crate::harness::{ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_node::ClientService;
use fawn_node::SessionId;
use fawn_types::Durability;
use fawn_wire::Protocol;

/// Connections per round: more than one batch contains.
const CONNECTIONS: usize = 40;

/// The input of a connection in two rounds.
fn inputs(number: usize) -> (Protocol, [Vec<u8>; 2]) {
    let key = number % 7;
    let cut = |bytes: Vec<u8>, at: usize| [bytes[..at].to_vec(), bytes[at..].to_vec()];
    let resp = |lines: &[String]| -> Vec<u8> { lines.iter().flat_map(|line| resp(line)).collect() };
    let own = format!("key:{key}");
    let [set, get, incr] = [format!("SET {own} {number}"), format!("GET {own}"), format!("INCR {own}")];
    match number % 8 {
        0 => (Protocol::Resp, [resp(std::slice::from_ref(&set)), resp(std::slice::from_ref(&get))]),
        1 => (Protocol::Resp, [resp(&["HELLO 3".into(), "GET none".into()]), resp(&["GET none".into(), get])]),
        2 => (Protocol::Resp, [resp(&vec![get; 40]), resp(&[set, incr])]),
        3 => (Protocol::Resp, cut(resp(&[set, get, incr]), 50)),
        4 => (
            Protocol::Memcached,
            [format!("get {own} other\r\nset {own} 3 0 2\r\nab\r\n").into(), b"bogus\r\n".to_vec()],
        ),
        5 => (Protocol::Memcached, cut(format!("set {own} 0 0 5\r\nhello\r\nget {own}\r\n").into(), 20)),
        6 => (Protocol::Resp, [resp(&[get.clone(), "FOO".into(), get.clone(), "DBSIZE".into(), incr]), resp(&[get])]),
        _ => (Protocol::Resp, [resp(&[get.clone(), "QUIT".into(), get]), Vec::new()]),
    }
}

fn offer(harness: &mut ShardHarness, inputs: &[(SessionId, Vec<u8>)], together: bool) {
    let mut used = vec![0; inputs.len()];
    if together {
        let inputs: Vec<(SessionId, &[u8])> = inputs.iter().map(|(id, input)| (*id, &input[..])).collect();
        harness.host.handle_inputs(harness.now, &inputs, &mut used);
    } else {
        for (used, (id, input)) in used.iter_mut().zip(inputs) {
            *used = harness.host.handle_input(harness.now, *id, input);
        }
    }
    for (used, (id, input)) in used.iter().zip(inputs) {
        harness.clients.get_mut(id).unwrap().input = input[*used..].to_vec();
    }
}

/// The bytes that every connection has received at the end.
fn received(durability: Durability, together: bool) -> Vec<String> {
    let mut harness = ShardHarness::with(SimOptions::instant(1), shard_options(durability));
    let ids: Vec<SessionId> = (0..CONNECTIONS).map(|number| harness.connect(inputs(number).0)).collect();
    for round in 0..2 {
        let more = ids.iter().enumerate().map(|(number, id)| {
            let mut input = std::mem::take(&mut harness.clients.get_mut(id).unwrap().input);
            input.extend_from_slice(&inputs(number).1[round]);
            (*id, input)
        });
        let inputs: Vec<_> = more.collect();
        offer(&mut harness, &inputs, together);
        // Incomplete requests remain, so the harness never settles. Twenty iterations suffice for all others.
        (0..20).for_each(|_| harness.run_once());
        assert!(harness.host.is_idle());
    }
    ids.iter().map(|id| String::from_utf8_lossy(&harness.clients[id].received).into_owned()).collect()
}

#[test]
fn together_is_as_one_by_one() {
    for durability in [Durability::Memory, Durability::Sync] {
        let (together, apart) = (received(durability, true), received(durability, false));
        assert!(apart.iter().all(|received| !received.is_empty()));
        for (number, (together, apart)) in together.iter().zip(&apart).enumerate() {
            assert_eq!(together, apart, "connection {number}, {durability:?}");
        }
    }
}
