//! Large requests: who is admitted when, with how much memory, and who is dropped for being slow.
use super::*;
use crate::server::conn::ConnPhase;
use crate::server::limits::READ_BYTES;

const LARGE: usize = 300 << 10;
const BEGUN: usize = 20 << 10;

/// A bound that one large request nearly uses up.
fn rig() -> Rig {
    Rig::new(LARGE + 2 * READ_BYTES)
}

/// A client that has begun a large request, and either is admitted or waits.
fn begin(rig: &mut Rig) -> (TcpStream, usize) {
    let (mut client, slot) = rig.connect();
    rig.send(&mut client, &part(LARGE, 1000));
    client.write_all(&rest(BEGUN, 1000)).expect("the kernel takes it");
    rig.until("its admission", |event_loop| {
        let flags = event_loop.conns[slot].flags;
        flags.admitted || flags.awaits_admission
    });
    rig.settle();
    (client, slot)
}

/// Whether each connection is admitted, or waits for that.
fn states(rig: &mut Rig, slots: &[usize]) -> Vec<(bool, bool)> {
    slots.iter().map(|&slot| rig.conn(slot).flags).map(|flags| (flags.admitted, flags.awaits_admission)).collect()
}

fn check_after_a_period(rig: &mut Rig) {
    rig.event_loop.instant = rig.event_loop.admission.check_at.expect("others wait");
    rig.event_loop.drop_slow_senders();
}

#[test]
fn the_end_of_a_connection_admits_the_next_at_once() {
    let mut rig = rig();
    let ((first, first_slot), (_second, second_slot)) = (begin(&mut rig), begin(&mut rig));
    assert_eq!(states(&mut rig, &[first_slot, second_slot]), [(true, false), (false, true)]);
    drop(first);
    rig.until("its end", |event_loop| !event_loop.conns.contains(first_slot));
    assert_eq!(states(&mut rig, &[second_slot]), [(true, false)]);
}

/// Both requests exceed the budget, so the second one is admitted only when no other is.
#[test]
fn a_connection_that_ends_gives_its_admission_and_its_memory_back() {
    let mut rig = Rig::new(LARGE - READ_BYTES);
    let ((first, first_slot), (second, second_slot)) = (begin(&mut rig), begin(&mut rig));
    assert_eq!(states(&mut rig, &[first_slot, second_slot]), [(true, false), (false, true)]);
    drop(first);
    rig.until("its end", |event_loop| !event_loop.conns.contains(first_slot));
    assert_eq!(states(&mut rig, &[second_slot]), [(true, false)]);
    drop(second);
    rig.until("its end", |event_loop| !event_loop.conns.contains(second_slot));
    assert_eq!(rig.held_bytes(), 0, "no connection is left");
}

/// The length of a request may become known piece by piece; memory for it is reserved as far as it is known.
#[test]
fn a_request_that_grows_gets_its_memory_at_once() {
    let mut rig = rig();
    let (mut client, slot) = begin(&mut rig);
    rig.service(slot).longer_by = LARGE;
    rig.send(&mut client, &rest(LARGE, BEGUN));
    rig.send(&mut client, &[b'.'; 100]);
    let held_bytes = rig.held_bytes();
    assert!((2 * LARGE..=2 * LARGE + READ_BYTES).contains(&held_bytes), "{held_bytes}");
    rig.send(&mut client, &rest(2 * LARGE, LARGE + 100));
    assert_eq!((rig.service(slot).executed, rig.held_bytes()), (1, 0));
}

#[test]
fn an_ending_connection_takes_no_place() {
    let mut rig = rig();
    let (mut first, first_slot) = begin(&mut rig);
    let ((_second, second_slot), (_third, third_slot)) = (begin(&mut rig), begin(&mut rig));
    // It ends, with replies that its client does not take.
    let session = rig.conn(second_slot).session;
    rig.event_loop.shard.reply(session, &vec![b'+'; 16 << 20]);
    rig.event_loop.shard.effects.push_back(ShardOutput::Close(session));
    rig.settle();
    assert_eq!(rig.conn(second_slot).phase, ConnPhase::Ending);
    rig.send(&mut first, &rest(LARGE, BEGUN));
    assert_eq!(states(&mut rig, &[first_slot, third_slot]), [(false, false), (true, false)]);
    assert!(!rig.conn(second_slot).flags.admitted);
}

