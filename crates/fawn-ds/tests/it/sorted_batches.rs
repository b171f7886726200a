//! Sorts of segments that are longer than what a sort may hold in memory: one run for each batch of records.
use crate::crash::{CrashImageCounts, cold_keys_in, run_workload, workload};
use crate::model;
use crate::sorted_tier::{sorted, swept};
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::index::IndexOptions;
use fawn_ds::internals::{Options, RecordLayout};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// Each segment of 64 KiB in five batches or so.
fn in_batches(durability: Durability) -> Options {
    Options { sort_bytes: 1, sort_batch_bytes: 15 << 10, ..sorted(durability) }
}

fn put(node: &mut TestNode, number: u64, value: Vec<u8>) {
    let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec();
    while node.append(&[TestWrite { key: key.clone(), value: Some(value.clone()), expires_at_ms: 0 }]).is_err() {
        node.turn();
        node.now = node.now.plus_ms(1);
    }
}

/// The server allows a budget of 16 MiB with segments of 64 MiB: here a quarter of both, with the bound of the simulator.
#[test]
fn a_segment_that_is_longer_than_the_budget_is_sorted_within_it() {
    const BUDGET: u64 = 4 << 20;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options {
        layout: RecordLayout::Auto,
        memory_bytes: BUDGET,
        segment_bytes: 16 << 20,
        checkpoint_log_bytes_min: u64::MAX,
        index: IndexOptions { entries_min: 64, ..IndexOptions::default() },
        ..small(Durability::Memory)
    };
    assert_eq!((options.sort_bytes, options.sort_batch_bytes), (0, 0), "by the budget");
    let mut node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
    let (mut number, mut most) = (0_u64, 0);
    while node.engine.stats().runs_listed < 3 {
        put(&mut node, number, vec![7; 100]);
        number += 1;
        if number.is_multiple_of(64) {
            node.turn();
            node.now = node.now.plus_ms(1);
            let memory = node.engine.memory();
            most = most.max(memory.total_bytes());
            assert!(most <= BUDGET * 11 / 8, "{number} keys, sorting: {}: {memory:?}", node.engine.is_sorting());
        }
        assert!(number < 1_000_000, "{:?}", node.engine);
    }
    // The index exceeds half of the budget when the sort begins.
    assert!(most >= BUDGET / 2, "{most} B, {:?}", node.engine.stats());
}

#[test]
fn a_segment_is_read_once_for_all_of_its_batches() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..in_batches(Durability::Memory) };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    let mut number = 0;
    while node.engine.runs() == 0 {
        if !node.engine.is_sorting() {
            put(&mut node, number, vec![7; 200]);
            number += 1;
        }
        node.turn();
        node.now = node.now.plus_ms(1);
        assert!(number < 10_000, "{:?}", node.engine);
    }
    let stats = node.engine.stats();
    assert_eq!(stats.runs_listed, 1, "they are listed together");
    assert!((4..=6).contains(&node.engine.runs()), "{:?}", node.engine);
    assert!(stats.cleaning_read_bytes <= 64 << 10, "{} B", stats.cleaning_read_bytes);
}

#[test]
fn every_image_around_batches_has_all_that_was_acked() {
    let mut classes = CrashImageCounts::default();
    for seed in 400..404 {
        // Half of them without checkpoints.
        let checkpoint_log_bytes_min = if seed % 2 == 0 { u64::MAX } else { 16 << 10 };
        let options = Options { checkpoint_log_bytes_min, ..in_batches(Durability::Sync) };
        classes.add(workload(seed, options.clone(), Loss::Power, 200, (true, false)));
        let mut run = cold_keys_in(seed, options);
        run.toggles_sorting = seed % 2 == 0;
        classes.add(run_workload(run, seed, Loss::Power, 200, (true, false)));
    }
    println!("{classes:?}");
    assert!(classes.images >= 1000 && classes.sorted >= 12, "{classes:?}");
}

#[test]
fn behaves_like_the_model_with_batches() {
    for seed in 600..615 {
        let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][seed as usize % 3];
        let run_bytes_max = swept(durability).run_bytes_max;
        let options = Options { run_bytes_max, sort_batch_bytes: 1 << (10 + seed % 5), ..in_batches(durability) };
        model::run(seed, options, 1500);
    }
}
