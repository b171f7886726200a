//! Conformance suite: the contract of the `Device` trait, test by test, for every device.
use crate::support::{BLOCK, TestDir, drain, pattern, read, sync, test_dir, uring, write, write_durable};
use fawn_flash::{
    AlignedBuf, AppendBuf, Device, DeviceError, DeviceOptions, IoClass, IoRequest, PortableDevice, SimDevice, SimDisk,
    SimOptions, Token,
};
use std::collections::{BTreeSet, VecDeque};

/// Runs each check as a separate test, over a device that `$attach` opens in a fresh directory.
macro_rules! conformance {
    ($module:ident, $place:expr, $attach:expr) => {
        mod $module {
            use super::*;
            conformance!(@each $place, $attach, names, names_are_refused, data, past_the_end, many_in_flight,
                big_operations, truncation, allocation, holes, exchanged, unlinked_but_open, reopened, locked_once, counted,
                nothing_to_wait_for, queued_syncs_of_names, partial_buffer, shared_memory, mapped_files);
        }
    };
    (@each $place:expr, $attach:expr, $($check:ident),*) => {
        $(#[test]
        fn $check() {
            let place = $place;
            super::$check(&mut || $attach(&place));
        })*
    };
}

conformance!(sim, SimDisk::new(SimOptions::default()), SimDevice::attach);
conformance!(portable, test_dir(), |dir: &TestDir| PortableDevice::open(dir.path(), &DeviceOptions::default())
    .unwrap());
#[cfg(target_os = "linux")]
conformance!(uring, test_dir(), |dir: &TestDir| uring(dir, 256));
#[cfg(target_os = "linux")]
conformance!(uring_shallow, test_dir(), |dir: &TestDir| uring(dir, 8));
conformance!(sim_instant, SimDisk::new(SimOptions::instant(1)), SimDevice::attach);

fn mapped_files<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("map").unwrap();
    write(&mut device, file, 0, pattern(1, 2 * BLOCK)).unwrap();
    device.map(file, 2 * BLOCK).unwrap();
    let mut expected = pattern(1, 2 * BLOCK).to_vec();
    for (offset, bytes) in [(0, &b"first"[..]), (BLOCK - 3, b"across pages"), (2 * BLOCK - 4, b"last"), (7, b"")] {
        device.store(file, offset as u64, bytes);
        expected[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!(read(&mut device, file, 0, 2 * BLOCK).unwrap(), expected, "reads see stores");
    drop(device);
    let mut device = attach();
    let file = device.open("map").unwrap();
    assert_eq!(read(&mut device, file, 0, 2 * BLOCK).unwrap(), expected, "stores outlive the device without a sync");
    device.map(file, BLOCK).unwrap();
    device.close(file);
    let file = device.open("map").unwrap();
    device.map(file, BLOCK).unwrap();
    device.store(file, 0, b"again");
    assert_eq!(&read(&mut device, file, 0, BLOCK).unwrap()[..5], b"again");
}

fn names<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    assert_eq!(device.list(), Ok(Vec::new()));
    for name in ["b", "a"] {
        let file = device.create(name).unwrap();
        write(&mut device, file, 0, pattern(name.len() as u64, BLOCK)).unwrap();
        device.close(file);
    }
    device.rename("a", "b").unwrap();
    device.link("b", "c").unwrap();
    device.sync_dir().unwrap();
    assert_eq!(device.list(), Ok(vec!["b".to_owned(), "c".to_owned()]));
    device.unlink("b").unwrap();
    let file = device.open("c").unwrap();
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(1, BLOCK).to_vec());
}

fn names_are_refused<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    assert!(matches!(device.open("x"), Err(DeviceError::NotFound { name, .. }) if name == "x"));
    assert!(matches!(device.rename("x", "y"), Err(DeviceError::NotFound { .. })));
    assert!(matches!(device.link("x", "y"), Err(DeviceError::NotFound { .. })));
    assert!(matches!(device.unlink("x"), Err(DeviceError::NotFound { .. })));
    device.create("x").unwrap();
    device.create("y").unwrap();
    assert!(matches!(device.create("x"), Err(DeviceError::Exists { name, .. }) if name == "x"));
    assert!(matches!(device.link("x", "y"), Err(DeviceError::Exists { .. })));
    assert_eq!(device.poisoned(), None, "a failed metadata operation does not poison the device");
}

fn data<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("data").unwrap();
    assert_eq!(write(&mut device, file, 0, pattern(1, 4 * BLOCK)), Ok(4 * BLOCK));
    assert_eq!(write_durable(&mut device, file, BLOCK as u64, pattern(2, BLOCK)), Ok(BLOCK));
    assert_eq!(write(&mut device, file, 3 * BLOCK as u64 + 512, pattern(3, 512)), Ok(512));
    assert_eq!(sync(&mut device, file), Ok(0));
    let mut expected = pattern(1, 4 * BLOCK).to_vec();
    expected[BLOCK..2 * BLOCK].copy_from_slice(&pattern(2, BLOCK));
    expected[3 * BLOCK + 512..3 * BLOCK + 1024].copy_from_slice(&pattern(3, 512));
    assert_eq!(read(&mut device, file, 0, 4 * BLOCK).unwrap(), expected);
    assert_eq!(read(&mut device, file, 512, 512).unwrap(), expected[512..1024], "a read may start at any sector");
    assert_eq!(device.len(file), Ok(4 * BLOCK as u64));
}

