//! Tests of the engine's record cache: it shows exactly what is committed, and saves device reads.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{EngineError, Options, RecordKind, RecordRef, Scan, ScanItem, ScanStep, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{Device, IoClass, SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{ClientTag, Durability, Epoch, Now, Version};

const KEYS: u64 = 200;

fn with_cache(durability: Durability) -> Options {
    Options { record_cache_bytes: Some(400 << 10), ..small(durability) }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn put(number: u64, value: &[u8], expires_at_ms: u64) -> TestWrite {
    TestWrite { key: key(number), value: Some(value.to_vec()), expires_at_ms }
}

fn value(node: &mut TestNode, number: u64, view: View) -> Option<Vec<u8>> {
    node.get(&key(number), view).unwrap().map(|entry| entry.value.to_vec())
}

/// A node whose keys are committed, flushed out of the window, and cached.
fn loaded(options: Options) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options, Now::at(1000)).unwrap();
    for number in 0..KEYS {
        node.append(&[put(number, b"first", 0)]).unwrap();
    }
    // Other records push these out of the window.
    for number in 0..40 {
        node.append(&[put(KEYS + number, &[1; 4000], 0)]).unwrap();
        node.settle();
    }
    for number in 0..KEYS {
        assert_eq!(value(&mut node, number, View::Committed).unwrap(), b"first");
    }
    for number in 0..KEYS {
        let before = (hits(&node), reads(&node));
        assert_eq!(value(&mut node, number, View::Latest).unwrap(), b"first");
        assert_eq!((hits(&node), reads(&node)), (before.0 + 1, before.1), "key {number} is cached");
    }
    (disk, node)
}

fn hits(node: &TestNode) -> u64 {
    node.engine.record_cache_stats().hits
}

fn reads(node: &TestNode) -> u64 {
    node.engine.device().stats().of(IoClass::Foreground).reads
}

#[test]
fn a_pending_record_hides_the_cached_one_from_the_latest_view_only() {
    let (_disk, mut node) = loaded(with_cache(Durability::Sync));
    node.append(&[put(1, b"other", 0), TestWrite { key: key(2), value: None, expires_at_ms: 0 }]).unwrap();
    for number in [1, 2] {
        assert_eq!(value(&mut node, number, View::Committed).unwrap(), b"first");
    }
    assert_eq!(value(&mut node, 1, View::Latest).unwrap(), b"other");
    assert_eq!(value(&mut node, 2, View::Latest), None);
    node.settle();
    for view in [View::Committed, View::Latest] {
        assert_eq!(value(&mut node, 1, view).unwrap(), b"other");
        assert_eq!(value(&mut node, 2, view), None);
        assert_eq!(value(&mut node, 3, view).unwrap(), b"first");
    }
}

#[test]
fn a_key_that_is_read_and_written_needs_no_read_after_a_write() {
    let (_disk, mut node) = loaded(with_cache(Durability::Memory));
    for round in 0..20_u8 {
        // Longer and shorter values, which do not fit where the old one is.
        for number in 0..KEYS {
            node.append(&[put(number, &vec![round; 5 + usize::from(round % 3) * 100], 0)]).unwrap();
        }
        node.settle();
        let before = reads(&node);
        for number in 0..KEYS {
            let found = value(&mut node, number, View::Committed).unwrap();
            assert_eq!(found, vec![round; 5 + usize::from(round % 3) * 100]);
        }
        // A commit whose record has just left the window removes the cached one.
        assert!(reads(&node) <= before + KEYS / 10, "{} reads in round {round}", reads(&node) - before);
    }
}

