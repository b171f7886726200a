//! A seeded driver that runs the same operations on all devices and compares every result.
//!
//! Reproduce a seed: `FAWN_SEED=<seed> cargo test -p fawn-flash --test it agreement`.
use crate::support::{BLOCK, TestDir, drain, pattern, test_dir};
use fawn_flash::{AlignedBuf, Device, DeviceError, DeviceKind, DeviceOptions, FileDevice, FileId, IoClass, Token};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use std::collections::BTreeMap;

const BLOCKS: u64 = 32;

/// A result without the part that may differ between devices: the directory's path.
fn plain<T: std::fmt::Debug>(answer: Result<T, DeviceError>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(DeviceError::NotFound { name, .. }) => format!("no {name}"),
        Err(DeviceError::Exists { name, .. }) => format!("{name} exists"),
        Err(other) => format!("{other:?}"),
    }
}

fn name(rng: &mut SplitMix64) -> String {
    format!("f{}", rng.below(9))
}

struct DeviceDriver<D> {
    device: D,
    open: BTreeMap<u64, FileId>,
    log: Vec<String>,
}

impl<D: Device> DeviceDriver<D> {
    fn step(&mut self, rng: &mut SplitMix64, step: u64) {
        let line = match rng.below(16) {
            0 => {
                let name = name(rng);
                let file = self.device.create(&name);
                self.keep(rng, file.as_ref().ok().copied());
                plain(file)
            }
            1 => {
                let name = name(rng);
                let file = self.device.open(&name);
                let file = file.and_then(|file| self.device.begin_writes(file).map(|()| file));
                self.keep(rng, file.as_ref().ok().copied());
                plain(file)
            }
            2 => plain(self.device.rename(&name(rng), &name(rng))),
            3 => plain(self.device.link(&name(rng), &name(rng))),
            4 => plain(self.device.unlink(&name(rng))),
            5 => plain(self.device.sync_dir()),
            6 => plain(self.device.list()),
            _ => match self.pick(rng) {
                Some(file) => self.data(rng, file, step),
                None => String::from("nothing open"),
            },
        };
        self.log.push(line);
    }

    /// Keeps a few files open. The seed decides which one is closed, so that all drivers agree.
    fn keep(&mut self, rng: &mut SplitMix64, file: Option<FileId>) {
        let place = rng.below(10);
        if let Some(file) = file
            && let Some(old) = self.open.insert(place, file)
        {
            self.device.close(old);
        }
    }

    fn pick(&self, rng: &mut SplitMix64) -> Option<FileId> {
        let place = rng.below(10);
        self.open.get(&place).copied()
    }

    fn data(&mut self, rng: &mut SplitMix64, file: FileId, step: u64) -> String {
        let page = BLOCK as u64;
        match rng.below(6) {
            0 => plain(self.device.truncate(file, rng.below(BLOCKS * 8) * 512)),
            1 => plain(self.device.allocate(file, rng.below(BLOCKS) * page, (1 + rng.below(8)) * page)),
            2 => plain(self.device.punch(file, rng.below(BLOCKS) * page, (1 + rng.below(8)) * page)),
            3 => plain(self.device.len(file)),
            4 => self.writes(rng, file, step),
            _ => self.reads(rng, file),
        }
    }

    /// Several writes to distinct blocks in flight at once, then a sync.
    fn writes(&mut self, rng: &mut SplitMix64, file: FileId, step: u64) -> String {
        for lane in 0..4 {
            let block = lane * (BLOCKS / 4) + rng.below(BLOCKS / 4);
            let (offset, len) = match rng.below(3) {
                0 => (block * BLOCK as u64 + 512 * rng.below(8), 512),
                _ => (block * BLOCK as u64, BLOCK),
            };
            let buf = pattern(step * 4 + lane, BLOCK);
            if rng.coin() {
                self.device.submit_write(file, offset, buf, len, IoClass::Flush, Token(lane));
            } else {
                self.device.submit_write_durable(file, offset, buf, len, IoClass::Flush, Token(lane));
            }
        }
        let mut ends = self.ends();
        self.device.submit_sync(file, IoClass::Flush, Token(9));
        ends.append(&mut self.ends());
        format!("{ends:?}")
    }

    fn reads(&mut self, rng: &mut SplitMix64, file: FileId) -> String {
        for lane in 0..4 {
            let offset = rng.below((BLOCKS + 8) * 8) * 512;
            let mut buf = AlignedBuf::zeroed(512 * (1 + rng.below(40)) as usize);
            buf.fill(0xEE);
            self.device.submit_read(file, offset, buf, IoClass::Foreground, Token(lane));
        }
        format!("{:?}", self.ends())
    }

    /// Completions of all operations in flight, by token: the result, and for a read a digest of its buffer.
    fn ends(&mut self) -> Vec<(u64, String, u64)> {
        let mut ends: Vec<_> = drain(&mut self.device)
            .into_iter()
            .map(|done| (done.token.0, plain(done.result), done.buf.map_or(0, |buf| digest(&buf))))
            .collect();
        ends.sort_unstable();
        ends
    }
}

fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn story<D: Device>(device: D, seed: u64, steps: u64) -> Vec<String> {
    let mut driver = DeviceDriver { device, open: BTreeMap::new(), log: Vec::new() };
    let mut rng = SplitMix64::new(seed);
    for step in 0..steps {
        driver.step(&mut rng, step);
    }
    driver.log.push(plain(driver.device.list()));
    driver.log.push(format!("{:?}", driver.device.stats().total()));
    driver.log
}

/// With few descriptors, so that files are closed and opened again all the time.
fn real(dir: &TestDir, kind: DeviceKind) -> FileDevice {
    let options = DeviceOptions { kind, queue_depth: 8, threads: 3, direct: true, descriptors_max: 1 };
    FileDevice::open(dir.path(), &options).unwrap()
}

#[test]
fn all_devices_answer_alike() {
    let seeds: Vec<u64> = match std::env::var("FAWN_SEED") {
        Ok(seed) => vec![seed.parse().expect("FAWN_SEED is a number")],
        Err(_) => (0..5).collect(),
    };
    for seed in seeds {
        let sim = story(SimDevice::attach(&SimDisk::new(SimOptions { seed, ..SimOptions::default() })), seed, 300);
        for kind in [DeviceKind::Auto, DeviceKind::Portable] {
            let dir = test_dir();
            let other = story(real(&dir, kind), seed, 300);
            for (step, (ours, theirs)) in sim.iter().zip(&other).enumerate() {
                assert_eq!(
                    ours, theirs,
                    "step {step} on {kind:?}; reproduce: FAWN_SEED={seed} cargo test -p fawn-flash --test it agreement"
                );
            }
        }
    }
}
