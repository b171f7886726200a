//! Harness of one store: a shard on a simulated disk.
pub(crate) use crate::test_harness::{Restarts, START, TestHarness, resp};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{ClientService, Placement, ServerInfo, Shard, ShardGroup, ShardOptions};
use fawn_types::{Durability, HashSecret};
use std::collections::HashMap;

pub(crate) type ShardHarness = TestHarness<ShardGroup<SimDevice>, ShardOptions>;

pub(crate) fn engine_options(durability: Durability, memory_bytes: u64) -> Options {
    Options {
        segment_bytes: 1 << 20,
        memory_bytes,
        durability,
        value_bytes_max: 200 << 10,
        secret: Some(HashSecret([7; 16])),
        ..Options::default()
    }
}

pub(crate) fn shard_options(durability: Durability) -> ShardOptions {
    ShardOptions { durability, value_bytes_max: 200 << 10, ..ShardOptions::default() }
}

impl ShardHarness {
    pub(crate) fn new() -> Self {
        Self::with(SimOptions::instant(1), shard_options(Durability::Sync))
    }

    pub(crate) fn with(sim: SimOptions, options: ShardOptions) -> Self {
        Self::on(vec![SimDisk::new(sim)], options, 8 << 20)
    }

    fn on(disks: Vec<SimDisk>, options: ShardOptions, memory_bytes: u64) -> Self {
        let host = open(&disks[0], options, memory_bytes);
        let clients = HashMap::new();
        Self { disks, host, now: START, clients, reads_replies: true, options, memory_bytes, turn_ms: 0 }
    }
}

impl Restarts for ShardHarness {
    fn crash(self, seed: u64) -> Self {
        let Self { disks, host, options, memory_bytes, .. } = self;
        drop(host);
        disks[0].crash(seed);
        Self::on(disks, options, memory_bytes)
    }

    fn reopen(self) -> Self {
        let Self { disks, host, options, memory_bytes, .. } = self;
        host.into_engines().into_iter().for_each(|engine| drop(engine.close().unwrap()));
        Self::on(disks, options, memory_bytes)
    }

    fn run_out(&mut self) {
        self.settle();
    }

    fn check_empty(&self) {
        let status = self.host.status();
        let replies = status.replies;
        let left = (replies.held_bytes, replies.reserved_bytes, replies.waiting, status.pending);
        assert_eq!(left, (0, 0, 0, 0), "the budget is free again, and no request waits");
    }
}

fn open(disk: &SimDisk, options: ShardOptions, memory_bytes: u64) -> ShardGroup<SimDevice> {
    let device = SimDevice::attach(disk);
    let (engine, _) = Engine::open(device, engine_options(options.durability, memory_bytes), START).unwrap();
    let facts = ServerInfo { started_at_ms: START.wall.0, ..ServerInfo::default() };
    ShardGroup::alone(Shard::new(engine, Placement::ALONE, options, facts).unwrap())
}
