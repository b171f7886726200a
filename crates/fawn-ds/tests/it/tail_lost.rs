//! A manifest that lost synced commits: segments that show the loss must never be deleted as orphans.
use crate::backup::copy_of;
use crate::support::{RANGE, TestNode, TestWrite, manifest_commits, scanned, small};
use fawn_ds::internals::backup::CopyError;
use fawn_ds::internals::check::{Severity, check};
use fawn_ds::internals::format::RangeNumber;
use fawn_ds::internals::format::manifest::{ManifestEdit, decode_all, encode_commit, encode_snapshot};
use fawn_ds::internals::{Engine, OpenError, Options, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn fill(node: &mut TestNode, keys: std::ops::Range<u32>) {
    for i in keys {
        node.append(&[TestWrite { key: i.to_be_bytes().to_vec(), value: Some(vec![i as u8; 300]), expires_at_ms: 0 }])
            .unwrap();
        node.settle();
    }
}

fn contents(disk: &SimDisk) -> Vec<(String, Option<Vec<u8>>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name))).collect()
}

/// Zeros the manifest from the last commit that has an edit with tag `edit`. Returns its former content.
fn lose_tail(disk: &SimDisk, edit: u8) -> Vec<u8> {
    let manifest = disk.contents("manifest").unwrap();
    let commits = manifest_commits(&manifest);
    let at = commits.iter().rev().find(|&&(at, end)| manifest[at + 32] == edit && end > at).unwrap().0;
    let mut older = manifest.clone();
    older[at..].fill(0);
    disk.put("manifest", &older);
    manifest
}

/// Opening must fail and change nothing, read-only opening works, and the check reports damage, of the store or of a copy.
/// With the manifest restored, every key is present.
fn refused_until_restored(disk: &SimDisk, manifest: &[u8], keys: u32) {
    let options = small(Durability::Sync);
    let before = contents(disk);
    let error = TestNode::open(disk, options.clone(), Now::at(2)).err();
    let Some(OpenError::ManifestTailLost { file, .. }) = &error else { panic!("{error:?}") };
    assert!(disk.names().contains(file), "{file} is the file that shows the loss");
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("restore") && text.contains("read-only"), "{text}");
    assert_eq!(contents(disk), before, "a failed opening changes nothing");

    let read_only = Options { read_only: true, ..options.clone() };
    let node = TestNode::open(disk, read_only, Now::at(2)).unwrap();
    assert!(!node.report.damage.is_empty() && node.report.orphans_removed.is_empty(), "{:?}", node.report);
    drop(node);
    let report = check(&mut SimDevice::attach(disk)).unwrap();
    assert!(report.findings.iter().any(|finding| finding.severity == Severity::Damage), "{report:?}");
    match copy_of(disk, 1000) {
        Err(CopyError::Damaged { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(copy) => assert!(!check(&mut SimDevice::attach(&copy)).unwrap().is_sound(), "a copy hides the loss"),
    }
    assert_eq!(contents(disk), before, "reading changes nothing");

    disk.put("manifest", manifest);
    assert!(check(&mut SimDevice::attach(&copy_of(disk, 1000).unwrap())).unwrap().is_sound());
    let mut node = TestNode::open(disk, options, Now::at(2)).unwrap();
    for i in 0..keys {
        assert!(node.get(&i.to_be_bytes(), View::Committed).unwrap().is_some(), "key {i}");
    }
}

#[test]
fn an_unlisted_segment_with_data_is_refused_not_removed() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..500);
    drop(node.engine.close().unwrap());
    // The last listed segment may be prepared ahead and empty: continue until it has data.
    let listed = |disk: &SimDisk| disk.names().iter().filter(|name| name.starts_with("segment-")).count();
    assert!(listed(&disk) >= 3, "{:?}", disk.names());
    let manifest = disk.contents("manifest").unwrap();
    let commits = manifest_commits(&manifest);
    let adds: Vec<_> = commits.iter().filter(|&&(at, _)| manifest[at + 32] == 5).collect();
    let mut older = manifest.clone();
    older[adds[1].0..].fill(0);
    disk.put("manifest", &older);
    refused_until_restored(&disk, &manifest, 500);
}

/// All else is intact: no file that the manifest lists is missing.
#[test]
fn the_last_segment_with_data_is_refused_if_its_listing_is_lost() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..500);
    drop(node);
    disk.kill(1);
    let manifest = disk.contents("manifest").unwrap();
    let commits = manifest_commits(&manifest);
    // The last segment that is listed is prepared, and empty.
    let (at, _) = *commits.iter().rev().filter(|&&(at, _)| manifest[at + 32] == 5).nth(1).unwrap();
    let mut older = manifest.clone();
    older[at..].fill(0);
    disk.put("manifest", &older);
    refused_until_restored(&disk, &manifest, 500);
}

