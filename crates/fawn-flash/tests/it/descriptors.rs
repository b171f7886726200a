//! Tests of real devices with fewer descriptors than files: files are closed and opened again, and nothing shows it.
#![cfg(target_os = "linux")]
use crate::support::{BLOCK, TestDir, drain, pattern, read, sync, test_dir, write, write_durable};
use fawn_flash::{AlignedBuf, Device, DeviceError, DeviceKind, DeviceOptions, FileDevice, FileId, IoClass, Token};
use fawn_types::random::SplitMix64;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;

const KINDS: [DeviceKind; 2] = [DeviceKind::Auto, DeviceKind::Portable];

fn open(dir: &TestDir, kind: DeviceKind, descriptors_max: usize) -> FileDevice {
    FileDevice::open(dir.path(), &DeviceOptions { kind, descriptors_max, ..DeviceOptions::default() }).unwrap()
}

/// Descriptors of this process that are files in `dir`, the lock left out.
fn held(dir: &TestDir) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    paths.filter(|path| path.parent() == Some(dir.path()) && !path.ends_with("LOCK")).count()
}

fn files(device: &mut FileDevice, count: u64) -> Vec<FileId> {
    let create = |number: u64| {
        let file = device.create(&format!("f{number}")).unwrap();
        write_durable(device, file, 0, pattern(number, BLOCK)).unwrap();
        device.end_writes(file);
        file
    };
    (0..count).map(create).collect()
}

#[test]
fn few_descriptors_serve_many_files() {
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 8);
        let files = files(&mut device, 60);
        assert!(held(&dir) <= 8, "{kind:?}: {} descriptors", held(&dir));
        let mut rng = SplitMix64::new(1);
        for round in 0..20 {
            // Files in flight keep theirs: as many as that, for as long.
            for lane in 0..20 {
                let number = rng.below(60);
                let (buf, token) = (AlignedBuf::zeroed(BLOCK), Token(lane << 32 | number));
                device.submit_read(files[number as usize], 0, buf, IoClass::Foreground, token);
            }
            for done in drain(&mut device) {
                done.result.unwrap();
                assert_eq!(done.buf.unwrap()[..], pattern(done.token.0 & 0xFF, BLOCK)[..], "{kind:?} round {round}");
            }
            assert_eq!(read(&mut device, files[round], 0, BLOCK).unwrap(), pattern(round as u64, BLOCK).to_vec());
            assert!(held(&dir) <= 8 + 20, "{kind:?}: {} descriptors", held(&dir));
        }
        for &file in &files {
            assert_eq!(device.len(file), Ok(BLOCK as u64));
        }
        assert!(held(&dir) <= 8, "{kind:?}: {} descriptors", held(&dir));
        files.into_iter().for_each(|file| device.close(file));
        assert_eq!(held(&dir), 0);
    }
}

/// The system reports a failed write-back to descriptors that were open then: until the sync, they stay.
#[test]
fn a_file_that_is_not_synced_keeps_its_descriptor() {
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 8);
        let files = files(&mut device, 30);
        for &file in &files {
            device.begin_writes(file).unwrap();
            write(&mut device, file, 0, pattern(7, BLOCK)).unwrap();
            device.end_writes(file);
        }
        assert_eq!(held(&dir), 30, "{kind:?}");
        for &file in &files {
            device.begin_writes(file).unwrap();
            sync(&mut device, file).unwrap();
            device.end_writes(file);
        }
        device.create("another").unwrap();
        assert!(held(&dir) <= 8, "{kind:?}: {} descriptors", held(&dir));
    }
}

/// A read says nothing about writes: one in flight at the last sync does not leave the file unsynced.
#[test]
fn a_file_that_is_read_during_its_last_sync_gives_its_descriptor_up() {
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 1);
        for number in 0..30 {
            let file = device.create(&format!("f{number}")).unwrap();
            write(&mut device, file, 0, pattern(number, BLOCK)).unwrap();
            device.submit_read(file, 0, AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(3));
            device.submit_sync(file, IoClass::Flush, Token(2));
            assert!(drain(&mut device).iter().all(|done| done.result.is_ok()));
            device.end_writes(file);
        }
        device.create("another").unwrap();
        assert!(held(&dir) <= 8, "{kind:?}: {} descriptors", held(&dir));
    }
}

/// A write that is in flight at a sync is not covered by it.
#[test]
fn a_file_that_is_written_during_a_sync_keeps_its_descriptor() {
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 1);
        for number in 0..30 {
            let file = device.create(&format!("f{number}")).unwrap();
            write(&mut device, file, 0, pattern(number, BLOCK)).unwrap();
            device.submit_write(file, BLOCK as u64, pattern(number, BLOCK), BLOCK, IoClass::Flush, Token(3));
            device.submit_sync(file, IoClass::Flush, Token(2));
            assert!(drain(&mut device).iter().all(|done| done.result.is_ok()));
            device.end_writes(file);
        }
        device.create("another").unwrap();
        assert!(held(&dir) >= 30, "{kind:?}: {} descriptors", held(&dir));
    }
}

