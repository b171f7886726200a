//! Every method of the embedded store, on a simulated device: results, conditions, expiry, limits, statistics.
use fawn_ds::sim::{SimDevice, SimDisk, SimOptions};
use fawn_ds::{Builder, Durability, Error, ManualClock, PutOptions, Store};
use std::time::{Duration, SystemTime};

pub(crate) fn builder(durability: Durability) -> Builder {
    Builder::new().segment_size(256 << 10).memory(8 << 20).durability(durability)
}

pub(crate) fn open(disk: &SimDisk, durability: Durability) -> Store {
    builder(durability).open_on(SimDevice::attach(disk)).unwrap()
}

fn fresh() -> Store {
    open(&SimDisk::new(SimOptions::default()), Durability::Sync)
}

pub(crate) fn sorted_keys(store: &Store) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = store.keys().map(|key| key.unwrap().into_vec()).collect();
    keys.sort();
    keys
}

#[test]
fn concurrent_writers_share_syncs_and_lose_nothing() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let disk = SimDisk::new(SimOptions::default());
        let store = open(&disk, durability);
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let store = store.clone();
                scope.spawn(move || {
                    for i in 0..100_usize {
                        let key = format!("{thread}-{i}");
                        store.put(&key, vec![thread as u8; i * 5]).unwrap();
                        assert_eq!(store.get(&key).unwrap().unwrap(), &vec![thread as u8; i * 5][..]);
                    }
                });
            }
        });
        assert_eq!(store.len().unwrap(), 800);
        store.close().unwrap();
        // Not `len`: it is an estimate until an opening has compared keys whose hashes begin the same.
        let mut keys = sorted_keys(&open(&disk, durability));
        keys.dedup();
        assert_eq!(keys.len(), 800);
    }
}

#[test]
fn conditions_hold_of_the_newest_value() {
    let store = fresh();
    let options = PutOptions::new();
    assert_eq!(store.put_with("k", "0", options.if_present()).unwrap(), None);
    let first = store.put_with("k", "1", options.if_absent()).unwrap().unwrap();
    assert_eq!(store.put_with("k", "2", options.if_absent()).unwrap(), None);
    let second = store.put_with("k", "2", options.if_version(first)).unwrap().unwrap();
    assert_eq!(store.put_with("k", "3", options.if_version(first)).unwrap(), None);
    assert!(second > first);
    let value = store.get("k").unwrap().unwrap();
    assert_eq!((&value, value.version(), value.expires_at()), (&value, second, None));
    assert_eq!(value, "2");
    assert!(!store.delete_if_version("k", first).unwrap());
    assert!(store.delete_if_version("k", second).unwrap());
    assert!(!store.delete("k").unwrap());
    assert!(!store.contains_key("k").unwrap());
    let third = store.put("k", "").unwrap();
    assert!(store.contains_key("k").unwrap());
    assert!(third > second);
    assert!(store.delete("k").unwrap());
}

#[test]
fn batches_are_made_together() {
    let store = fresh();
    store.put("k", "1").unwrap();
    let mut batch = store.batch();
    assert!(batch.is_empty());
    batch.delete("k").put("a", "x").put("b", "y").put("b", "z");
    assert_eq!(batch.len(), 4);
    let version = batch.commit().unwrap();
    assert_eq!(store.get("b").unwrap().map(|value| value.version()), version);
    assert_eq!(store.get("k").unwrap(), None);
    assert_eq!(store.get("b").unwrap().unwrap(), "z");
    assert_eq!(store.len().unwrap(), 2);
    assert_eq!(store.batch().commit().unwrap(), None);
    let mut batch = store.batch();
    batch.put("c", "1").put_with("d", "1", PutOptions::new().if_absent());
    assert!(matches!(batch.commit(), Err(Error::InvalidOption { name: "condition", .. })));
    let mut batch = store.batch();
    batch.put_with("d", "1", PutOptions::new().if_absent()).put("c", "1");
    assert!(matches!(batch.commit(), Err(Error::InvalidOption { name: "condition", .. })));
    assert!(!store.contains_key("c").unwrap());
    let mut batch = store.batch();
    for i in 0..40_u32 {
        batch.put(i.to_be_bytes(), vec![0; 4000]);
    }
    assert!(matches!(batch.commit(), Err(Error::TooLarge { limit_bytes, .. }) if limit_bytes == 128 << 10));
    assert_eq!(store.len().unwrap(), 2);
}

