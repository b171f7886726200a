//! Opening, syncing, closing and dropping the embedded store, with several handles and after crashes.
use crate::store_methods::{builder, open, sorted_keys};
use fawn_ds::sim::{DeviceFault, Loss, OpKind, SimDevice, SimDisk, SimOptions};
use fawn_ds::{Builder, Durability, Error, ManualClock, Store};
use std::error::Error as _;
use std::sync::mpsc;
use std::time::Duration;

const fn is_shared<T: Clone + Send + Sync>() {}
const _: () = is_shared::<Store>();

#[test]
fn a_directory_opens_once_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new").join("store");
    std::fs::create_dir(dir.path().join("new")).unwrap();
    let store = Store::open(&path).unwrap();
    store.put("k", "v").unwrap();
    let second = Store::open(&path).unwrap_err();
    assert!(matches!(&second, Error::InUse { dir, .. } if dir.contains("store")), "{second:?}");
    let text = second.to_string();
    assert!(text.contains("open already") && text.contains("cloning"), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    let clone = store.clone();
    drop(store);
    assert!(matches!(Store::open(&path), Err(Error::InUse { .. })), "a clone keeps it open");
    drop(clone);
    assert_eq!(Store::open(&path).unwrap().get("k").unwrap().unwrap(), "v");
}

#[test]
fn drop_and_sync_make_everything_durable_in_every_mode() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        for seed in 0..20 {
            let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
            // A clock that stands still: no timer syncs anything.
            let builder = || builder(durability).clock(ManualClock::new());
            let store = builder().open_on(SimDevice::attach(&disk)).unwrap();
            for i in 0..10_u32 {
                store.put(i.to_be_bytes(), "v").unwrap();
            }
            store.sync().unwrap();
            let image = disk.image(Loss::Power, seed);
            let found = builder().open_on(SimDevice::attach(&image)).unwrap().len().unwrap();
            assert_eq!(found, 10, "after a sync, {durability:?}, seed {seed}");
            store.put("last", "v").unwrap();
            drop(store);
            let image = disk.image(Loss::Power, seed);
            let found = builder().open_on(SimDevice::attach(&image)).unwrap().len().unwrap();
            assert_eq!(found, 11, "after the drop, {durability:?}, seed {seed}");
        }
    }
}

#[test]
fn every_second_syncs_without_a_caller() {
    let disk = SimDisk::new(SimOptions::default());
    let clock = ManualClock::new();
    let store = builder(Durability::EverySecond).clock(clock.clone()).open_on(SimDevice::attach(&disk)).unwrap();
    store.put("k", "v").unwrap();
    clock.advance(Duration::from_secs(2));
    let before = store.stats().unwrap().syncs;
    // No operation but the thread's own ticks and these looks at the counter.
    let (_keep, never) = mpsc::channel::<()>();
    let synced = (0..100).any(|_| {
        let _ = never.recv_timeout(Duration::from_millis(50));
        store.stats().unwrap().syncs > before
    });
    assert!(synced);
}

#[test]
fn another_opening_may_have_another_durability() {
    let disk = SimDisk::new(SimOptions::default());
    let modes = [Durability::Memory, Durability::Sync, Durability::EverySecond, Durability::Memory, Durability::Sync];
    for (i, durability) in modes.into_iter().enumerate() {
        let store = open(&disk, durability);
        assert_eq!(store.len().unwrap(), i as u64);
        let previous = store.get("0").unwrap().map(|value| value.version());
        let version = store.put(i.to_string(), "v").unwrap();
        assert!(previous.is_none_or(|previous| version > previous), "versions grow over openings");
    }
}

#[test]
fn close_ends_the_operations_of_other_clones() {
    let disk = SimDisk::new(SimOptions::default());
    for durability in [Durability::Sync, Durability::Memory] {
        let store = open(&disk, durability);
        let before = sorted_keys(&store).len() as u64;
        let acked: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u32)
                .map(|thread| {
                    let store = store.clone();
                    scope.spawn(move || {
                        let put = |i: u64| store.put(format!("{durability:?}-{thread}-{i}"), "v");
                        let (acked, error) = (0..).map(|i| (i, put(i))).find(|(_, put)| put.is_err()).unwrap();
                        assert!(matches!(error, Err(Error::Closed)), "{error:?}");
                        assert!(matches!(store.get("x"), Err(Error::Closed)));
                        assert!(matches!(store.stats(), Err(Error::Closed)));
                        store.close().unwrap();
                        acked
                    })
                })
                .collect();
            while store.len().unwrap() < before + 50 {}
            store.clone().close().unwrap();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        drop(store);
        // Not `len`: it is an estimate until an opening has compared keys whose hashes begin the same.
        let found = sorted_keys(&open(&disk, durability)).len() as u64 - before;
        // A write that was in flight when the store closed may be there, one for each thread.
        assert!((acked..=acked + 4).contains(&found), "{acked} acknowledged, {found} found");
    }
}

