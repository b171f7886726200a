//! Admission of chain frames: a member accepts frames of its epoch, from the boot that the sender has in it.
//!
//! The frames are forged here; `scripts/former_*.txt` shows how such frames occur without forgery.
use crate::cluster::{Bug, TestCluster, TestMessage};
use fawn_chain::message::{Body, Header, decode_frame, encode_frame};
use fawn_types::{BootId, Durability, Epoch};

/// A chain of three in epoch 1 and the frame with its head's first record, whose header `forge` has changed.
fn append(forge: impl Fn(&mut Header)) -> (TestCluster, TestMessage) {
    let mut cluster = TestCluster::new(3, Durability::Sync, Bug::None);
    cluster.run(600);
    cluster.put(1).expect("the head accepts a write");
    cluster.turn(1, true);
    let is_append = |message: &TestMessage| matches!(decode_frame(&message.bytes).unwrap().body, Body::Append { .. });
    let at = cluster.net.iter().position(is_append).expect("the record is sent");
    let TestMessage { from, to, bytes } = cluster.net.remove(at);
    cluster.net.clear();
    let mut frame = decode_frame(&bytes).unwrap();
    forge(&mut frame.header);
    let mut forged = Vec::new();
    encode_frame(&frame, &mut forged);
    (cluster, TestMessage { from, to, bytes: forged })
}

/// Delivers the message. Returns whether the middle accepted the record, and whether it requested a newer entry.
fn taken((mut cluster, message): (TestCluster, TestMessage)) -> (bool, bool) {
    cluster.hand_over(&message);
    cluster.turn(2, true);
    let asked = |message: &TestMessage| {
        message.from == 2 && message.to == 1 && decode_frame(&message.bytes).unwrap().body == Body::EntryWanted
    };
    (!cluster.machines[&2].log.records.is_empty(), cluster.net.iter().any(asked))
}

#[test]
fn frames_of_this_epoch_and_boot_are_taken() {
    assert_eq!(taken(append(|_| {})), (true, false));
}

#[test]
fn frames_of_a_newer_epoch_are_not_taken_but_asked_about() {
    assert_eq!(taken(append(|header| header.epoch = Epoch::new(2).unwrap())), (false, true));
}

#[test]
fn frames_of_another_boot_are_not_taken_but_asked_about() {
    assert_eq!(taken(append(|header| header.boot = BootId(77))), (false, true));
}
