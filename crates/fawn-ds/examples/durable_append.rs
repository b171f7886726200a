//! Owns the measurement behind docs/decisions/2026-11-21-durable-writes.md: what one durable append costs by the state of
//! the blocks it goes to. `cargo run --release -p fawn-ds --example durable_append -- <directory> [seconds per case]`
use fawn_flash::{AlignedBuf, Cause, Completion, Device, DeviceOptions, FileId, Token, UringDevice};
use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u64 = 64 << 20;
const TOKEN: Token = Token(0);

/// What the blocks were before.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The file grows with each write.
    Growing,
    /// Reserved, never written: each write turns a piece of an unwritten extent into a written one.
    Reserved,
    /// Reserved, then overwritten with zeros and synced.
    Written,
}

/// How a write is made durable.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One request that is durable when it completes.
    Together,
    /// A write, then a data sync.
    Apart,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("name a directory on the medium to measure")?;
    let seconds: f64 = args.next().map_or(Ok(1.0), |text| text.parse())?;
    println!(
        "{:<10}{:<10}{:>8}{:>10}{:>10}{:>10}{:>12}",
        "blocks", "way", "bytes", "count", "p50 µs", "p99 µs", "moves on"
    );
    // The last column: whether each write goes to fresh blocks, or rewrites its last one as small frames do.
    for (bytes, moves_on) in [(4096, true), (4096, false), (16384, true)] {
        for state in [State::Growing, State::Reserved, State::Written] {
            for way in [Way::Together, Way::Apart] {
                case(Path::new(&dir), state, way, bytes, moves_on, Duration::from_secs_f64(seconds))?;
            }
        }
    }
    Ok(())
}

fn case(
    dir: &Path,
    state: State,
    way: Way,
    bytes: usize,
    moves_on: bool,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let mut device = UringDevice::open(dir, &DeviceOptions::default())?;
    let _ = device.unlink("durable_append");
    let file = device.create("durable_append")?;
    prepare(&mut device, file, state)?;
    let mut micros = Vec::new();
    let begun = Instant::now();
    let mut buf = AlignedBuf::zeroed(bytes);
    while begun.elapsed() < time {
        let step = if moves_on { micros.len() as u64 } else { micros.len() as u64 / 8 };
        let at = step * bytes as u64 % SEGMENT_BYTES;
        if step * bytes as u64 >= SEGMENT_BYTES {
            break;
        }
        buf[..8].copy_from_slice(&(micros.len() as u64).to_le_bytes());
        let start = Instant::now();
        buf = append(&mut device, file, at, buf, way)?;
        micros.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
    let (state, way) = (format!("{state:?}"), format!("{way:?}"));
    println!("{state:<10}{way:<10}{bytes:>8}{:>10}{:>10.1}{:>10.1}{moves_on:>12}", micros.len(), at(0.5), at(0.99));
    device.close(file);
    Ok(device.unlink("durable_append")?)
}

fn prepare(device: &mut UringDevice, file: FileId, state: State) -> Result<(), Box<dyn Error>> {
    if matches!(state, State::Reserved | State::Written) {
        device.allocate(file, 0, SEGMENT_BYTES)?;
    }
    if matches!(state, State::Written) {
        let mut buf = AlignedBuf::zeroed(1 << 20);
        for at in (0..SEGMENT_BYTES).step_by(1 << 20) {
            device.submit_write(file, at, buf, 1 << 20, Cause::Flush, TOKEN);
            buf = finish(device)?.ok_or("a write brings its buffer back")?;
        }
    }
    device.submit_sync(file, Cause::Flush, TOKEN);
    finish(device)?;
    Ok(device.sync_dir()?)
}

fn append(
    device: &mut UringDevice,
    file: FileId,
    at: u64,
    buf: AlignedBuf,
    way: Way,
) -> Result<AlignedBuf, Box<dyn Error>> {
    let len = buf.len();
    match way {
        Way::Together => device.submit_write_durable(file, at, buf, len, Cause::Flush, TOKEN),
        Way::Apart => device.submit_write(file, at, buf, len, Cause::Flush, TOKEN),
    }
    let buf = finish(device)?.ok_or("a write brings its buffer back")?;
    if matches!(way, Way::Apart) {
        device.submit_sync(file, Cause::Flush, TOKEN);
        finish(device)?;
    }
    Ok(buf)
}

fn finish(device: &mut UringDevice) -> Result<Option<AlignedBuf>, Box<dyn Error>> {
    let mut done: VecDeque<Completion> = VecDeque::new();
    while device.in_flight() > 0 {
        device.wait(&mut done);
    }
    let completion = done.pop_front().ok_or("what was submitted completes")?;
    completion.result?;
    Ok(completion.buf)
}