#[test]
fn close_reports_a_failure_each_time() {
    let disk = SimDisk::new(SimOptions::default());
    let store = builder(Durability::Memory).clock(ManualClock::new()).open_on(SimDevice::attach(&disk)).unwrap();
    store.put("k", "v").unwrap();
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
    let clone = store.clone();
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
    assert!(matches!(clone.put("k", "v"), Err(Error::Closed)));
    assert!(matches!(clone.close(), Err(Error::Poisoned { .. })));
    // The directory is free again.
    assert!(open(&disk, Durability::Sync).len().unwrap() <= 1);
}

#[test]
fn settings_out_of_bounds_are_refused_by_name() {
    let disk = SimDisk::new(SimOptions::default());
    let refused = Builder::new().segment_size(100_000).open_on(SimDevice::attach(&disk)).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { name: "segment_bytes", .. }), "{refused:?}");
    assert!(refused.to_string().contains("100000"), "{refused}");
    let refused = Builder::new().open().unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { name: "path", .. }), "{refused:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = Store::open(file.path()).unwrap_err();
    assert!(refused.source().is_some(), "{refused:?}");
}

#[test]
fn a_read_only_store_reads_and_refuses_writes() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    store.put("k", "v").unwrap();
    drop(store);
    let store = builder(Durability::Sync).read_only(true).open_on(SimDevice::attach(&disk)).unwrap();
    assert_eq!(store.get("k").unwrap().unwrap(), "v");
    assert_eq!(sorted_keys(&store), [b"k"]);
    assert!(matches!(store.put("k", "w"), Err(Error::ReadOnly)));
    assert!(matches!(store.delete("k"), Err(Error::ReadOnly)));
    assert!(matches!(store.clear(), Err(Error::ReadOnly)));
    store.sync().unwrap();
    store.close().unwrap();
}

#[test]
fn a_read_only_opening_makes_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing");
    let refused = Store::builder(&path).read_only(true).open().unwrap_err();
    assert!(matches!(&refused, Error::InvalidOption { name: "path", .. }), "{refused:?}");
    assert!(refused.to_string().contains("missing") && !path.exists(), "{refused}");
}

#[test]
fn damage_names_the_file_and_the_place() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..200_u32 {
        store.put(i.to_be_bytes(), vec![7; 3000]).unwrap();
    }
    drop(store);
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    disk.flip_bits(&name, 20_000, 0x10);
    let refused = builder(Durability::Sync).open_on(SimDevice::attach(&disk)).unwrap_err();
    let Error::Corrupt { file, offset_bytes, .. } = &refused else { panic!("{refused:?}") };
    assert!(*file == name && (4096..=20_000).contains(offset_bytes), "{refused}");
    assert!(refused.to_string().contains(&name));
    let details = refused.source().unwrap().to_string();
    assert!(details.contains("below what was synced"), "{details}");
    let store = builder(Durability::Sync).read_only(true).open_on(SimDevice::attach(&disk)).unwrap();
    let absent = store.get("never written").unwrap_err();
    assert!(matches!(absent, Error::Corrupt { .. }), "{absent:?}");
    let found: Vec<_> = store.iter().collect();
    let (last, left) = found.split_last().unwrap();
    assert!(matches!(last, Err(Error::Corrupt { file, .. }) if *file == name), "{last:?}");
    assert!(left.len() < 200 && left.iter().all(Result::is_ok), "{} records are left", left.len());
    let keys: Vec<_> = store.keys().collect();
    assert!(
        keys.len() == found.len() && keys.iter().filter(|key| key.is_err()).count() == 1 && keys[left.len()].is_err()
    );
}

/// A page of a complete segment that cannot be read costs a read-only opening what it would cost if it were corrupt.
#[test]
fn a_store_with_an_unreadable_page_is_exported_as_one_with_a_corrupt_page() {
    let disk = SimDisk::new(SimOptions::default());
    let store = open(&disk, Durability::Sync);
    for i in 0..200_u32 {
        store.put(i.to_be_bytes(), vec![7; 3000]).unwrap();
    }
    drop(store);
    let is_first = |name: &String| name.starts_with("segment-000000");
    let name = disk.names().into_iter().find(is_first).unwrap();
    let left = |disk: &SimDisk| {
        let store = builder(Durability::Sync).read_only(true).open_on(SimDevice::attach(disk)).unwrap();
        let found: Vec<_> = store.keys().collect();
        let (last, left) = found.split_last().unwrap();
        assert!(matches!(last, Err(Error::Corrupt { file, .. }) if *file == name), "{last:?}");
        let mut left: Vec<_> = left.iter().map(|key| key.as_ref().unwrap().to_vec()).collect();
        left.sort();
        left
    };
    let corrupt = disk.image(Loss::Process, 1);
    corrupt.flip_bits(&name, 5 * 4096 + 99, 1);
    disk.make_unreadable(&name, 5 * 4096..6 * 4096);
    let expected = left(&corrupt);
    assert!((1..200).contains(&expected.len()));
    assert_eq!(left(&disk), expected);
}

