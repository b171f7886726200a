//! Router tests: routes, retries with the same tag, bounded windows.
use fawn_chain::map::{Activation, ChainState};
use fawn_chain::{ClusterMap, Intent, NodeEntry, RingOptions, Router, RouterOptions, RouterOutput};
use fawn_types::{ClientTag, Durability, Epoch, HashSecret, NodeId, Now, RingKey, Version};

const SECRET: HashSecret = HashSecret([5; 16]);

fn active_map() -> ClusterMap {
    let node = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 1, domain: 0, address: String::new() };
    let options = RingOptions { replication: 3, virtual_ids: 1 };
    let mut map = ClusterMap::new(SECRET, Durability::Sync, options, (1..=3).map(node).collect());
    map.ranges.iter_mut().for_each(|entry| {
        entry.epoch = Epoch::new(1).unwrap();
        entry.state = ChainState::Active;
        entry.remember(Activation { epoch: entry.epoch, base: Version::ZERO });
    });
    map
}

fn drain(frontend: &mut Router) -> Vec<RouterOutput> {
    std::iter::from_fn(|| frontend.poll_output()).collect()
}

#[test]
fn writes_go_to_the_head_and_reads_to_the_tail() {
    let map = active_map();
    let mut frontend = Router::new(7, RouterOptions::default(), map.clone());
    let key = RingKey::of(&SECRET, b"a");
    let entry = map.range_of(&key).unwrap();
    let write = frontend.start(Now::at(0), key, Intent::Write).unwrap();
    let read = frontend.start(Now::at(0), key, Intent::Read).unwrap();
    let sent = drain(&mut frontend);
    let tag = ClientTag { session: 7, seq: write.0 };
    let (range, epoch) = (entry.range, entry.epoch);
    let to = entry.head().unwrap();
    assert_eq!(sent[0], RouterOutput::Send { op: write, to, range, epoch, tag, first_incomplete: 1 });
    assert!(matches!(sent[1], RouterOutput::Send { to, .. } if Some(to) == entry.tail()));
    assert!(frontend.handle_reply(write) && !frontend.handle_reply(write), "the second answer is a duplicate");
    assert_eq!(frontend.first_incomplete(range), read.0);
    assert!(frontend.handle_reply(read));
    assert_eq!(frontend.first_incomplete(range), read.0 + 1, "the next operation");
}

#[test]
fn only_an_unanswered_update_of_the_range_will_acknowledge() {
    let (map, keys) = (active_map(), keys(&active_map()));
    let mut frontend = Router::new(7, RouterOptions::default(), map.clone());
    let [range, other] = [0, 1].map(|at| map.ranges[at].range);
    frontend.start(Now::at(0), keys[0], Intent::Read).unwrap();
    assert!(!frontend.has_unanswered_update(range));
    let update = frontend.start(Now::at(0), keys[0], Intent::Write).unwrap();
    assert!(frontend.has_unanswered_update(range) && !frontend.has_unanswered_update(other));
    frontend.handle_reply(update);
    assert!(!frontend.has_unanswered_update(range), "answered before the read");
}

/// A refused operation had no effect: it is sent again sooner than one without a reply, and never later.
#[test]
fn a_refused_operation_is_sent_again_soon() {
    let mut frontend = Router::new(7, RouterOptions::default(), active_map());
    let op = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    let first = drain(&mut frontend);
    frontend.handle_refused(Now::at(10), op);
    assert!(drain(&mut frontend).is_empty(), "a head that refuses is not asked in a tight loop");
    frontend.handle_timeout(Now::at(35));
    assert_eq!(drain(&mut frontend), first);
    frontend.handle_refused(Now::at(230), op);
    assert_eq!(frontend.next_timeout(), Some(Now::at(235).mono));
}

#[test]
fn silence_is_retried_with_the_same_tag_then_given_up() {
    let mut frontend = Router::new(7, RouterOptions::default(), active_map());
    let op = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    let first = drain(&mut frontend);
    frontend.handle_timeout(Now::at(100));
    assert!(drain(&mut frontend).is_empty(), "not yet");
    frontend.handle_timeout(Now::at(200));
    assert_eq!(drain(&mut frontend), first);
    frontend.handle_timeout(Now::at(5_000));
    assert_eq!(drain(&mut frontend), [RouterOutput::Failed { op }]);
    assert_eq!(frontend.next_timeout(), None);
}

