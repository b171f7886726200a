//! Open results while their range is copied to the store: they are kept for retries, and not the log behind them.
use crate::open_results::{Member, of_capacity};
use crate::support::{RANGE, TestNode};
use fawn_ds::internals::{Options, RecordKind, RecordRef};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{ClientTag, Durability, Epoch, Now, Version};

const SESSION: u64 = 3;

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

/// A transfer whose history continues after this version.
fn receiver(disk: &SimDisk, options: Options) -> Member {
    let mut member = Member::open(disk, options, Now::at(1));
    member.node.engine.begin_transfer(RANGE, version(1_000)).unwrap();
    member
}

/// Takes a transferred result, which stays open.
fn take_result(member: &mut Member, seq: u64) {
    let (version, tag) = (version(seq), ClientTag { session: SESSION, seq });
    let result = [seq as u8; 20];
    let record = RecordRef { tag, result: &result, ..RecordRef::bare(RecordKind::Result, version, &[]) };
    assert_eq!(member.node.engine.append_copied(RANGE, TestNode::hash(b""), &record), Ok(true), "{version:?}");
    member.open.insert(version, (tag, result.to_vec()));
}

/// Takes more transferred results than a range keeps, all in one segment. Their copies are not synced yet.
fn take_too_many(member: &mut Member) {
    (1..=40).for_each(|seq| take_result(member, seq));
    for _ in 0..100 {
        if member.copies >= 40 {
            return;
        }
        member.turn();
    }
    panic!("{} copies", member.copies);
}

/// Takes transferred keys, and ends the transfer.
fn finish(member: &mut Member) {
    for i in 0..100_u64 {
        let key = (1_000 + i).to_be_bytes();
        let record = RecordRef::put(version(i + 1), &key, &[7; 100]);
        assert_eq!(member.node.engine.append_copied(RANGE, TestNode::hash(&key), &record), Ok(true), "{i}");
        member.turn();
    }
    member.node.engine.finish_transfer(RANGE).unwrap();
    for _ in 0..100 {
        if member.node.engine.copying(RANGE).is_none() {
            return;
        }
        member.turn();
    }
    panic!("the transfer does not end: {:?}", member.node.engine);
}

/// Overwrites ten keys with twice the capacity.
fn overwrite(member: &mut Member) {
    for i in 0..2_000 {
        member.write(i % 10, &[7; 1_000], b"");
    }
}

/// One session stays silent after an operation in the history, another one after one before its base. The store would be
/// full of the history, and the transfer could not end.
#[test]
fn open_results_keep_no_history_while_their_range_is_copied() {
    for ends in [true, false] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = || of_capacity(16, Durability::Sync);
        let mut member = receiver(&disk, options());
        take_result(&mut member, 5);
        member.write(0, &[7; 100], b"a result");
        overwrite(&mut member);
        take_result(&mut member, 6);
        assert!((2..=100).contains(&member.copies), "{} copies", member.copies);
        if ends {
            finish(&mut member);
            overwrite(&mut member);
        }
        disk.crash(1);
        let mut member = member.open_again(&disk, options());
        assert_eq!((member.open.len(), member.node.keys().len()), if ends { (3, 110) } else { (0, 0) });
    }
}

/// Copies of the former transfer's results are in flight at its end; nothing of them counts for the next one.
#[test]
fn a_transfer_that_begins_again_has_its_own_copies_of_results() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { retained_records_max: 40, ..of_capacity(16, Durability::Sync) };
    let mut member = receiver(&disk, options());
    take_too_many(&mut member);
    member.node.engine.start_transfer(RANGE, version(1_000)).unwrap();
    assert!(!member.node.engine.must_copy_results(RANGE), "no record may have the new number yet");
    member.open.clear();
    while !member.node.engine.transfer_begun(RANGE) {
        member.turn();
    }
    (21..=60).for_each(|seq| take_result(&mut member, seq));
    member.write(0, &[7; 100], b"a result");
    overwrite(&mut member);
    finish(&mut member);
    disk.crash(1);
    let member = member.open_again(&disk, options());
    assert_eq!(member.open.len(), 41);
}

/// The copies free a segment that is being written: results that come later are in it, too, and have no copies.
#[test]
fn transferred_results_that_come_after_copies_stay() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = || Options { retained_records_max: 40, ..of_capacity(16, Durability::Sync) };
    let mut member = receiver(&disk, options());
    take_too_many(&mut member);
    (41..=44).for_each(|seq| take_result(&mut member, seq));
    member.sync();
    overwrite(&mut member);
    finish(&mut member);
    disk.crash(1);
    let member = member.open_again(&disk, options());
    assert_eq!(member.open.len(), 44);
}