#[test]
fn a_clear_hides_cached_records_at_its_commit() {
    let (_disk, mut node) = loaded(with_cache(Durability::Sync));
    let version = node.next_version();
    node.engine.clear(RANGE, version).unwrap();
    assert_eq!(value(&mut node, 1, View::Committed).unwrap(), b"first");
    assert_eq!(value(&mut node, 1, View::Latest), None);
    node.append(&[put(2, b"other", 0)]).unwrap();
    node.settle();
    for view in [View::Committed, View::Latest] {
        assert_eq!(value(&mut node, 1, view), None);
        assert_eq!(value(&mut node, 2, view).unwrap(), b"other");
    }
}

#[test]
fn a_transfer_begins_without_cached_records_and_replaces_them() {
    let (_disk, mut node) = loaded(with_cache(Durability::Sync));
    node.engine.end_sole_epoch(RANGE).unwrap();
    let base = node.next_version();
    node.engine.begin_transfer(RANGE, base).unwrap();
    assert_eq!(value(&mut node, 1, View::Committed), None);
    for (seq, content) in [(1, &b"older"[..]), (2, b"newer")] {
        let version = Version::from_u64(base.as_u64() - 3 + seq);
        let record = RecordRef {
            kind: RecordKind::Put,
            version,
            key: &key(1),
            value: content,
            flags: 0,
            expires_at_ms: 0,
            tag: ClientTag::NONE,
            result: &[],
        };
        assert!(node.engine.append_copied(RANGE, TestNode::hash(&key(1)), &record).unwrap());
        node.engine.submit(node.now);
        assert_eq!(value(&mut node, 1, View::Committed).unwrap(), content);
        // Out of the window, so that the next lookup is offered to the cache.
        for number in 0..40 {
            let filler = RecordRef { key: &key(KEYS + number), value: &[1; 4000], ..record };
            while node.engine.append_copied(RANGE, TestNode::hash(filler.key), &filler).is_err() {
                node.turn();
            }
            node.turn();
        }
        for _ in 0..2 {
            assert_eq!(value(&mut node, 1, View::Committed).unwrap(), content);
        }
    }
}

#[test]
fn a_cached_record_expires() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, with_cache(Durability::Sync), Now::at(1000)).unwrap();
    node.append(&[put(1, b"short-lived", 5000)]).unwrap();
    for number in 0..40 {
        node.append(&[put(KEYS + number, &[1; 4000], 0)]).unwrap();
        node.settle();
    }
    for _ in 0..3 {
        assert_eq!(value(&mut node, 1, View::Committed).unwrap(), b"short-lived");
    }
    assert!(hits(&node) > 0);
    node.now = node.now.plus_ms(5000);
    node.turn();
    assert_eq!(value(&mut node, 1, View::Committed), None);
    assert_eq!(value(&mut node, 1, View::Latest), None);
    assert_eq!(node.engine.stats().expired, 1);
}

/// The items of a scan of the log, sorted by key.
fn scanned(node: &mut TestNode) -> Vec<ScanItem> {
    let (mut cursor, mut items) = (0, Vec::new());
    loop {
        let mut scan = Scan::of_log(RANGE, cursor, 10).with_values(u32::MAX);
        while let ScanStep::Read(plan) = node.engine.scan_step(&mut scan, node.now.wall).unwrap() {
            node.engine.read(plan, 42);
            let plan = node.wait_for_plan();
            node.engine.absorb_scan(&mut scan, plan).unwrap();
        }
        items.append(&mut scan.items);
        cursor = scan.cursor;
        if cursor == 0 {
            items.sort_by(|one, other| one.key.cmp(&other.key));
            return items;
        }
    }
}