/// Its buffer, grown for the large request, would otherwise stay in the way of the next one.
#[test]
fn a_finished_request_gives_its_memory_to_the_next() {
    let mut rig = rig();
    let (mut first, first_slot) = begin(&mut rig);
    let (_second, second_slot) = begin(&mut rig);
    // With the start of a short request behind the large one, the buffer stays in use.
    let end = [rest(LARGE, BEGUN), part(100, 50)].concat();
    rig.send(&mut first, &end);
    assert_eq!(states(&mut rig, &[first_slot, second_slot]), [(false, false), (true, false)]);
    let held_bytes = rig.held_bytes();
    assert!(held_bytes <= LARGE + READ_BYTES + (1 << 10), "{held_bytes} bytes for one large request");
}

#[test]
fn a_connection_that_leaves_is_counted_no_more() {
    let mut rig = rig();
    let ((_first, _), (second, second_slot)) = (begin(&mut rig), begin(&mut rig));
    assert_eq!(rig.event_loop.admission.queue.len(), 1);
    drop(second);
    // A waiting connection is not read, so the end shows when its reply is written.
    let session = rig.conn(second_slot).session;
    rig.event_loop.drop_conn(second_slot);
    assert!(!rig.event_loop.slots.contains_key(&session));
    assert_eq!(rig.event_loop.admission.queue.len(), 0);
}

/// Input that waits for the service is not the client's delay.
#[test]
fn a_paused_client_is_not_slow() {
    let mut rig = rig();
    let (mut first, first_slot) = begin(&mut rig);
    let (_second, second_slot) = begin(&mut rig);
    rig.service(first_slot).refuses_input = true;
    rig.send(&mut first, &[b'.'; 1000]);
    let flags = rig.conn(first_slot).flags;
    assert!(flags.admitted && flags.paused, "{flags:?}");
    (0..3).for_each(|_| check_after_a_period(&mut rig));
    assert_eq!(rig.event_loop.counters.dropped, 0);
    // The same client, no longer paused, is.
    rig.conn(first_slot).flags.paused = false;
    check_after_a_period(&mut rig);
    assert_eq!(rig.event_loop.counters.dropped, 1);
    assert_eq!(states(&mut rig, &[second_slot]), [(true, false)]);
}

#[test]
fn a_newly_admitted_client_has_a_whole_period() {
    let mut rig = rig();
    let (mut first, first_slot) = begin(&mut rig);
    let ((_second, second_slot), (_third, third_slot)) = (begin(&mut rig), begin(&mut rig));
    check_after_a_period(&mut rig);
    assert_eq!(rig.event_loop.counters.dropped, 0, "a period in which the request began");
    rig.send(&mut first, &rest(LARGE, BEGUN));
    assert_eq!(states(&mut rig, &[first_slot, second_slot, third_slot])[1..], [(true, false), (false, true)]);
    // The end of the period in which it was admitted, then of its first one.
    check_after_a_period(&mut rig);
    assert_eq!(rig.event_loop.counters.dropped, 0);
    check_after_a_period(&mut rig);
    assert_eq!((rig.event_loop.counters.dropped, rig.event_loop.conns.contains(second_slot)), (1, false));
    assert_eq!(states(&mut rig, &[third_slot]), [(true, false)]);
}

/// A stopping server ends a connection also if the rest of its input would have to wait for admission.
#[test]
fn a_stopping_server_ends_who_would_wait() {
    let mut rig = rig();
    // The admitted connection stays for a while: its client takes no replies.
    let (_first, first_slot) = begin(&mut rig);
    let first_session = rig.conn(first_slot).session;
    rig.event_loop.shard.reply(first_session, &vec![b'+'; 16 << 20]);
    rig.settle();
    let (mut paused, paused_slot) = rig.connect();
    rig.service(paused_slot).refuses_input = true;
    rig.send(&mut paused, &[part(100, 100), part(LARGE, BEGUN)].concat());
    assert!(rig.conn(paused_slot).flags.paused);
    rig.event_loop.stop();
    assert_eq!(rig.conn(paused_slot).phase, ConnPhase::Open, "its requests are answered first");
    rig.service(paused_slot).refuses_input = false;
    let session = rig.conn(paused_slot).session;
    rig.event_loop.shard.effects.push_back(ShardOutput::Resume(session));
    rig.settle();
    let mut replies = Vec::new();
    paused.read_to_end(&mut replies).expect("it is closed gracefully");
    assert_eq!((&replies[..], rig.event_loop.conns.contains(first_slot)), (&b"+"[..], true));
}