#[test]
fn many_gets_answer_as_single_ones_in_the_keys_order() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..100_usize {
        store.put(i.to_string(), vec![1; 300 + i]).unwrap();
    }
    store.close().unwrap();
    let store = open(&disk, Durability::Sync);
    // Cold, half of them absent, one asked for twice; then once more from memory.
    let keys: Vec<_> = (0..200).rev().chain([3]).map(|i: u32| i.to_string()).collect();
    for round in 0..2 {
        let many = store.get_many(&keys).unwrap();
        let single: Vec<_> = keys.iter().map(|key| store.get(key).unwrap()).collect();
        assert_eq!(many, single, "round {round}");
        assert_eq!(many.iter().flatten().count(), 101, "one twice");
    }
    assert_eq!(store.get_many([""; 0]).unwrap(), []);
    // The keys may come from the store itself.
    assert_eq!(store.get_many(store.keys().map(|key| key.unwrap())).unwrap().len(), 100);
}

#[test]
fn values_expire_by_the_stores_clock() {
    let disk = SimDisk::new(SimOptions::default());
    let clock = ManualClock::new();
    let store = builder(Durability::Sync).clock(clock.clone()).open_on(SimDevice::attach(&disk)).unwrap();
    let minute = PutOptions::new().ttl(Duration::from_secs(60));
    store.put_with("ttl", "1", minute).unwrap();
    store.put("stays", "1").unwrap();
    let at = store.get("ttl").unwrap().unwrap().expires_at().unwrap();
    store.put_with("at", "1", PutOptions::new().expires_at(at)).unwrap();
    assert_eq!(store.get("at").unwrap().unwrap().expires_at(), Some(at));
    store.put_with("past", "1", PutOptions::new().expires_at(SystemTime::UNIX_EPOCH)).unwrap();
    assert_eq!(store.get("past").unwrap(), None);
    let mut batch = store.batch();
    batch.put_with("batch", "1", minute);
    batch.commit().unwrap();
    clock.advance(Duration::from_millis(59_999));
    assert_eq!(sorted_keys(&store), [&b"at"[..], b"batch", b"stays", b"ttl"]);
    clock.advance(Duration::from_millis(1));
    assert_eq!(sorted_keys(&store), [b"stays"]);
    assert_eq!(store.iter().count(), 1);
    assert_eq!(store.get("ttl").unwrap(), None);
    assert!(!store.contains_key("at").unwrap());
    assert!(store.put_with("batch", "2", PutOptions::new().if_absent()).unwrap().is_some());
    store.close().unwrap();
    let store = builder(Durability::Sync).clock(clock).open_on(SimDevice::attach(&disk)).unwrap();
    assert_eq!(sorted_keys(&store), [&b"batch"[..], b"stays"]);
}

#[test]
fn a_step_of_the_wall_clock_expires_nothing_at_once() {
    let clock = ManualClock::new();
    let device = SimDevice::new(1, SimOptions::default());
    let store = builder(Durability::Sync).clock(clock.clone()).open_on(device).unwrap();
    store.put_with("k", "v", PutOptions::new().ttl(Duration::from_secs(60))).unwrap();
    clock.set_wall(SystemTime::now() + Duration::from_secs(3600));
    assert!(store.contains_key("k").unwrap());
    clock.set_wall(SystemTime::now());
    clock.advance(Duration::from_secs(59));
    assert!(store.contains_key("k").unwrap());
    clock.advance(Duration::from_secs(2));
    assert!(!store.contains_key("k").unwrap());
}

#[test]
fn clear_removes_everything_and_stays() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..100_u32 {
        store.put(i.to_be_bytes(), "v").unwrap();
    }
    store.clear().unwrap();
    assert!(store.is_empty().unwrap());
    assert_eq!(store.iter().count(), 0);
    store.put("new", "v").unwrap();
    drop(store);
    let store = open(&disk, Durability::Sync);
    assert_eq!(sorted_keys(&store), [b"new"]);
}

