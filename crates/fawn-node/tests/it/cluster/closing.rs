//! Clean shutdowns: a mark is true on every disk image, and no possible loss is reported without reason.
use super::commands::{Answer, set};
use super::disks::is_serving;
use super::world::{BACK_ENDS, TestWorld};
use fawn_chain::map::decode_state;
use fawn_flash::SimDisk;
use fawn_flash::sim::{Capture, Loss};
use fawn_types::{Durability, RangeId};

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

/// After a loss of power all nodes shut down cleanly, at each moment of the handshake in turn. The shutdown loses
/// nothing, and a map with the new epoch no longer shows the earlier loss.
#[test]
fn a_stop_at_any_moment_of_the_handshake_hides_no_possible_loss() {
    for steps in 0..1_000 {
        let mut world = TestWorld::with(220, Durability::Memory, 8 << 20);
        world.put(b"served", b"from here on");
        world.run(100);
        assert!(is_serving(&world));
        (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
        world.run(steps);
        let ranges = world.manager_map().ranges.len() as u64;
        let (has_ended, reported) = (is_serving(&world), world.status(1).possible_losses);
        (1..=BACK_ENDS).for_each(|node| world.close(node));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
        world.run(100);
        assert!(is_serving(&world), "stopped after {steps} ms: {:#?}", world.statuses());
        let reported = reported + world.status(1).possible_losses;
        assert!(reported >= ranges, "stopped after {steps} ms: {reported} losses of {ranges} ranges are reported");
        if has_ended {
            assert_eq!(reported, ranges, "a loss is reported once");
            return;
        }
    }
    panic!("the handshake did not end");
}