#[test]
fn a_backup_of_an_open_store_has_what_was_written_and_goes_its_own_way() {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy, restored] = ["data", "copy", "restored"].map(|name| dir.path().join(name));
    let store = Store::builder(&data).durability(Durability::EverySecond).open().unwrap();
    // More than one segment takes.
    for i in 0..70 {
        store.put(format!("k{i}"), vec![b'x'; 1_000_000]).unwrap();
    }
    fawn_ds::backup(&data, &copy).unwrap();
    store.put("later", "1").unwrap();
    store.close().unwrap();
    fawn_ds::backup(&copy, &restored).unwrap();
    for path in [&copy, &restored] {
        let store = Store::open(path).unwrap();
        assert_eq!(store.len().unwrap(), 70);
        assert_eq!(store.get("k69").unwrap().unwrap().len(), 1_000_000);
        assert!(store.get("later").unwrap().is_none());
        (0..70).for_each(|i| assert!(store.delete(format!("k{i}")).unwrap()));
        store.close().unwrap();
    }
    let store = Store::open(&data).unwrap();
    assert_eq!(store.len().unwrap(), 71, "deletes in a copy are not the source's");
    assert!(matches!(fawn_ds::backup(&data, &copy), Err(Error::InvalidOption { name: "to", .. })));
    let none = dir.path().join("none");
    assert!(matches!(fawn_ds::backup(&none, dir.path().join("x")), Err(Error::InvalidOption { name: "from", .. })));
    assert!(!none.exists());
}

/// Complete files are linked, not read: only the verification of the copy finds that one of them has rotted.
#[test]
fn a_backup_of_a_damaged_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy] = ["data", "copy"].map(|name| dir.path().join(name));
    let store = Store::builder(&data).segment_size(64 << 10).open().unwrap();
    for i in 0..100_u32 {
        store.put(i.to_be_bytes(), vec![7; 3000]).unwrap();
    }
    store.close().unwrap();
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let first = names.filter(|name| name.starts_with("segment-")).min().unwrap();
    let mut bytes = std::fs::read(data.join(&first)).unwrap();
    bytes[20_000] ^= 1;
    std::fs::write(data.join(&first), bytes).unwrap();
    // The second attempt meets nothing of the first one, in a directory that is there by then.
    for _ in 0..2 {
        match fawn_ds::backup(&data, &copy) {
            Err(Error::Corrupt { file, .. }) => assert_eq!(file, first),
            other => panic!("{other:?}"),
        }
        let left: Vec<_> = std::fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["LOCK"], "a corrupt copy never is a store");
    }
}

#[test]
fn a_backup_locks_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy] = ["data", "copy"].map(|name| dir.path().join(name));
    let store = Store::open(&data).unwrap();
    store.put("key", "value").unwrap();
    std::fs::create_dir(&copy).unwrap();
    let lock = fawn_flash::DirLock::take(&copy).unwrap();
    let refused = fawn_ds::backup(&data, &copy).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused:?}");
    drop(lock);
    fawn_ds::backup(&data, &copy).unwrap();
    assert_eq!(Store::open(&copy).unwrap().len().unwrap(), 1);
    let refused = fawn_ds::backup(&data, &copy).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { name: "to", .. }), "{refused:?}");
}

#[test]
fn no_store_is_created_next_to_an_unfinished_copy() {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy] = ["data", "copy"].map(|name| dir.path().join(name));
    Store::open(&data).unwrap().close().unwrap();
    std::fs::create_dir_all(copy.join("copy.partial")).unwrap();
    let refused = Store::open(&copy).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { name: "path", .. }), "{refused:?}");
    assert!(refused.to_string().contains("copy.partial"), "{refused}");
    let refused = fawn_ds::backup(&data, &copy).unwrap_err();
    assert!(refused.to_string().contains("copy.partial"), "{refused}");
    // The end of a copy was interrupted: the store is complete.
    std::fs::create_dir(data.join("copy.partial")).unwrap();
    Store::open(&data).unwrap();
}
