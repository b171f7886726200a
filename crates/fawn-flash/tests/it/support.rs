//! Shared test support: blocking calls over a device, patterned buffers, a device of each kind.
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, FileId, IoClass, Token};
use std::collections::VecDeque;
#[cfg(target_os = "linux")]
use std::io::Write;

pub(crate) const BLOCK: usize = 4096;

/// A buffer of `len` bytes that encode `tag` and their position.
pub(crate) fn pattern(tag: u64, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for (index, word) in buf.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(tag.wrapping_mul(0x9E37_79B9).wrapping_add(index as u64)).to_le_bytes());
    }
    buf
}

/// Waits until nothing is in flight; returns the completions in order of arrival.
pub(crate) fn drain<D: Device>(device: &mut D) -> Vec<Completion> {
    let mut out = VecDeque::new();
    while device.in_flight() > 0 {
        device.wait(&mut out);
    }
    out.into()
}

fn only<D: Device>(device: &mut D) -> Completion {
    let mut all = drain(device);
    assert_eq!(all.len(), 1, "one operation was in flight");
    all.remove(0)
}

pub(crate) fn write<D: Device>(
    device: &mut D,
    file: FileId,
    offset: u64,
    buf: AlignedBuf,
) -> Result<usize, DeviceError> {
    let len = buf.len();
    device.submit_write(file, offset, buf, len, IoClass::Flush, Token(1));
    only(device).result
}

pub(crate) fn write_durable<D: Device>(
    device: &mut D,
    file: FileId,
    offset: u64,
    buf: AlignedBuf,
) -> Result<usize, DeviceError> {
    let len = buf.len();
    device.submit_write_durable(file, offset, buf, len, IoClass::Flush, Token(1));
    only(device).result
}

pub(crate) fn sync<D: Device>(device: &mut D, file: FileId) -> Result<usize, DeviceError> {
    device.submit_sync(file, IoClass::Flush, Token(2));
    only(device).result
}

pub(crate) fn read<D: Device>(device: &mut D, file: FileId, offset: u64, len: usize) -> Result<Vec<u8>, DeviceError> {
    let mut buf = AlignedBuf::zeroed(len);
    buf.fill(0xEE);
    device.submit_read(file, offset, buf, IoClass::Foreground, Token(3));
    let completion = only(device);
    assert_eq!(completion.token, Token(3));
    completion.result.map(|moved| {
        assert_eq!(moved, len);
        completion.buf.expect("a read returns its buffer").to_vec()
    })
}

/// A test's temporary directory on a real file system.
pub(crate) type TestDir = tempfile::TempDir;

pub(crate) fn test_dir() -> TestDir {
    // In the target directory, not in a RAM file system, where `O_DIRECT` may not work.
    tempfile::Builder::new().prefix("flash").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// An io_uring device. If the kernel or the file system does not support one, the portable device, so that the suite
/// still runs. The fallback is reported on the uncaptured standard error, and is a failure if
/// `FAWN_TEST_DEVICE=io_uring` promised a ring.
#[cfg(target_os = "linux")]
#[expect(clippy::explicit_write, reason = "the macro's output would be captured")]
pub(crate) fn uring(dir: &TestDir, queue_depth: u32) -> fawn_flash::FileDevice {
    static SAID: std::sync::Once = std::sync::Once::new();
    let mut options = fawn_flash::DeviceOptions { queue_depth, ..fawn_flash::DeviceOptions::default() };
    options.kind = fawn_flash::DeviceKind::Uring;
    let refused = match fawn_flash::FileDevice::open(dir.path(), &options) {
        Ok(device) => return device,
        Err(refused) => refused,
    };
    assert!(!is_promised("io_uring"), "FAWN_TEST_DEVICE=io_uring, but: {refused}");
    SAID.call_once(|| {
        let said = "the tests of the ring run on the portable device; FAWN_TEST_DEVICE=io_uring makes this an error";
        writeln!(std::io::stderr(), "{said}: {refused}").unwrap();
    });
    options.kind = fawn_flash::DeviceKind::Portable;
    fawn_flash::FileDevice::open(dir.path(), &options).unwrap()
}

#[cfg(target_os = "linux")]
fn is_promised(device: &str) -> bool {
    std::env::var("FAWN_TEST_DEVICE").is_ok_and(|promised| promised == device)
}