/// Cleaning has left it, or it was prepared: mostly it has nothing that a copy needs.
#[test]
fn one_failed_read_of_an_unlisted_segment_fails_no_copy() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..50);
    drop(node.engine.close().unwrap());
    let listed = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    let uuid = listed.trim_end_matches(".fawn").rsplit('-').next().unwrap();
    let unlisted = listed.replace(uuid, &uuid.chars().rev().collect::<String>());
    disk.put(&unlisted, &disk.contents(&listed).unwrap());
    let mut failed = 0;
    for nth in 1..60 {
        disk.fail_nth(OpKind::Read, nth, DeviceFault::Fail);
        let copy = copy_of(&disk, 1000);
        disk.clear_faults();
        let error = copy.map(drop).err().map(|error| error.to_string()).unwrap_or_default();
        failed += u32::from(!error.is_empty());
        assert!(!error.contains(&unlisted), "read {nth}: {error}");
    }
    assert!(failed > 5, "{failed} copies failed for other files");
    disk.make_unreadable(&unlisted, 0..4096);
    match copy_of(&disk, 1000).map(drop) {
        Err(CopyError::Damaged { file, .. }) => assert_eq!(file, unlisted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_of_a_generation_that_the_manifest_forgot_is_refused() {
    let disk = SimDisk::new(SimOptions::default());
    for round in 0..3 {
        let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
        fill(&mut node, round * 10..(round + 1) * 10);
        drop(node.engine.close().unwrap());
    }
    let manifest = lose_tail(&disk, 2);
    refused_until_restored(&disk, &manifest, 30);
}

#[test]
fn records_of_a_range_that_the_manifest_forgot_are_refused() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..30);
    drop(node.engine.close().unwrap());
    let manifest = lose_tail(&disk, 3);
    refused_until_restored(&disk, &manifest, 30);
}

/// A closed store with 30 records of a range that its manifest then drops, and that manifest.
fn dropped_range() -> (SimDisk, Vec<u8>) {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..30);
    drop(node.engine.close().unwrap());
    let mut manifest = disk.contents("manifest").unwrap();
    let decoded = decode_all(&manifest).unwrap();
    manifest.truncate(decoded.valid_len as usize);
    let offset = decoded.valid_len;
    encode_commit(&decoded.header, &[ManifestEdit::DropRange { range: RANGE }], offset, offset, &mut manifest);
    disk.put("manifest", &manifest);
    (disk, manifest)
}

#[test]
fn records_of_a_range_that_was_dropped_are_counted() {
    let (disk, manifest) = dropped_range();
    let report = check(&mut SimDevice::attach(&disk)).unwrap();
    let note = report.findings.iter().find(|finding| finding.detail.contains("which no range has any more"));
    assert!(
        report.is_sound() && note.is_some_and(|note| note.detail.starts_with("30 records under range number 1,")),
        "{report:?}"
    );
    let (engine, report) = Engine::open(SimDevice::attach(&disk), small(Durability::Sync), Now::at(2)).unwrap();
    assert_eq!((report.invalidated_records, engine.ranges().count()), (30, 0));
    // A rewritten manifest has the dropped range's number too.
    let again = decode_all(&encode_snapshot(&decode_all(&manifest).unwrap().state, 9)).unwrap();
    assert_eq!(again.state.last_number, RangeNumber(1));
}

/// A range that is added again after it was dropped begins empty, also after a further opening.
#[test]
fn records_of_a_dropped_range_do_not_come_back_with_it() {
    let (disk, _) = dropped_range();
    // The harness adds the range again.
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
    assert_eq!(node.engine.len(RANGE), 0);
    fill(&mut node, 100..101);
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(3)).unwrap();
    assert_eq!((node.report.invalidated_records, node.engine.len(RANGE)), (30, 1));
    assert!(node.get(&0_u32.to_be_bytes(), View::Committed).unwrap().is_none());
    assert!(node.get(&100_u32.to_be_bytes(), View::Committed).unwrap().is_some());
}

#[test]
fn orphans_without_data_are_removed() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    fill(&mut node, 0..20);
    drop(node.engine.close().unwrap());
    let names = disk.names();
    disk.put("manifest.new", b"half");
    disk.put("segment-000009-00112233445566aa.fawn", &[0; 8192]);
    let node = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).unwrap();
    assert_eq!(node.report.orphans_removed, ["manifest.new", "segment-000009-00112233445566aa.fawn"]);
    drop(node);
    assert_eq!(disk.names(), names);
}

#[test]
fn a_read_error_while_judging_an_orphan_refuses() {
    let disk = SimDisk::new(SimOptions::default());
    drop(TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap());
    let name = "segment-000009-00112233445566aa.fawn";
    disk.put(name, &[0; 8192]);
    // The manifest is read first, then the orphan file.
    disk.fail_nth(fawn_flash::sim::OpKind::Read, 2, fawn_flash::sim::DeviceFault::Fail);
    let error = TestNode::open(&disk, small(Durability::Sync), Now::at(2)).err();
    assert!(matches!(error, Some(OpenError::Device(_))), "{error:?}");
    assert!(disk.names().iter().any(|there| there == name));
}
