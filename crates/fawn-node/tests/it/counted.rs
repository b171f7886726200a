//! Counted work: allocations per request, submissions per iteration. Unlike timings, counts do not drift.
use crate::harness::{Restarts, ShardHarness, resp, shard_options};
use fawn_flash::SimOptions;
use fawn_flash::sim::OpKind;
use fawn_node::ClientService;
use fawn_types::Durability;
use fawn_wire::Protocol;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count of allocations per thread.
struct NodeTestAllocator;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on unchanged; counting touches no memory of the allocator.
#[expect(unsafe_code, reason = "an allocator that counts can only be had this way, in the test binary alone")]
unsafe impl GlobalAlloc for NodeTestAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: NodeTestAllocator = NodeTestAllocator;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Passes `input` to the host at once and reads the output, without the harness's own buffers.
fn serve(harness: &mut ShardHarness, id: fawn_node::SessionId, input: &[u8]) {
    assert_eq!(harness.host.handle_input(harness.now, id, input), input.len());
    // A request takes no more iterations than its commit.
    for _ in 0..20 {
        harness.host.server_mut().run_once_blocking(harness.now);
        if harness.host.is_idle() {
            break;
        }
    }
    let bytes = harness.host.output(id).len();
    harness.host.wrote(id, bytes);
    while harness.host.poll_output().is_some() {}
}

#[test]
fn a_cached_get_allocates_nothing() {
    for (protocol, get) in [(Protocol::Resp, resp("GET k")), (Protocol::Memcached, b"gets k\r\n".to_vec())] {
        let mut harness = ShardHarness::new();
        let redis = harness.connect(Protocol::Resp);
        assert_eq!(harness.redis(redis, &format!("SET k {}", "v".repeat(300))), "+OK");
        let mut harness = harness.reopen();
        let id = harness.connect(protocol);
        let pipeline = get.repeat(32);
        (0..8).for_each(|_| serve(&mut harness, id, &pipeline));
        let count = allocations(|| (0..100).for_each(|_| serve(&mut harness, id, &pipeline)));
        assert_eq!(count, 0, "{protocol:?}: allocations in 3,200 cached reads");
    }
}

#[test]
fn cached_gets_of_many_connections_together_allocate_nothing() {
    let mut harness = ShardHarness::new();
    let redis = harness.connect(Protocol::Resp);
    assert_eq!(harness.redis(redis, &format!("SET k {}", "v".repeat(300))), "+OK");
    let ids: Vec<_> = (0..40).map(|_| harness.connect(Protocol::Resp)).collect();
    let get = resp("GET k");
    let inputs: Vec<(fawn_node::SessionId, &[u8])> = ids.iter().map(|id| (*id, &get[..])).collect();
    let mut used = vec![0; inputs.len()];
    let mut round = || {
        harness.host.handle_inputs(harness.now, &inputs, &mut used);
        assert!(used.iter().all(|used| *used == get.len()));
        harness.host.run_once(harness.now);
        for id in &ids {
            let bytes = harness.host.output(*id).len();
            assert!(bytes > 300, "the requests are answered in the same iteration");
            harness.host.wrote(*id, bytes);
        }
        while harness.host.poll_output().is_some() {}
    };
    (0..8).for_each(|_| round());
    assert_eq!(allocations(|| (0..100).for_each(|_| round())), 0, "allocations in 4,000 cached reads");
}

#[test]
fn pipelined_sets_of_the_node_allocate_nothing_each() {
    let mut harness = ShardHarness::with(SimOptions::instant(1), shard_options(Durability::Memory));
    let id = harness.connect(Protocol::Resp);
    // The same keys again, so the index does not grow.
    let pipeline: Vec<u8> = (0..100).flat_map(|i| resp(&format!("SET key:{i} value"))).collect();
    (0..20).for_each(|_| serve(&mut harness, id, &pipeline));
    let count = allocations(|| (0..10).for_each(|_| serve(&mut harness, id, &pipeline)));
    // The simulated device and the log's frames allocate once per iteration, but no write may allocate.
    assert!(count < 10 * 50, "{count} allocations in 1,000 writes of 10 iterations");
}

#[test]
fn a_turn_of_many_writers_is_one_write() {
    let mut harness = ShardHarness::new();
    let ids: Vec<_> = (0..20).map(|_| harness.connect(Protocol::Resp)).collect();
    harness.settle();
    let before = harness.disks[0].counted(OpKind::Write);
    for (i, id) in ids.iter().enumerate() {
        harness.send(*id, &[resp(&format!("SET a:{i} 1")), resp(&format!("INCR b:{i}"))].concat());
    }
    assert_eq!(harness.disks[0].counted(OpKind::Write), before, "no write is submitted outside of an iteration");
    harness.run_once();
    assert_eq!(harness.disks[0].counted(OpKind::Write) - before, 1, "one write for forty updates");
    harness.settle();
    assert!(ids.iter().all(|id| harness.clients[id].received == b"+OK\r\n:1\r\n"));
}
