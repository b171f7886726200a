//! The device level: FAWN's `Device` compared with fio, on the same file and at the same depth, alternating.
use crate::{BenchError, Row, machine, row};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, FileId, IoClass, Token};
use fawn_types::random::SplitMix64;
use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Name of the file that both sides read.
pub const FILE_NAME: &str = "bench-device.dat";
const FILL_BYTES: usize = 1 << 20;
const FILL_DEPTH: usize = 8;

/// Parameters for both sides.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBenchOptions {
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// Number of requests in flight.
    pub depth: usize,
    /// Duration of a run.
    pub run: Duration,
    /// Seed for the choice of pages.
    pub seed: u64,
}

/// Opens the file. If it is missing or too short, it is created and filled with incompressible bytes.
///
/// # Errors
/// If the device fails.
pub fn prepare<D: Device>(device: &mut D, options: &DeviceBenchOptions) -> Result<FileId, BenchError> {
    if device.list()?.iter().any(|name| name == FILE_NAME) {
        let file = device.open(FILE_NAME)?;
        if device.len(file)? >= options.file_bytes {
            device.begin_writes(file)?;
            return Ok(file);
        }
        device.close(file);
        device.unlink(FILE_NAME)?;
    }
    let file = device.create(FILE_NAME)?;
    device.allocate(file, 0, options.file_bytes)?;
    fill(device, file, options)?;
    device.submit_sync(file, IoClass::Recovery, Token(0));
    drain(device)?;
    device.sync_dir()?;
    Ok(file)
}

fn fill<D: Device>(device: &mut D, file: FileId, options: &DeviceBenchOptions) -> Result<(), BenchError> {
    let mut random = SplitMix64::new(options.seed);
    let mut done = VecDeque::new();
    for offset in (0..options.file_bytes).step_by(FILL_BYTES) {
        let mut buf = AlignedBuf::zeroed(FILL_BYTES);
        buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        while device.in_flight() >= FILL_DEPTH {
            device.wait(&mut done);
            check(&mut done)?;
        }
        device.submit_write(file, offset, buf, FILL_BYTES, IoClass::Recovery, Token(offset));
        device.kick();
    }
    drain(device)
}

fn drain<D: Device>(device: &mut D) -> Result<(), BenchError> {
    let mut done = VecDeque::new();
    while device.in_flight() > 0 {
        device.wait(&mut done);
        check(&mut done)?;
    }
    Ok(())
}

fn check(done: &mut VecDeque<Completion>) -> Result<(), BenchError> {
    done.drain(..).try_for_each(|completion| completion.result.map(drop).map_err(BenchError::from))
}

/// Measures random 4 KiB reads of `file` through `device`, with `depth` in flight.
///
/// # Errors
/// If a read fails.
pub fn random_reads<D: Device>(device: &mut D, file: FileId, options: &DeviceBenchOptions) -> Result<Row, BenchError> {
    let pages = options.file_bytes / PAGE_BYTES as u64;
    let mut random = SplitMix64::new(options.seed);
    let mut nanos = row::histogram();
    let mut sent = vec![Instant::now(); options.depth];
    let mut done = VecDeque::new();
    let (started, cpu) = (Instant::now(), machine::own_cpu());
    let mut submit = |device: &mut D, slot: usize, buf: AlignedBuf, sent: &mut [Instant]| {
        sent[slot] = Instant::now();
        device.submit_read(file, random.below(pages) * PAGE_BYTES as u64, buf, IoClass::Foreground, Token(slot as u64));
    };
    for slot in 0..options.depth {
        submit(device, slot, AlignedBuf::zeroed(PAGE_BYTES), &mut sent);
    }
    let mut reads = 0_u64;
    while device.in_flight() > 0 {
        device.wait(&mut done);
        let now = Instant::now();
        let running = now.duration_since(started) < options.run;
        for completion in done.drain(..) {
            completion.result?;
            let slot = completion.token.0 as usize;
            nanos.saturating_record(now.duration_since(sent[slot]).as_nanos() as u64);
            reads += 1;
            if let Some(buf) = completion.buf.filter(|_| running) {
                submit(device, slot, buf, &mut sent);
            }
        }
    }
    let row =
        Row::new("device", "fawn", "random read 4 KiB").timed(reads, started.elapsed(), Some(machine::own_cpu() - cpu));
    let mut row = row.latencies(&nanos).with("depth", options.depth).with("device", device.name());
    row.device_reads_per_op = Some(1.0);
    Ok(row)
}

