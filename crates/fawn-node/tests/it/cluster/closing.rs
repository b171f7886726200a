//! Clean shutdowns: a mark is true on every disk image, and no possible loss is reported without reason.
use super::commands::{Answer, set};
use super::disks::is_serving;
use super::world::{BACK_ENDS, TestWorld};
use fawn_chain::map::decode_state;
use fawn_flash::SimDisk;
use fawn_flash::sim::{Capture, Loss};
use fawn_types::{Durability, RangeId};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The number of members marked as cleanly shut down, and the number whose logs do not end at their marks.
fn marks(world: &TestWorld, disk: &SimDisk) -> (usize, usize) {
    let engine = world.open(disk);
    let (mut marked, mut untrue) = (0, 0);
    for key in engine.blob_keys().collect::<Vec<_>>() {
        let Ok(state) = decode_state(engine.blob(key).unwrap_or_default()) else { continue };
        let Some(closed) = state.closed else { continue };
        marked += 1;
        let range = RangeId(key & !(1 << 31));
        untrue += usize::from(engine.progress(range).appended != closed.last);
    }
    (marked, untrue)
}

/// Power fails after each operation of a clean shutdown in turn: a mark is on disk only with everything that it
/// certifies.
#[test]
fn a_mark_that_a_loss_of_power_leaves_says_the_truth() {
    for seed in 200..206_u64 {
        let mut world = TestWorld::with(seed, Durability::EverySecond, 8 << 20);
        world.put(b"served", b"from here on");
        for i in 0..40_u32 {
            let _ = world.submit(&set(format!("k{i}").as_bytes(), &[7; 300])).unwrap();
        }
        world.run(20); // Most writes are not synced, acknowledged or not.
        let disk = world.disks[&2].clone();
        disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
        world.close(2);
        disk.capture(Capture::Never);
        let images = disk.take_images();
        let found: Vec<_> = images.iter().map(|image| marks(&world, &image.disk)).collect();
        assert!(found.iter().all(|(_, untrue)| *untrue == 0), "seed {seed}: (marks, untrue ones) {found:?}");
        assert!(
            found.iter().any(|(marked, _)| *marked == 0),
            "seed {seed}: no image was taken before the marks: {found:?}"
        );
        let members = world.open(&disk).ranges().count();
        assert_eq!(marks(&world, &disk).0, members, "seed {seed}: one mark per member");
    }
}

/// All nodes shut down cleanly several times, also shortly after their start: nothing is lost, and no loss is reported.
#[test]
fn an_orderly_stop_of_all_loses_nothing_and_says_nothing() {
    for (seed, durability) in [(210, Durability::EverySecond), (211, Durability::Memory), (212, Durability::Sync)] {
        let mut world = TestWorld::with(seed, durability, 8 << 20);
        for round in 0..12_u64 {
            world.put(format!("k{round}").as_bytes(), b"acked");
            for brief in 0..3 {
                (1..=BACK_ENDS).for_each(|node| world.close(node));
                (1..=BACK_ENDS).for_each(|node| world.start(node));
                let steps = [0, 3 * round as usize, 40][brief];
                world.run(steps);
            }
            let absent = (0..=round).find(|k| world.get(format!("k{k}").as_bytes()) == Answer::Absent);
            assert_eq!(absent, None, "seed {seed}, {durability:?}, round {round}");
            assert_eq!(world.status(1).possible_losses, 0, "seed {seed}, {durability:?}, round {round}");
        }
        assert_eq!(world.assert_equal_copies(), 12);
    }
}

/// The ranges of which possible losses were logged.
#[derive(Clone, Default)]
struct LossLog(Arc<Mutex<Vec<String>>>);

impl LossLog {
    /// Takes the ranges that `manager_losses` reports of one process are about, each of which it may report once.
    fn take(&self, manager_losses: u64) -> BTreeSet<String> {
        let logged = std::mem::take(&mut *self.0.lock().unwrap());
        let ranges: BTreeSet<_> = logged.iter().cloned().collect();
        assert_eq!((logged.len(), manager_losses as usize), (ranges.len(), ranges.len()), "{logged:?}");
        ranges
    }
}

impl Subscriber for LossLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.target() == "fawn_node::cluster::manager"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for LossLog {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "range" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

/// After a loss of power all nodes shut down cleanly, at each moment of the handshake in turn. The shutdown loses
/// nothing, and a map with the new epoch no longer shows the earlier loss.
#[test]
fn a_stop_at_any_moment_of_the_handshake_hides_no_possible_loss() {
    let log = LossLog::default();
    tracing::subscriber::with_default(log.clone(), || {
        let has_ended = (0..1_000).any(|steps| is_loss_reported_before(steps, &log));
        assert!(has_ended, "the handshake did not end");
    });
}

/// Stops all nodes so many milliseconds after their start. Each range is reported once by some process. Returns
/// whether the handshake had ended, so that the first process reported all of them.
fn is_loss_reported_before(steps: usize, log: &LossLog) -> bool {
    let mut world = TestWorld::with(220, Durability::Memory, 8 << 20);
    world.put(b"served", b"from here on");
    world.run(100);
    assert!(is_serving(&world));
    assert!(log.take(world.status(1).possible_losses).is_empty());
    (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.run(steps);
    let ranges: BTreeSet<_> = world.manager_map().ranges.iter().map(|entry| format!("{:?}", entry.range)).collect();
    let (has_ended, by_first) = (is_serving(&world), log.take(world.status(1).possible_losses));
    (1..=BACK_ENDS).for_each(|node| world.close(node));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.run(100);
    assert!(is_serving(&world), "stopped after {steps} ms: {:#?}", world.statuses());
    let by_second = log.take(world.status(1).possible_losses);
    let reported: BTreeSet<_> = by_first.union(&by_second).cloned().collect();
    assert_eq!(reported, ranges, "stopped after {steps} ms: {by_first:?}, then {by_second:?}");
    assert!(!has_ended || by_second.is_empty(), "a loss is reported once: {by_second:?}");
    has_ended
}
