//! Sizes, reads and CPU time of a sorted run: bits per key, ns per locate, reads per hit and per miss.
//!
//! `cargo run --release -p fawn-ds --example sorted_run [KEYS]`. The counted columns are deterministic; the times are
//! those of the machine, with all of the run in memory.
use fawn_ds::internals::format::run::{RunHeader, RunRecord, Space, file_name};
use fawn_ds::internals::format::{RangeNumber, SegmentUuid, StoreUuid};
use fawn_ds::internals::sorted::{
    MergeRules, MergeSource, Merged, Run, RunError, RunLookup, RunMerge, RunWriter, RunWriterOptions, SortBuffer,
    WriterState,
};
use fawn_ds::sim::{SimDevice, SimDisk, SimOptions};
use fawn_flash::{Device, Token};
use fawn_types::random::SplitMix64;
use fawn_types::{HashSecret, RingKey, TimeMs, Version};
use std::collections::VecDeque;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const SECRET: HashSecret = HashSecret([1; 16]);
const PROBES: u64 = 200_000;

type KeyOf = fn(u64) -> String;

fn main() -> Result<(), Box<dyn Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |keys| keys.parse())?;
    println!("{keys} keys a row; bits are per key, times in ns");
    println!(
        "| data | pages full | fences bits | filters bits | reads a hit | reads a miss | locate | may_contain | write |"
    );
    let plain: KeyOf = |i| format!("user:{i:011}");
    let one_tag: KeyOf = |i| format!("{{tag}}{i:011}");
    let small_tags: KeyOf = |i| format!("{{tag{}}}{i:011}", i / 100);
    let rows: [(&str, KeyOf, usize, u8); 7] = [
        ("290 B records, oldest run", plain, 290, 4),
        ("290 B records, later run", plain, 290, 8),
        ("290 B records, 3 bits", plain, 290, 3),
        ("1,022 B records, oldest run", plain, 1022, 4),
        ("100 B records, oldest run", plain, 100, 4),
        ("290 B, one tag", one_tag, 290, 4),
        ("290 B, tags of 100 keys", small_tags, 290, 4),
    ];
    for (name, key_of, record_bytes, filter_bits) in rows {
        row(name, key_of, record_bytes, filter_bits, keys)?;
    }
    Ok(())
}

fn row(name: &str, key_of: KeyOf, record_bytes: usize, filter_bits: u8, keys: u64) -> Result<(), Box<dyn Error>> {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut device = SimDevice::attach(&disk);
    let mut buffer = SortBuffer::new(SECRET, u32::MAX as usize - 1);
    let value = vec![7; record_bytes];
    for i in 0..keys {
        let key = key_of(i);
        let value = &value[..record_bytes - 18 - key.len()];
        let record = RunRecord::put(RangeNumber(1), Version::from_u64(i + 1), key.as_bytes(), value);
        if !buffer.push(&record) {
            return Err("too many keys for one sort buffer".into());
        }
    }
    buffer.sort();
    let header = RunHeader { uuid: SegmentUuid([2; 16]), store: StoreUuid([3; 16]) };
    let options = RunWriterOptions { pages_max: 1 << 20, ..RunWriterOptions::new(header, SECRET, filter_bits) };
    let start = Instant::now();
    let file_bytes = write(&mut device, options, buffer)?;
    let write_ns = start.elapsed().as_nanos() as f64 / keys as f64;
    let (run, _) = Run::open(&mut device, header, &SECRET, file_bytes)?;
    let bytes = disk.contents(&file_name(header.uuid)).ok_or("the run has no file")?;

    let mut random = SplitMix64::new(1);
    let hits: Vec<_> = (0..PROBES).map(|_| key_of(random.below(keys))).collect();
    let misses: Vec<_> = hits.iter().map(|key| format!("{key}-")).collect();
    let ring_keys: Vec<_> = misses.iter().map(|key| RingKey::of(&SECRET, key.as_bytes())).collect();
    let locate_ns = time(&ring_keys, |key| run.locate(Space::KEYS, key).map_or(0, |span| span.first));
    let filter_ns = time(&ring_keys, |key| u32::from(run.may_contain(Space::KEYS, key)));
    let [hit_reads, miss_reads] = [count(&run, &bytes, &hits, true)?, count(&run, &bytes, &misses, false)?];
    let bits = |bytes: usize| bytes as f64 * 8.0 / keys as f64;
    let fill = keys as f64 * record_bytes as f64 / (f64::from(run.footer().pages) * 4096.0);
    println!(
        "| {name} | {fill:.3} | {:.3} | {:.3} | {hit_reads:.4} | {miss_reads:.4} | {locate_ns:.0} | {filter_ns:.0} | {write_ns:.0} |",
        bits(run.fences_bytes()),
        bits(run.filters_bytes())
    );
    Ok(())
}

/// Writes a run of all records; returns its length.
fn write(device: &mut SimDevice, options: RunWriterOptions, buffer: SortBuffer) -> Result<u64, Box<dyn Error>> {
    let rules = MergeRules {
        now: TimeMs(0),
        is_invalidated: &|_, _| false,
        number: &|record, _| record.number,
        may_hide: &|_, _| false,
        is_kept: &|_, _| false,
    };
    let mut merge = RunMerge::new(vec![MergeSource::Memory(buffer)]);
    let mut writer = RunWriter::create(device, options)?;
    let (mut is_merged, mut tokens) = (false, 0);
    loop {
        if !is_merged {
            is_merged = merge.step(&mut writer, &rules, 1000)? == Merged::Done;
            if is_merged {
                writer.finish();
            }
        }
        let mut token = || {
            tokens += 1;
            Token(tokens)
        };
        if let WriterState::Done(listing) = writer.step(device, 1 << 20, &mut token)? {
            return Ok(listing.file_bytes);
        }
        if writer.in_flight() > 0 {
            let mut done = VecDeque::new();
            device.wait(&mut done);
            done.into_iter().try_for_each(|completion| writer.completed(completion))?;
        }
    }
}

fn time(keys: &[RingKey], mut f: impl FnMut(&RingKey) -> u32) -> f64 {
    let start = Instant::now();
    let sum = keys.iter().fold(0_u32, |sum, key| sum.wrapping_add(f(key)));
    black_box(sum);
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

/// Pages read per lookup.
fn count(run: &Run, bytes: &[u8], keys: &[String], expected: bool) -> Result<f64, RunError> {
    let mut reads = 0;
    for key in keys {
        let mut step = run.lookup(Space::KEYS, RingKey::of(&SECRET, key.as_bytes()), key.as_bytes());
        let is_found = loop {
            step = match step {
                RunLookup::Found(_) => break true,
                RunLookup::Absent => break false,
                RunLookup::Read(plan) => {
                    reads += 1;
                    let at = plan.offset() as usize;
                    run.resume(plan, &bytes[at..at + 4096])?
                }
            };
        };
        assert!(is_found == expected, "{key}");
    }
    Ok(f64::from(reads) / keys.len() as f64)
}