/// Measures random 4 KiB writes of `file` through `device`, one after the other, without syncs.
///
/// # Errors
/// If a write fails.
pub fn random_writes<D: Device>(device: &mut D, file: FileId, options: &DeviceBenchOptions) -> Result<Row, BenchError> {
    let pages = options.file_bytes / PAGE_BYTES as u64;
    let mut random = SplitMix64::new(options.seed);
    let mut nanos = row::histogram();
    let mut buf = AlignedBuf::zeroed(PAGE_BYTES);
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    let mut done = VecDeque::new();
    let (started, cpu, mut writes) = (Instant::now(), machine::own_cpu(), 0);
    while started.elapsed() < options.run {
        let sent = Instant::now();
        let offset = random.below(pages) * PAGE_BYTES as u64;
        device.submit_write(file, offset, buf, PAGE_BYTES, IoClass::Foreground, Token(0));
        while done.is_empty() {
            device.wait(&mut done);
        }
        let Some(completion) = done.pop_front() else { unreachable!("waited for above") };
        completion.result?;
        let Some(back) = completion.buf else { unreachable!("the device returns the buffer of a write") };
        buf = back;
        nanos.saturating_record(sent.elapsed().as_nanos() as u64);
        writes += 1;
    }
    let cpu = machine::own_cpu() - cpu;
    let row = Row::new("device", "fawn", "random write 4 KiB").timed(writes, started.elapsed(), Some(cpu));
    let mut row = row.latencies(&nanos).with("device", device.name());
    row.device_bytes_written_per_user_byte = Some(1.0);
    Ok(row)
}

/// Measures the same with fio.
///
/// # Errors
/// If fio is missing or fails.
pub fn fio_random_reads(dir: &Path, options: &DeviceBenchOptions) -> Result<Row, BenchError> {
    let output = Command::new("fio")
        .args(["--name=r", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=io_uring", "--output-format=json"])
        .args(["--time_based", "--norandommap", "--randrepeat=0"])
        .arg(format!("--filename={}", dir.join(FILE_NAME).display()))
        .arg(format!("--size={}", options.file_bytes))
        .arg(format!("--iodepth={}", options.depth))
        .arg(format!("--runtime={}ms", options.run.as_millis()))
        .output()
        .map_err(|error| BenchError::of_start(&error, "fio", "fio"))?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| BenchError::failed("fio", format!("{error}: {}", String::from_utf8_lossy(&output.stderr))))?;
    Ok(fio_row(&report)?.with("depth", options.depth))
}

fn fio_row(report: &serde_json::Value) -> Result<Row, BenchError> {
    let job = &report["jobs"][0];
    let number = |value: &serde_json::Value, what: &str| {
        value.as_f64().ok_or_else(|| BenchError::failed("fio", format!("its report lacks {what}")))
    };
    let mut row = Row::new("device", "fio", "random read 4 KiB");
    row.ops_per_s = number(&job["read"]["iops"], "read.iops")?;
    let percent = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    row.cpu_us_per_op = Some(percent / 100.0 / row.ops_per_s * 1e6);
    let percentile = |at: &str| job["read"]["clat_ns"]["percentile"][at].as_f64().map(|nanos| nanos / 1e3);
    (row.p50_us, row.p99_us, row.p999_us) = (percentile("50.000000"), percentile("99.000000"), percentile("99.900000"));
    row.device_reads_per_op = Some(1.0);
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reports_are_read_and_a_broken_one_is_refused() {
        let report = serde_json::json!({"jobs": [{"read": {"iops": 50_000.0, "clat_ns": {"percentile":
            {"50.000000": 300_000, "99.000000": 900_000, "99.900000": 2_000_000}}}, "usr_cpu": 10.0, "sys_cpu": 20.0}]});
        let row = fio_row(&report).unwrap();
        assert_eq!((row.ops_per_s, row.cpu_us_per_op, row.p50_us), (50_000.0, Some(6.0), Some(300.0)));
        assert!(fio_row(&serde_json::json!({})).is_err());
    }
}
