//! Offline check: sound stores pass, corruption is reported with its location, and files are not changed.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::check::{CheckReport, Severity, check};
use fawn_ds::internals::format::{run, segment};
use fawn_ds::internals::{Options, RecordLayout};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

/// A store of several segments after a clean shutdown.
fn store() -> SimDisk {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    for i in 0..400u32 {
        let (key, value) = (i.to_be_bytes().to_vec(), Some(vec![i as u8; 300]));
        node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
        node.settle();
    }
    drop(node.engine.close().unwrap());
    disk
}

fn checked(disk: &SimDisk) -> CheckReport {
    let before: Vec<_> = disk.names().into_iter().map(|name| (disk.contents(&name), name)).collect();
    let report = check(&mut SimDevice::attach(disk)).unwrap();
    for (contents, name) in before {
        assert_eq!(disk.contents(&name), contents, "{name} was changed");
    }
    report
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect()
}

#[test]
fn a_store_closed_cleanly_is_sound() {
    let report = checked(&store());
    assert_eq!(report.findings, []);
    assert!(report.is_sound() && report.segments >= 2 && report.records >= 400, "{report:?}");
}

#[test]
fn a_flipped_bit_in_any_segment_is_named() {
    let disk = store();
    for name in segments(&disk) {
        for offset in [20, 4096 + 70] {
            let contents = disk.contents(&name).unwrap();
            if contents.iter().skip(4096).all(|&byte| byte == 0) && offset > 4096 {
                continue;
            }
            disk.flip_bits(&name, offset, 1);
            let report = checked(&disk);
            let damage: Vec<_> = report.findings.iter().filter(|f| f.severity == Severity::Damage).collect();
            assert_eq!(damage.len(), 1, "{name} at {offset}: {report:?}");
            assert_eq!(damage[0].file, name);
            disk.flip_bits(&name, offset, 1);
            assert!(checked(&disk).is_sound());
        }
    }
}

#[test]
fn a_damaged_manifest_is_named() {
    let disk = store();
    disk.flip_bits("manifest", 530, 4);
    let report = checked(&disk);
    assert!(!report.is_sound());
    assert_eq!(report.findings[0].file, "manifest");
}

#[test]
fn an_empty_directory_is_no_store() {
    let report = checked(&SimDisk::new(SimOptions::default()));
    assert!(!report.is_sound() && report.findings[0].file == "manifest", "{report:?}");
}

#[test]
fn orphans_are_notes_unless_the_manifest_lost_them() {
    let disk = store();
    let manifest = disk.contents("manifest").unwrap();
    disk.put("manifest.new", b"half");
    let report = checked(&disk);
    assert!(report.is_sound() && report.findings.len() == 1, "{report:?}");

    // A manifest without its last commits: segments with data are no longer listed.
    let (mut kept, mut at) = (512, 512);
    while manifest.get(at..at + 4) == Some(b"FwnM") {
        kept = at;
        let edit_bytes = u32::from_le_bytes(manifest[at + 4..at + 8].try_into().unwrap()) as usize;
        at += (32 + edit_bytes).next_multiple_of(16);
        if manifest[kept + 32..at].windows(8).any(|edit| edit == [5, 0, 0, 0, 32, 0, 0, 0]) && kept > 512 {
            break;
        }
    }
    let mut older = manifest.clone();
    older[kept..].fill(0);
    disk.put("manifest", &older);
    let report = checked(&disk);
    assert!(report.findings.iter().any(|finding| finding.detail.contains("lost its end")), "{report:?}");
    assert!(!report.is_sound());
}

/// As after a repaired copy was copied over the damaged directory instead of being put in its place.
#[test]
fn files_of_another_store_are_no_orphans() {
    for layout in [RecordLayout::Log, RecordLayout::Sorted] {
        let disk = store();
        let before = disk.names();
        let other = SimDisk::new(SimOptions::default());
        let options = Options { layout, sort_bytes: 1, number_if_new: 1, ..small(Durability::Sync) };
        let mut node = TestNode::open(&other, options, Now::at(1)).unwrap();
        for i in 0..1_000u32 {
            let (key, value) = (i.to_be_bytes().to_vec(), Some(vec![i as u8; 300]));
            node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
            node.settle();
        }
        drop(node.engine.close().unwrap());
        let is_copied = |name: &&String| segment::is_file_name(name) || run::is_file_name(name);
        let others: Vec<String> = other.names().iter().filter(is_copied).cloned().collect();
        assert_eq!(others.iter().any(|name| run::is_file_name(name)), layout == RecordLayout::Sorted);
        others.iter().for_each(|name| disk.put(name, &other.contents(name).unwrap()));
        let report = checked(&disk);
        assert!(report.is_sound() && report.findings.len() == others.len(), "{report:?}");
        for finding in &report.findings {
            assert!(finding.detail.contains("another store") && others.contains(&finding.file), "{finding:?}");
        }
        for opening in 2..4 {
            let node = TestNode::open(&disk, small(Durability::Sync), Now::at(opening)).unwrap();
            assert_eq!(node.report.orphans_removed, Vec::<String>::new());
            drop(node.engine.close().unwrap());
        }
        let names = disk.names();
        assert!(before.iter().filter(is_copied).chain(&others).all(|name| names.contains(name)), "{names:?}");
        others.iter().for_each(|name| assert_eq!(disk.contents(name), other.contents(name)));
    }
}