fn past_the_end<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("short").unwrap();
    write(&mut device, file, 0, pattern(1, 512)).unwrap();
    let bytes = read(&mut device, file, 0, BLOCK).unwrap();
    assert_eq!(bytes[..512], pattern(1, 512)[..]);
    assert!(bytes[512..].iter().all(|&byte| byte == 0), "bytes past the end are zero, not the buffer's old content");
    assert!(read(&mut device, file, 1 << 20, BLOCK).unwrap().iter().all(|&byte| byte == 0));
}

fn many_in_flight<D: Device>(attach: &mut dyn FnMut() -> D) {
    const MANY: u64 = 700;
    let mut device = attach();
    let file = device.create("many").unwrap();
    for block in 0..MANY {
        device.submit_write(file, block * BLOCK as u64, pattern(block, BLOCK), BLOCK, IoClass::Flush, Token(block));
    }
    assert_eq!(device.in_flight() as u64, MANY);
    let tokens: BTreeSet<u64> = drain(&mut device)
        .into_iter()
        .map(|done| {
            assert_eq!(done.result, Ok(BLOCK));
            assert!(done.buf.is_some());
            done.token.0
        })
        .collect();
    assert_eq!(tokens, (0..MANY).collect());
    for block in 0..MANY {
        device.submit_read(file, block * BLOCK as u64, AlignedBuf::zeroed(BLOCK), IoClass::Foreground, Token(block));
        if block % 100 == 0 {
            device.kick();
        }
    }
    let (mut out, mut read_back) = (VecDeque::new(), 0);
    while device.in_flight() > 0 {
        device.wait(&mut out);
        for done in out.drain(..) {
            assert_eq!(done.buf.unwrap()[..], pattern(done.token.0, BLOCK)[..]);
            read_back += 1;
        }
    }
    assert_eq!(read_back, MANY);
}

fn big_operations<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("big").unwrap();
    let len = 4 << 20;
    assert_eq!(write(&mut device, file, 0, pattern(9, len)), Ok(len));
    assert_eq!(read(&mut device, file, 0, len).unwrap(), pattern(9, len).to_vec());
}

fn truncation<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("cut").unwrap();
    write(&mut device, file, 0, pattern(1, 2 * BLOCK)).unwrap();
    device.truncate(file, BLOCK as u64 + 512).unwrap();
    assert_eq!(device.len(file), Ok(BLOCK as u64 + 512));
    device.truncate(file, 3 * BLOCK as u64).unwrap();
    sync(&mut device, file).unwrap();
    let mut expected = pattern(1, 2 * BLOCK).to_vec();
    expected[BLOCK + 512..].fill(0);
    expected.resize(3 * BLOCK, 0);
    assert_eq!(read(&mut device, file, 0, 3 * BLOCK).unwrap(), expected, "bytes that were cut off do not return");
}

fn allocation<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("room").unwrap();
    write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
    device.allocate(file, 0, 1 << 20).unwrap();
    assert_eq!(device.len(file), Ok(1 << 20));
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(1, BLOCK).to_vec());
    assert!(read(&mut device, file, BLOCK as u64, BLOCK).unwrap().iter().all(|&byte| byte == 0));
    device.allocate(file, 0, BLOCK as u64).unwrap();
    assert_eq!(device.len(file), Ok(1 << 20), "allocation never shrinks");
    assert!(device.free_bytes().unwrap() > 0);
}

fn holes<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("holes").unwrap();
    write(&mut device, file, 0, pattern(1, 4 * BLOCK)).unwrap();
    device.punch(file, BLOCK as u64, 2 * BLOCK as u64).unwrap();
    let mut expected = pattern(1, 4 * BLOCK).to_vec();
    expected[BLOCK..3 * BLOCK].fill(0);
    assert_eq!(read(&mut device, file, 0, 4 * BLOCK).unwrap(), expected);
    assert_eq!(device.len(file), Ok(4 * BLOCK as u64));
}

fn queued_syncs_of_names<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let (before, mut out) = (device.stats().of(IoClass::Sort).syncs, VecDeque::new());
    let file = device.create("a").unwrap();
    for number in 0..20 {
        // Beside operations on files, on names too.
        let at = number * BLOCK as u64;
        device.submit_write(file, at, pattern(1, BLOCK), BLOCK, IoClass::Flush, Token(100 + number));
        device.submit_sync_dir(IoClass::Sort, Token(number));
        device.kick();
    }
    device.create("b").unwrap();
    while out.len() < 40 {
        device.wait(&mut out);
    }
    assert!(out.iter().all(|completion| completion.result.is_ok()), "{out:?}");
    device.close(file);
    let mut names: Vec<u64> = out.iter().map(|completion| completion.token.0).filter(|token| *token < 20).collect();
    names.sort_unstable();
    assert_eq!(names, (0..20).collect::<Vec<_>>());
    assert_eq!(device.stats().of(IoClass::Sort).syncs - before, 20);
}