#[test]
fn a_scan_reads_only_records_that_are_not_cached() {
    let keys = 2000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { record_cache_bytes: Some(900 << 10), ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1000)).unwrap();
    let content = |number: u64| vec![number as u8; 300];
    for number in 0..keys {
        let expires_at_ms = if number % 4 == 3 { 50_000 } else { 0 };
        node.append(&[put(number, &content(number), expires_at_ms)]).unwrap();
        node.turn();
    }
    node.settle();
    let start = reads(&node);
    let uncached = scanned(&mut node);
    let without = reads(&node) - start;
    for number in 0..keys {
        assert_eq!(value(&mut node, number, View::Committed).unwrap(), content(number));
    }
    let start = reads(&node);
    let cached = scanned(&mut node);
    let with = reads(&node) - start;
    assert_eq!(cached.len() as u64, keys);
    assert!(cached.iter().zip(0..).all(|(item, number)| item.value.as_ref() == Some(&content(number))));
    assert_eq!(cached, uncached, "versions and expiry times");
    println!("{without} device reads of {keys} keys without cached records, {with} with");
    assert!(without > keys * 3 / 4 && with < keys / 10, "{without} and {with} reads of {keys} keys");

    // Pending records change nothing until they are committed; expired keys go.
    node.append(&[put(1, b"other", 0), TestWrite { key: key(2), value: None, expires_at_ms: 0 }]).unwrap();
    assert_eq!(scanned(&mut node), uncached);
    node.settle();
    let changed = scanned(&mut node);
    assert_eq!(changed.len() as u64, keys - 1);
    assert_eq!(changed[1].value.as_deref(), Some(&b"other"[..]));
    assert_eq!(changed[2].key, key(3));
    node.now = node.now.plus_ms(60_000);
    node.turn();
    assert_eq!(scanned(&mut node).len() as u64, keys * 3 / 4 - 1);
}

/// A node with keys on the device, 300 bytes each, and the number of a key that it has not, whose fragment one of them shares. The page
/// of that one is not cached.
fn with_shared_fragment(keys: u64) -> (SimDisk, TestNode, u64) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { record_cache_bytes: Some(900 << 10), ..small(Durability::Sync) };
    let mut node = TestNode::open(&disk, options, Now::at(1000)).unwrap();
    for number in 0..keys {
        node.append(&[put(number, &[7; 300], 0)]).unwrap();
        node.turn();
    }
    node.settle();
    // A lookup of an absent key reads only a record with the key's fragment.
    let new = (keys..keys + 20_000).find(|&number| {
        let before = reads(&node);
        assert_eq!(value(&mut node, number, View::Committed), None);
        reads(&node) > before
    });
    let new = new.unwrap();
    // The page of that record leaves the cache.
    (0..keys / 4).for_each(|number| _ = value(&mut node, number, View::Committed));
    (disk, node, new)
}

/// The index has one entry with a new key's fragment: another key's, as long as the new key's verification is not done. The new
/// key is cached meanwhile.
#[test]
fn a_scan_does_not_take_another_keys_entry_for_that_of_a_cached_key() {
    let keys = 2000;
    let (disk, mut node, new) = with_shared_fragment(keys);
    disk.hang(OpKind::Read);
    node.append(&[put(new, b"new", 0)]).unwrap();
    (0..4).for_each(|_| _ = node.turn());
    disk.end_faults(OpKind::Read);
    assert_eq!(disk.hung(), 1, "its verification waits");
    // Others push it out of the window.
    for number in 0..40 {
        node.append(&[put(100_000 + number, &[1; 4000], 0)]).unwrap();
        (0..4).for_each(|_| _ = node.turn());
    }
    assert_eq!(value(&mut node, new, View::Committed).unwrap(), b"new");
    let before = hits(&node);
    assert_eq!(value(&mut node, new, View::Committed).unwrap(), b"new");
    assert_eq!(hits(&node), before + 1, "it is cached");
    let check = |node: &mut TestNode| {
        let found = scanned(node);
        assert_eq!(found.len() as u64, keys + 1 + 40);
        assert!((0..keys).all(|number| found.binary_search_by(|item| item.key.cmp(&key(number))).is_ok()));
    };
    check(&mut node);
    // Now the index has both entries.
    disk.release_hung();
    node.settle();
    check(&mut node);
}