#[test]
fn limits_name_what_is_taken() {
    let store = fresh();
    let too_long = vec![0; 1 << 16];
    let refused = store.put(&too_long, "v").unwrap_err();
    assert!(matches!(refused, Error::KeyTooLong { found_bytes: 65_536, limit_bytes: 65_535 }), "{refused}");
    let refused = store.put("k", vec![0; 65 << 10]).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    let disk = SimDisk::new(SimOptions::default());
    let small = builder(Durability::Sync).value_size_max(10).open_on(SimDevice::attach(&disk)).unwrap();
    assert!(matches!(small.put("k", [0; 11]), Err(Error::TooLarge { found_bytes: 11, limit_bytes: 10 })));
    small.put("k", [0; 10]).unwrap();
    // The format's limit, whatever the options say: such a value once ended the store with a panic.
    let large = builder(Durability::Memory).segment_size(128 << 20).memory(256 << 20).value_size_max(32 << 20);
    let large = large.open_on(SimDevice::attach(&SimDisk::new(SimOptions::default()))).unwrap();
    let refused = large.put("k", vec![0; 1 << 24]).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { limit_bytes: 16_777_215, .. }), "{refused}");
    large.put("k", [0; 10]).unwrap();
}

#[test]
fn a_full_device_refuses_writes_until_there_is_space() {
    let disk = SimDisk::new(SimOptions::default());
    let clock = ManualClock::new();
    let builder = builder(Durability::Sync).clock(clock.clone()).capacity(8 * (256 << 10));
    let store = builder.open_on(SimDevice::attach(&disk)).unwrap();
    let full = (0..100_u32).find_map(|i| store.put(i.to_be_bytes(), vec![0; 30_000]).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    assert!(store.get(0_u32.to_be_bytes()).unwrap().is_some());
    store.clear().unwrap();
    clock.advance(Duration::from_secs(10));
    let works_again = (0..20).any(|_| {
        clock.advance(Duration::from_secs(10));
        store.put("k", vec![0; 30_000]).is_ok()
    });
    assert!(works_again);
}

#[test]
fn a_capacity_without_room_for_cleaning_is_refused_before_a_store_is_made() {
    let builder = || Builder::new().memory(8 << 20);
    let attach = |disk: &SimDisk| SimDevice::attach(disk);
    let disk = SimDisk::new(SimOptions::default());
    let too_small = [
        builder().capacity((512 << 10) - 1),
        builder().capacity(32 << 20).segment_size(64 << 20),
        builder().capacity((8 << 20) - 1).segment_size(1 << 20),
    ];
    for builder in too_small {
        let refused = builder.open_on(attach(&disk)).unwrap_err();
        assert!(matches!(refused, Error::InvalidOption { name: "capacity", .. }), "{refused}");
        assert!(disk.names().is_empty(), "{:?}", disk.names());
    }
    // Segments that suit the capacity are the default, and each store that is accepted can be overwritten for ever.
    for (builder, segment_bytes) in [
        (builder().capacity(512 << 10), 64 << 10),
        (builder().capacity(32 << 20), 2 << 20),
        (builder().capacity(8 << 20).segment_size(1 << 20), 1 << 20),
    ] {
        let disk = SimDisk::new(SimOptions::default());
        let store = builder.open_on(attach(&disk)).unwrap();
        let puts = 3 * 16 * segment_bytes / 8_000;
        for i in 0..puts {
            store.put((i % 10_u32).to_be_bytes(), vec![0; 8_000]).unwrap();
        }
        assert_eq!(store.len().unwrap(), 10);
        let segment = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
        assert_eq!(disk.contents(&segment).unwrap().len(), segment_bytes as usize);
        drop(store);
        // An existing store is opened whatever its capacity is.
        let store = Builder::new().memory(8 << 20).capacity(1 << 10).open_on(attach(&disk)).unwrap();
        assert!(store.get(0_u32.to_be_bytes()).unwrap().is_some());
    }
}

#[test]
fn statistics_count_what_was_done() {
    let store = fresh();
    store.put("key", "value").unwrap();
    store.get("key").unwrap();
    store.get("other").unwrap();
    let stats = store.stats().unwrap();
    assert_eq!((stats.keys, stats.writes, stats.lookups, stats.hits, stats.user_bytes), (1, 1, 2, 1, 8));
    assert_eq!(stats.memory_budget_bytes, 8 << 20);
    assert!(stats.live_bytes >= 8 && stats.log_bytes >= stats.live_bytes && stats.disk_bytes >= 256 << 10);
    assert!(stats.memory_bytes() > 0 && stats.segments >= 1);
}

#[test]
fn keys_and_values_act_as_bytes() {
    let store = fresh();
    store.put("key", b"v\n").unwrap();
    let (key, value) = store.iter().next().unwrap().unwrap();
    assert_eq!(format!("{key:?} {value:?}"), format!("Key(b\"key\") Value(b\"v\\n\", {:?})", value.version()));
    assert_eq!((key.len(), key.as_ref(), value.first()), (3, &b"key"[..], Some(&b'v')));
    assert!(key == *"key" && value == b"v\n" && value == b"v\n"[..]);
    let keys = std::collections::HashSet::from([key.clone()]);
    assert!(keys.contains(&b"key"[..]));
    assert_eq!((Vec::from(key), value.into_vec()), (b"key".to_vec(), b"v\n".to_vec()));
}

/// The machine was off for hours, or the right time came late: the expiry clock follows after a minute.
#[test]
fn a_ttl_lasts_as_long_as_it_says_after_a_step_of_the_wall_clock() {
    let hour = Duration::from_secs(3600);
    let disk = SimDisk::new(SimOptions::default());
    let clock = ManualClock::new();
    let store = builder(Durability::Sync).clock(clock.clone()).open_on(SimDevice::attach(&disk)).unwrap();
    store.put("before", "v").unwrap();
    // A smaller step just before: the expiry clock follows in two.
    clock.set_wall(SystemTime::now() + Duration::from_secs(10));
    store.put("between", "v").unwrap();
    clock.set_wall(SystemTime::now() + 2 * hour);
    store.put_with("session", "v", PutOptions::new().ttl(hour)).unwrap();
    let mut batch = store.batch();
    batch.put_with("of a batch", "v", PutOptions::new().ttl(hour));
    batch.commit().unwrap();
    let is_there = || ["session", "of a batch"].map(|key| store.get(key).unwrap().is_some());
    for _ in 0..3 {
        clock.advance(Duration::from_secs(61));
        assert_eq!(is_there(), [true; 2], "a TTL of an hour ended after minutes");
    }
    clock.advance(hour - Duration::from_secs(185));
    assert_eq!(is_there(), [true; 2]);
    clock.advance(Duration::from_secs(5));
    assert_eq!(is_there(), [false; 2], "it counts from the right time");
}

/// The same over a reboot: the monotonic clock begins again, and the wall clock is right all the time.
#[test]
fn a_ttl_lasts_as_long_as_it_says_after_a_reboot() {
    let hour = Duration::from_secs(3600);
    let disk = SimDisk::new(SimOptions::default());
    let clock = ManualClock::new();
    clock.advance(hour);
    builder(Durability::Sync).clock(clock).open_on(SimDevice::attach(&disk)).unwrap().close().unwrap();
    let clock = ManualClock::new();
    // After a weekend without power.
    clock.set_wall(SystemTime::now() + 60 * hour);
    let store = builder(Durability::Sync).clock(clock.clone()).open_on(SimDevice::attach(&disk)).unwrap();
    store.put_with("session", "v", PutOptions::new().ttl(hour)).unwrap();
    clock.advance(Duration::from_secs(61));
    assert!(store.get("session").unwrap().is_some(), "a TTL of an hour ended after a minute");
}

#[test]
fn a_budget_that_no_machine_has_takes_no_memory_at_once() {
    let disk = SimDisk::new(SimOptions::default());
    for seed in 0..3 {
        let most = builder(Durability::Sync).memory(u64::MAX).layout(fawn_ds::RecordLayout::Auto);
        let store = most.open_on(SimDevice::attach(&disk)).unwrap();
        // Most are overwritten, so that cleaning copies the others: the next opening reads copies.
        for round in 0..8 {
            (0..400_u32).filter(|i| round == 0 || i % 8 > 0).for_each(|i| {
                store.put(i.to_be_bytes(), [7; 3000]).unwrap();
            });
        }
        assert!(store.get(0_u32.to_be_bytes()).unwrap().is_some());
        assert!(!disk.names().iter().any(|name| name.starts_with("run-")), "nothing has to be sorted");
        disk.kill(seed);
        drop(store);
    }
}