fn exchanged<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let files = ["one", "other"].map(|name| device.create(name).unwrap());
    for (file, seed) in files.into_iter().zip([1, 2]) {
        write(&mut device, file, 0, pattern(seed, BLOCK)).unwrap();
    }
    assert!(matches!(device.exchange("one", "none"), Err(DeviceError::NotFound { .. })));
    assert!(device.exchange("one", "other").unwrap());
    device.sync_dir().unwrap();
    for (file, name, seed) in [(files[0], "other", 1), (files[1], "one", 2)] {
        let again = device.open(name).unwrap();
        for file in [file, again] {
            assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(seed, BLOCK).to_vec(), "{name}");
        }
    }
    // The open files know their names: the removed one cannot be opened again, the other one can.
    device.unlink("one").unwrap();
    assert_eq!(read(&mut device, files[1], 0, BLOCK).unwrap(), pattern(2, BLOCK).to_vec());
    drop(device);
    let mut device = attach();
    let file = device.open("other").unwrap();
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(1, BLOCK).to_vec());
}

fn unlinked_but_open<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("gone").unwrap();
    write(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
    device.unlink("gone").unwrap();
    device.sync_dir().unwrap();
    assert_eq!(
        read(&mut device, file, 0, BLOCK).unwrap(),
        pattern(1, BLOCK).to_vec(),
        "an unlinked file stays readable while it is open: pins rely on this"
    );
    let again = device.create("gone").unwrap();
    assert_ne!(file, again, "a FileId is never reused");
    device.close(file);
    assert_eq!(device.len(again), Ok(0));
}

fn reopened<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    device.lock().unwrap();
    let file = device.create("kept").unwrap();
    write(&mut device, file, 0, pattern(5, BLOCK)).unwrap();
    sync(&mut device, file).unwrap();
    device.sync_dir().unwrap();
    drop(device);
    let mut device = attach();
    device.lock().unwrap();
    assert_eq!(device.list(), Ok(vec!["kept".to_owned()]), "the lock file is not listed");
    let file = device.open("kept").unwrap();
    assert_eq!(read(&mut device, file, 0, BLOCK).unwrap(), pattern(5, BLOCK).to_vec());
}

fn locked_once<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut first = attach();
    let mut second = attach();
    first.lock().unwrap();
    assert!(matches!(second.lock(), Err(DeviceError::Locked { .. })));
    drop(first);
    second.lock().unwrap();
}

fn counted<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("counted").unwrap();
    write(&mut device, file, 0, pattern(1, 2 * BLOCK)).unwrap();
    write_durable(&mut device, file, 0, pattern(1, BLOCK)).unwrap();
    sync(&mut device, file).unwrap();
    read(&mut device, file, 0, BLOCK).unwrap();
    let (flush, foreground) = (*device.stats().of(IoClass::Flush), *device.stats().of(IoClass::Foreground));
    assert_eq!((flush.writes, flush.written_bytes, flush.syncs), (2, 3 * BLOCK as u64, 2));
    assert_eq!((foreground.reads, foreground.read_bytes), (1, BLOCK as u64));
}

fn nothing_to_wait_for<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let mut out = VecDeque::new();
    device.wait(&mut out);
    device.reap(&mut out);
    device.kick();
    assert!(out.is_empty());
    assert_eq!(device.in_flight(), 0);
}

fn partial_buffer<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("part").unwrap();
    device.submit_write(file, 0, pattern(1, 2 * BLOCK), BLOCK, IoClass::Flush, Token(4));
    let done = drain(&mut device).remove(0);
    assert_eq!(done.result, Ok(BLOCK));
    assert_eq!(done.buf.unwrap().len(), 2 * BLOCK, "the completion returns the whole buffer");
    assert_eq!(device.len(file), Ok(BLOCK as u64));
}

/// The rest of a buffer can be appended to while its front is being written.
fn shared_memory<D: Device>(attach: &mut dyn FnMut() -> D) {
    let mut device = attach();
    let file = device.create("shared").unwrap();
    let mut buf = AppendBuf::from(AlignedBuf::zeroed(4 * BLOCK));
    for step in 0..4 {
        let at = step * BLOCK;
        buf.rest_mut(at)[..BLOCK].copy_from_slice(&pattern(step as u64, BLOCK));
        let request = IoRequest::write_shared(file, at as u64, buf.share(at..at + BLOCK), IoClass::Flush, Token(4));
        device.submit(if step == 2 { request.durable() } else { request });
        device.kick();
    }
    for done in drain(&mut device) {
        assert_eq!(done.result, Ok(BLOCK));
        assert!(done.buf.is_none(), "the device never owned the buffer");
    }
    let flush = *device.stats().of(IoClass::Flush);
    assert_eq!((flush.writes, flush.written_bytes, flush.syncs), (4, 4 * BLOCK as u64, 1));
    assert_eq!(read(&mut device, file, 0, 4 * BLOCK).unwrap(), buf[..]);
    assert!(buf.into_inner().is_some(), "no device uses the buffer any more");
}