#[test]
fn a_file_whose_name_goes_away_stays_the_file_that_it_is() {
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 1);
        let files = files(&mut device, 30);
        device.rename("f1", "f0").unwrap();
        device.unlink("f2").unwrap();
        device.link("f3", "g3").unwrap();
        device.create("f1").unwrap();
        for file in &files[4..] {
            read(&mut device, *file, 0, BLOCK).unwrap();
        }
        for (number, file) in files.iter().enumerate() {
            let found = read(&mut device, *file, 0, BLOCK).unwrap();
            assert_eq!(found, pattern(number as u64, BLOCK).to_vec(), "{kind:?}: file {number}");
        }
    }
}

/// Something else put a file of the same name there: its bytes are not taken for the file's.
#[test]
fn another_file_of_the_same_name_is_refused() {
    let dir = test_dir();
    let mut device = open(&dir, DeviceKind::Portable, 1);
    let files = files(&mut device, 10);
    std::fs::write(dir.path().join("new"), [9; BLOCK]).unwrap();
    std::fs::rename(dir.path().join("new"), dir.path().join("f0")).unwrap();
    let refused = read(&mut device, files[0], 0, BLOCK).unwrap_err();
    assert!(refused.to_string().contains("another file"), "{refused}");
    assert_eq!(device.poisoned(), None);
}

const CHILD: &str = "FAWN_TEST_FEW_DESCRIPTORS";

/// Runs one test of this binary in a process of its own, which may change its limits.
fn in_a_child(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn a_process_at_its_limit_makes_do_and_is_never_poisoned() {
    if !in_a_child("descriptors::a_process_at_its_limit_makes_do_and_is_never_poisoned") {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    for kind in KINDS {
        let dir = test_dir();
        // As many as it likes: the limit is the process's.
        let mut device = open(&dir, kind, 1000);
        let files = files(&mut device, 200);
        for (number, file) in files.iter().enumerate() {
            let found = read(&mut device, *file, 0, BLOCK).unwrap();
            assert_eq!(found, pattern(number as u64, BLOCK).to_vec(), "{kind:?}: file {number}");
        }
        // Others take every descriptor; the device gives its own for what it needs most.
        let mut others = Vec::new();
        while let Ok(other) = File::open("/dev/null") {
            others.push(other);
        }
        device.create("one more").unwrap();
        let (mut refused, mut written) = (None, Vec::new());
        for number in 0..200 {
            match device.create(&format!("g{number}")) {
                Ok(file) => {
                    write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
                    written.push(file);
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        // Files that are not synced keep theirs, so at last there is none.
        let error = refused.unwrap();
        assert!(matches!(error, DeviceError::Exhausted { .. }) && error.is_retryable(), "{kind:?}: {error}");
        assert_eq!(device.poisoned(), None, "{kind:?}");
        drop(others);
        for file in written {
            sync(&mut device, file).unwrap();
            device.end_writes(file);
        }
        device.create("and another").unwrap();
        assert_eq!(read(&mut device, files[0], 0, BLOCK).unwrap(), pattern(0, BLOCK).to_vec());
    }
}

/// A failed write poisons a store, so a file that will be written keeps its descriptor, however long its writer pauses.
#[test]
fn a_file_that_is_appended_to_is_written_although_no_descriptor_is_left() {
    if !in_a_child("descriptors::a_file_that_is_appended_to_is_written_although_no_descriptor_is_left") {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 1000);
        let appended = device.create("appended").unwrap();
        write_durable(&mut device, appended, 0, pattern(0, BLOCK)).unwrap();
        let _written_since = files(&mut device, 30);
        let mut others = Vec::new();
        while let Ok(other) = File::open("/dev/null") {
            others.push(other);
        }
        let refused = (0..200).find_map(|number| match device.create(&format!("g{number}")) {
            Ok(file) => write(&mut device, file, 0, pattern(1, BLOCK)).err(),
            Err(refused) => Some(refused),
        });
        assert!(matches!(refused, Some(DeviceError::Exhausted { .. })), "{kind:?}: {refused:?}");
        write_durable(&mut device, appended, BLOCK as u64, pattern(1, BLOCK)).unwrap();
        // The name goes to another file, which needs the descriptor of the one that has it.
        device.rename("g0", "appended").unwrap();
        write_durable(&mut device, appended, 0, pattern(2, BLOCK)).unwrap();
        assert_eq!(device.poisoned(), None, "{kind:?}");
    }
}

/// An event loop that waits for the device's descriptor would otherwise not reap such a completion.
#[test]
fn a_read_without_a_descriptor_is_announced() {
    if !in_a_child("descriptors::a_read_without_a_descriptor_is_announced") {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    for kind in KINDS {
        let dir = test_dir();
        let mut device = open(&dir, kind, 8);
        let files = files(&mut device, 30);
        // Unsynced files keep their descriptors, so the device cannot close one of its own.
        for &file in &files[22..] {
            device.begin_writes(file).unwrap();
            write(&mut device, file, 0, pattern(7, BLOCK)).unwrap();
        }
        let mut others = Vec::new();
        while let Ok(other) = File::open("/dev/null") {
            others.push(other);
        }
        assert!(!device.has_unsignalled());
        device.submit_read(files[0], 0, AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(1));
        device.kick();
        assert!(device.has_unsignalled(), "{kind:?}");
        let mut out = std::collections::VecDeque::new();
        device.reap(&mut out);
        assert!(matches!(out[0].result, Err(DeviceError::Exhausted { .. })), "{kind:?}: {:?}", out[0].result);
        assert!(!device.has_unsignalled());
    }
}