/// The index has the entries of two keys with one fragment, and the record of the older one cannot be read.
#[test]
fn a_key_is_found_beside_another_keys_unreadable_record() {
    let keys = 2000;
    let (disk, mut node, new) = with_shared_fragment(keys);
    let files = || disk.names().into_iter().filter_map(|name| Some((disk.contents(&name)?, name)));
    files().for_each(|(bytes, name)| disk.make_unreadable(&name, 0..bytes.len() as u64));
    // That record may be the key's.
    assert!(matches!(node.get(&key(new), View::Committed), Err(EngineError::Device(_))));
    disk.heal();
    node.append(&[put(new, b"new", 0)]).unwrap();
    node.settle();
    // Others push it out of the window, and the older one's page out of the cache.
    for number in 0..40 {
        node.append(&[put(100_000 + number, &[1; 4000], 0)]).unwrap();
        node.settle();
    }
    (0..keys / 4).for_each(|number| _ = value(&mut node, number, View::Committed));
    let new_key = key(new);
    for (bytes, name) in files() {
        let is_new = |page: &[u8]| page.windows(new_key.len()).any(|window| window == new_key);
        let has_new: Vec<bool> = bytes.chunks(4096).map(is_new).collect();
        // A read takes the next page, too.
        let others = (0..has_new.len()).filter(|&page| !has_new[page.saturating_sub(1)..=page].contains(&true));
        others.for_each(|page| disk.make_unreadable(&name, page as u64 * 4096..(page as u64 + 1) * 4096));
    }
    let before = reads(&node);
    assert_eq!(value(&mut node, new, View::Committed).unwrap(), b"new");
    assert_eq!(reads(&node), before + 2, "that of the other key's record fails first");
}

/// Device reads per get: Zipf 0.99, 256-byte values, a budget of a tenth of the data, index and buffers included.
fn reads_per_get(record_cache_bytes: Option<u64>) -> f64 {
    const RECORDS: u64 = 200_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options =
        Options { memory_bytes: 6 << 20, segment_bytes: 4 << 20, record_cache_bytes, ..small(Durability::Memory) };
    let mut node = TestNode::open(&disk, options, Now::at(1000)).unwrap();
    for number in 0..RECORDS {
        node.append(&[put(SplitMix64::mix(number) % 1_000_000 * RECORDS + number, &[7; 256], 0)]).unwrap();
        if number % 64 == 0 {
            node.turn();
        }
    }
    node.settle();
    let sums: Vec<f64> = (1..=RECORDS)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-0.99);
            Some(*sum)
        })
        .collect();
    let mut rng = SplitMix64::new(3);
    let mut before = 0;
    let gets = 2 * RECORDS;
    for get in 0..2 * gets {
        if get == gets {
            before = reads(&node);
        }
        let drawn = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64 * sums[sums.len() - 1];
        let rank = sums.partition_point(|sum| *sum < drawn) as u64;
        // A permutation: hot records are not neighbours.
        let number = rank * 77_773 % RECORDS;
        let found = value(&mut node, SplitMix64::mix(number) % 1_000_000 * RECORDS + number, View::Committed);
        assert_eq!(found.unwrap().len(), 256);
        if get % 16 == 0 {
            node.turn();
        }
    }
    let report = node.engine.memory();
    assert!(report.total_bytes() <= report.budget_bytes * 11 / 10, "{report:?}");
    let per_get = (reads(&node) - before) as f64 / gets as f64;
    println!("{per_get:.4} reads per get, {report:?}, {:?}", node.engine.record_cache_stats());
    per_get
}

