//! Reading, writing and ending connections, and the times at which an idle loop wakes.
use super::*;
use crate::server::conn::ConnPhase;
use crate::server::limits::READ_BYTES;

/// Fills a client's socket: it takes nothing until it reads.
fn block(rig: &mut Rig, slot: usize, bytes: usize) {
    let session = rig.conn(slot).session;
    rig.event_loop.shard.reply(session, &vec![b'+'; bytes]);
    rig.settle();
    assert!(rig.conn(slot).flags.blocked);
}

/// Takes some of the replies, so that the server can write again.
fn take(rig: &mut Rig, client: &mut TcpStream, bytes: usize) {
    let (mut buf, mut taken, start) = (vec![0; 1 << 16], 0, Instant::now());
    client.set_nonblocking(true).expect("set");
    while taken < bytes {
        taken += client.read(&mut buf).unwrap_or(0);
        rig.step();
        assert!(start.elapsed() < PATIENCE, "{taken} bytes were sent");
    }
    rig.settle();
}

fn expire_next(rig: &mut Rig) {
    rig.event_loop.instant = rig.event_loop.watch.next_due().expect("a deadline");
    rig.event_loop.expire();
}

#[test]
fn a_large_request_is_not_parsed_at_every_read() {
    let mut rig = Rig::new(4 << 20);
    let (mut client, slot) = rig.connect();
    let before = rig.event_loop.shard.calls;
    rig.send(&mut client, &part(1 << 20, 1 << 20));
    assert_eq!(rig.service(slot).executed, 1);
    let calls = rig.event_loop.shard.calls - before;
    assert!(calls <= 3, "parsed {calls} times");
}

/// Requests that were read before the stop are executed, later ones are not.
#[test]
fn a_stopping_server_executes_what_it_has_read() {
    let mut rig = Rig::new(1 << 20);
    let (mut client, slot) = rig.connect();
    rig.service(slot).refuses_input = true;
    rig.send(&mut client, &part(100, 100));
    rig.event_loop.stop();
    rig.send_unread(&mut client, &part(100, 100));
    rig.service(slot).refuses_input = false;
    let session = rig.conn(slot).session;
    rig.event_loop.shard.effects.push_back(ShardOutput::Resume(session));
    rig.settle();
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).expect("it is closed gracefully");
    assert_eq!(replies, b"+");
}

#[test]
fn a_reader_that_takes_some_replies_is_not_dropped() {
    let mut rig = Rig::new(1 << 20);
    let (mut client, slot) = rig.connect();
    block(&mut rig, slot, 32 << 20);
    for _ in 0..3 {
        take(&mut rig, &mut client, 4 << 20);
        assert!(rig.conn(slot).flags.blocked, "there is more");
        expire_next(&mut rig);
        assert!(rig.event_loop.conns.contains(slot));
    }
    expire_next(&mut rig);
    assert!(!rig.event_loop.conns.contains(slot), "it took nothing for a whole period");
}

/// Unread input would turn the end of the connection into a reset, which may take the last reply with it.
#[test]
fn input_behind_the_last_reply_is_read_away() {
    let mut rig = Rig::new(1 << 20);
    let (mut client, slot) = rig.connect();
    rig.service(slot).refuses_input = true;
    client.write_all(&[b'.'; READ_BYTES + 30_000]).expect("the kernel takes it");
    rig.until("a full read", |event_loop| event_loop.counters.input_bytes == READ_BYTES as u64);
    let session = rig.conn(slot).session;
    rig.event_loop.shard.reply(session, b"error");
    rig.event_loop.shard.effects.push_back(ShardOutput::Close(session));
    rig.until("the end of its replies", |event_loop| event_loop.conns[slot].phase == ConnPhase::Lingering);
    rig.settle();
    expire_next(&mut rig);
    assert!(!rig.event_loop.conns.contains(slot));
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).expect("not reset");
    assert_eq!(replies, b"error");
}

#[test]
fn a_half_closed_connection_ends_with_its_last_reply() {
    let mut rig = Rig::new(1 << 20);
    let (mut client, slot) = rig.connect();
    client.write_all(&part(100, 100)).expect("the kernel takes it");
    client.shutdown(std::net::Shutdown::Write).expect("half closed");
    rig.until("the end of its input", |event_loop| event_loop.conns.get(slot).is_none_or(|conn| conn.flags.eof));
    rig.settle();
    assert!(!rig.event_loop.conns.contains(slot), "its place is free without a delay");
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).expect("it is closed gracefully");
    assert_eq!(replies, b"+");
}

/// A connection may end while it is queued for a read; the next one takes its slot and queues the slot again.
#[test]
fn a_reused_slot_is_read_once_before_its_input_is_executed() {
    let mut rig = Rig::new(1 << 20);
    let (_ended, slot) = rig.connect();
    rig.event_loop.schedule_read(slot);
    rig.event_loop.drop_conn(slot);
    // A value that fills the first read; its content looks like requests.
    let mut request = part(READ_BYTES + 8_000, 8);
    request.extend(part(8, 8).repeat(READ_BYTES / 8 + 999));
    let mut client = TcpStream::connect(rig.address).expect("it listens");
    client.write_all(&request).expect("the kernel takes it");
    let read = rig.event_loop.counters.input_bytes + request.len() as u64;
    rig.until("the request", |event_loop| event_loop.counters.input_bytes >= read);
    rig.settle();
    assert!(rig.event_loop.conns.contains(slot), "the new connection has the old one's slot");
    assert_eq!(rig.service(slot).executed, 1);
    assert_eq!(rig.held_bytes(), 0);
}

/// Reply budget that a connection gives back with its end may let another session go on.
#[test]
fn the_end_of_a_connection_lets_others_continue_at_once() {
    let mut rig = Rig::new(1 << 20);
    let (_client, slot) = rig.connect();
    rig.event_loop.shard.frees_on_close = true;
    rig.event_loop.drop_conn(slot);
    assert!(rig.event_loop.needs_another_iteration);
    rig.settle();
}

#[test]
fn an_idle_loop_wakes_for_the_store() {
    let mut rig = Rig::new(1 << 20);
    rig.step_without_events();
    assert_eq!(rig.due, None);
    rig.event_loop.shard.store_due = Some(clock::now().mono.plus_ms(500));
    rig.step_without_events();
    let due = rig.due.expect("the store is due") - rig.event_loop.instant;
    assert!(due <= Duration::from_millis(500), "{due:?}");
}

/// Without its controller, a shard could never be stopped.
#[test]
fn a_shard_ends_with_its_controller() {
    let mut rig = Rig::new(1 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (controller, control) = mpsc::channel(1);
    drop(controller);
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, rig.event_loop.run(control)).await });
    assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
}