#[test]
fn a_newer_entry_sends_waiting_operations_again() {
    let map = active_map();
    let mut frontend = Router::new(7, RouterOptions::default(), map.clone());
    let op = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    drain(&mut frontend);
    let mut newer = map.range_of(&RingKey::MIN).unwrap().clone();
    newer.epoch = Epoch::new(2).unwrap();
    newer.members.remove(0);
    frontend.handle_refused(Now::at(1), op);
    frontend.handle_entry(Now::at(1), &newer);
    let again = drain(&mut frontend);
    assert!(
        matches!(again[..], [RouterOutput::Send { to, epoch, .. }] if Some(to) == newer.head() && epoch == newer.epoch)
    );
    frontend.handle_entry(Now::at(2), map.range_of(&RingKey::MIN).unwrap());
    assert!(drain(&mut frontend).is_empty(), "an older entry changes nothing");
}

#[test]
fn the_window_bounds_unanswered_operations() {
    let options = RouterOptions { window_ops_max: 3, ..RouterOptions::default() };
    let mut frontend = Router::new(7, options, active_map());
    let start = |frontend: &mut Router| frontend.start(Now::at(0), RingKey::MIN, Intent::Write);
    let first = start(&mut frontend).unwrap();
    let second = start(&mut frontend).unwrap();
    start(&mut frontend).unwrap();
    assert_eq!(start(&mut frontend), None);
    frontend.handle_reply(second);
    assert_eq!(start(&mut frontend), None, "the oldest operation blocks the window, which bounds completions");
    frontend.handle_reply(first);
    assert!(start(&mut frontend).is_some());
}

/// One key of each range of the map.
fn keys(map: &ClusterMap) -> Vec<RingKey> {
    map.ranges.iter().map(|entry| entry.keys.start).collect()
}

#[test]
fn a_silent_range_leaves_the_windows_of_the_others_alone() {
    let options = RouterOptions { window_ops_max: 3, ..RouterOptions::default() };
    let (map, keys) = (active_map(), keys(&active_map()));
    let mut frontend = Router::new(7, options, map.clone());
    let silent = frontend.start(Now::at(0), keys[0], Intent::Write).unwrap();
    for _ in 0..100 {
        let op = frontend.start(Now::at(0), keys[1], Intent::Write).expect("a range of its own");
        let sent = drain(&mut frontend);
        let first = |output: &RouterOutput| match output {
            RouterOutput::Send { first_incomplete, .. } => Some(*first_incomplete),
            _ => None,
        };
        assert_eq!(sent.last().and_then(first), Some(op.0), "all earlier operations of its range are answered");
        assert!(frontend.handle_reply(op));
    }
    assert_eq!(frontend.first_incomplete(map.range_of(&keys[0]).unwrap().range), silent.0);
}

#[test]
fn silent_ranges_leave_room_for_the_others() {
    let options = RouterOptions { window_ops_max: 100, pending_ops_max: 16, ..RouterOptions::default() };
    let keys = keys(&active_map());
    let mut frontend = Router::new(7, options, active_map());
    let mut fill = |key: RingKey| (0..100).map_while(|_| frontend.start(Now::at(0), key, Intent::Write)).count();
    assert_eq!((fill(keys[0]), fill(keys[1]), fill(keys[2])), (8, 4, 2), "each range gets half of the free operations");
    frontend.handle_timeout(Now::at(5_000));
    let room = (0..100).map_while(|_| frontend.start(Now::at(5_000), keys[2], Intent::Write)).count();
    assert_eq!(room, 8, "operations that timed out use no capacity");
}

#[test]
fn a_boundary_that_moves_takes_pending_operations_along() {
    let map = active_map();
    let mut frontend = Router::new(7, RouterOptions::default(), map.clone());
    let mut key = RingKey::MIN;
    key.0[19] = 1;
    let stays = frontend.start(Now::at(0), RingKey::MIN, Intent::Write).unwrap();
    let moves = frontend.start(Now::at(0), key, Intent::Write).unwrap();
    let (mut below, mut above) = (map.ranges[0].clone(), map.ranges[1].clone());
    (below.keys.end, above.keys.start) = (Some(key), key);
    for entry in [&mut below, &mut above] {
        entry.epoch = Epoch::new(2).unwrap();
        frontend.handle_entry(Now::at(1), entry);
    }
    assert_eq!(frontend.first_incomplete(below.range), stays.0);
    assert_eq!(frontend.first_incomplete(above.range), moves.0);
    assert!(frontend.handle_reply(moves) && frontend.handle_reply(stays));
}