/// A store whose pages all fit its memory twice: a lookup in the record cache takes half the time of one in a page, and the memory
/// would be unused otherwise.
#[test]
fn records_get_the_memory_that_pages_do_not_use() {
    let keys = 20_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let gets = |memory_bytes: u64| {
        let options = Options { memory_bytes, record_cache_bytes: None, ..small(Durability::Memory) };
        let mut node = TestNode::open(&disk, options, Now::at(1000)).unwrap();
        if value(&mut node, 0, View::Committed).is_none() {
            for number in 0..keys {
                node.append(&[put(number, &[1; 300], 0)]).unwrap();
                node.turn();
            }
            node.settle();
        }
        let mut before = node.engine.record_cache_stats();
        for round in 0..3 {
            before = node.engine.record_cache_stats();
            for number in 0..keys {
                assert_eq!(value(&mut node, number, View::Committed).unwrap().len(), 300, "round {round}");
                node.turn();
            }
        }
        assert_eq!(node.engine.page_cache_stats().evictions, 0);
        assert!(node.engine.memory().total_bytes() <= memory_bytes * 102 / 100, "{:?}", node.engine.memory());
        let stats = node.engine.record_cache_stats();
        node.engine.close().unwrap();
        (stats.hits - before.hits, stats.inserts - before.inserts)
    };
    // Records take 7 MB, their pages 7 MB.
    let (hits, inserts) = gets(24 << 20);
    assert!(hits > keys * 9 / 10 && inserts < keys / 10, "{hits} hits, {inserts} inserts of {keys} gets");
    // Room for less than half of the records: most gets find theirs in a page, and insert none for that.
    let (hits, inserts) = gets(15 << 20);
    assert!((keys / 3..keys * 9 / 10).contains(&hits), "{hits} of {keys} gets");
    assert!(inserts < keys / 5, "{inserts} inserts of {keys} gets");
    // Too little is left here for one record in three, once the pages are there.
    let (hits, inserts) = gets(11 << 20);
    assert!(hits < keys / 1000 && inserts < keys / 10, "{hits} hits, {inserts} inserts of {keys} gets");
}

/// The two caches together against pages alone in the same memory, which follow their marginal hits.
#[test]
fn zipf_gets_need_fewer_device_reads_than_with_pages_alone() {
    let (pages, both) = (reads_per_get(Some(0)), reads_per_get(None));
    assert!(both <= 0.62 * pages, "{both:.4} reads per get with a record cache, {pages:.4} without");
}

/// A transferred record is read while it is not known that the index has a newer one. It must not stay cached once that is.
#[test]
fn a_transferred_record_that_is_older_than_the_indexed_one_leaves_the_cache() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, with_cache(Durability::Sync), Now::at(1000)).unwrap();
    let version = |seq| Version::new(Epoch::new(2).unwrap(), seq).unwrap();
    node.engine.begin_transfer(RANGE, version(1_000)).unwrap();
    let copy = |node: &mut TestNode, number: u64, seq: u64, value: &[u8]| {
        let key = key(number);
        let record = RecordRef::put(version(seq), &key, value);
        let is_new = loop {
            match node.engine.append_copied(RANGE, TestNode::hash(&key), &record) {
                Ok(is_new) => break is_new,
                Err(_) => _ = node.turn(),
            }
        };
        node.turn();
        assert!(is_new);
    };
    // Others push the records out of the window.
    let push_out = |node: &mut TestNode, from: u64| {
        (from..from + 40).for_each(|number| copy(node, number, 10 + number, &[1; 4000]));
    };
    copy(&mut node, 1, 9, b"newer");
    push_out(&mut node, 10);
    disk.hang(OpKind::Read);
    copy(&mut node, 1, 5, b"older");
    disk.end_faults(OpKind::Read);
    assert_eq!(disk.hung(), 1, "its verification waits");
    push_out(&mut node, 100);
    assert_eq!(value(&mut node, 1, View::Committed).unwrap(), b"older");
    let before = hits(&node);
    assert_eq!(value(&mut node, 1, View::Committed).unwrap(), b"older");
    assert_eq!(hits(&node), before + 1, "it is cached");
    disk.release_hung();
    (0..4).for_each(|_| _ = node.turn());
    assert_eq!(value(&mut node, 1, View::Committed).unwrap(), b"newer");
}
