//! Stops of the machine and of its disk during a measurement: late wake-ups of a thread, slow reads and writes of a small file.
//!
//! A latency as long as a stop of the same interval may be the machine's, not the store's.
use crate::store::OwnDir;
use crate::{BenchError, Row, row};
use fawn_flash::AlignedBuf;
use fawn_flash::buffer::PAGE_BYTES;
use hdrhistogram::Histogram;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which the thread of the machine's stops parks: half of it takes more than 1 % of a core. A stop that begins
/// while the thread is parked appears shorter by up to this time.
const MACHINE_EVERY: Duration = Duration::from_millis(2);
/// Time between two reads of the disk, and between two writes.
const DISK_EVERY: Duration = Duration::from_millis(10);
/// Length of the file that is read and written, pages.
const FILE_PAGES: usize = 64;
/// An interval that does not count.
const UNCOUNTED: usize = usize::MAX;

/// Lengths of stops: their distribution, and the longest one of each interval.
struct StopRecord {
    nanos: Histogram<u64>,
    longest_ms: Vec<f64>,
}

impl StopRecord {
    fn new() -> Self {
        Self { nanos: row::histogram(), longest_ms: Vec::new() }
    }

    fn record(&mut self, interval: usize, stop: Duration) {
        if interval == UNCOUNTED {
            return;
        }
        self.nanos.saturating_record(stop.as_nanos() as u64);
        if self.longest_ms.len() <= interval {
            self.longest_ms.resize(interval + 1, 0.0);
        }
        self.longest_ms[interval] = self.longest_ms[interval].max(stop.as_secs_f64() * 1e3);
    }

    fn describe(mut self, name: &str, intervals: usize, row: Row) -> Row {
        self.longest_ms.resize(intervals, 0.0);
        let max = self.longest_ms.iter().copied().fold(0.0, f64::max);
        let p999 = self.nanos.value_at_quantile(0.999) as f64 / 1e6;
        let mut row = row.measuring(&format!("{name}_max"), max).measuring(&format!("{name}_p999"), p999);
        row.series.insert(name.to_owned(), self.longest_ms);
        row
    }
}

/// A thread that measures stops for as long as another one holds the number of the present interval.
struct StopThread {
    name: &'static str,
    thread: JoinHandle<io::Result<StopRecord>>,
}

impl StopThread {
    /// Parks for `every`, then records what `measure` returns for the time at which the wait should have ended.
    fn start(
        name: &'static str,
        every: Duration,
        interval: &Arc<AtomicUsize>,
        mut measure: impl FnMut(Instant) -> io::Result<Duration> + Send + 'static,
    ) -> Result<Self, BenchError> {
        let interval = Arc::downgrade(interval);
        let body = move || {
            let mut record = StopRecord::new();
            // A stop belongs to the interval in which it began.
            while let Some(interval) = interval.upgrade().map(|it| it.load(Ordering::Relaxed)) {
                let due = Instant::now() + every;
                std::thread::park_timeout(every);
                record.record(interval, measure(due)?);
            }
            Ok(record)
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        Ok(Self { name, thread: thread.map_err(|error| BenchError::failed(format!("thread {name}"), error))? })
    }

    fn end(self) -> Result<StopRecord, BenchError> {
        self.thread.thread().unpark();
        let ended = self.thread.join().map_err(|_| BenchError::failed(self.name, "panicked"))?;
        ended.map_err(|error| BenchError::failed(self.name, error))
    }
}

/// Measures the stops of the machine and of the disk.
pub struct StopMonitor {
    interval: Arc<AtomicUsize>,
    threads: Vec<StopThread>,
    _dir: OwnDir,
}

impl StopMonitor {
    /// Starts to measure, with a small file in a directory of its own under `parent`. No interval counts yet.
    ///
    /// # Errors
    /// If the file cannot be written, or a thread cannot be started.
    pub fn start(parent: &Path) -> Result<Self, BenchError> {
        let interval = Arc::new(AtomicUsize::new(UNCOUNTED));
        let mut dir = OwnDir::new(parent, "stops");
        let mut threads =
            vec![StopThread::start("machine_stop_ms", MACHINE_EVERY, &interval, |due| Ok(due.elapsed()))?];
        let files =
            open_direct(dir.renew()?).map_err(|error| BenchError::failed("the file of the disk's stops", error))?;
        if let Some([read, written]) = files {
            let read = timed(move |buf, offset| read.read_exact_at(buf, offset));
            threads.push(StopThread::start("disk_read_stop_ms", DISK_EVERY, &interval, read)?);
            let write = timed(move |buf, offset| written.write_all_at(buf, offset));
            threads.push(StopThread::start("disk_write_stop_ms", DISK_EVERY, &interval, write)?);
        }
        Ok(Self { interval, threads, _dir: dir })
    }

    /// Counts stops from now on in this interval, or in none.
    pub fn count_in(&self, interval: Option<usize>) {
        self.interval.store(interval.unwrap_or(UNCOUNTED), Ordering::Relaxed);
    }

    /// Ends the measurement and adds it to a row of so many intervals.
    ///
    /// # Errors
    /// If the file could not be read or written.
    pub fn end(self, intervals: usize, row: Row) -> Result<Row, BenchError> {
        drop(self.interval);
        self.threads.into_iter().try_fold(row, |row, thread| {
            let name = thread.name;
            Ok(thread.end()?.describe(name, intervals, row))
        })
    }
}

/// Measures how long an operation on the next page of the file takes.
fn timed(mut operation: impl FnMut(&mut [u8], u64) -> io::Result<()>) -> impl FnMut(Instant) -> io::Result<Duration> {
    let (mut buf, mut page) = (AlignedBuf::zeroed(PAGE_BYTES), 0);
    move |_| {
        page = (page + 1) % FILE_PAGES;
        let begun = Instant::now();
        operation(&mut buf, (page * PAGE_BYTES) as u64)?;
        Ok(begun.elapsed())
    }
}

/// Writes the file and opens it twice for direct I/O; `None` if the file system has none.
fn open_direct(dir: &Path) -> io::Result<Option<[File; 2]>> {
    let path = dir.join("pages.dat");
    std::fs::write(&path, [1; FILE_PAGES * PAGE_BYTES])?;
    File::open(&path)?.sync_all()?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    match options.open(&path) {
        Ok(file) => Ok(Some([file.try_clone()?, file])),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_belong_to_their_interval_and_uncounted_ones_to_none() {
        let mut record = StopRecord::new();
        for (interval, ms) in [(UNCOUNTED, 900), (0, 3), (0, 1), (2, 7), (UNCOUNTED, 800), (2, 5)] {
            record.record(interval, Duration::from_millis(ms));
        }
        (0..9996).for_each(|_| record.record(3, Duration::from_millis(2)));
        let row = record.describe("machine_stop_ms", 5, Row::default());
        assert_eq!(row.series["machine_stop_ms"], [3.0, 0.0, 7.0, 2.0, 0.0]);
        assert_eq!(row.measured["machine_stop_ms_max"], 7.0);
        let p999 = row.measured["machine_stop_ms_p999"];
        assert!((p999 / 2.0 - 1.0).abs() < 0.01, "four of ten thousand are longer: {p999}");
    }

    #[test]
    fn threads_measure_until_the_end_and_their_file_is_removed() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let monitor = StopMonitor::start(dir.path()).unwrap();
        monitor.count_in(Some(0));
        std::thread::park_timeout(Duration::from_millis(100));
        monitor.count_in(None);
        let row = monitor.end(1, Row::default()).unwrap();
        let names: Vec<_> = row.series.keys().collect();
        let without_direct = names == ["machine_stop_ms"];
        assert!(without_direct || names == ["disk_read_stop_ms", "disk_write_stop_ms", "machine_stop_ms"], "{names:?}");
        assert!(row.series.values().all(|longest| longest.len() == 1), "{row:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn operations_go_through_the_pages_of_the_file_and_their_errors_end_the_measurement() {
        let mut offsets = Vec::new();
        let mut measure = timed(|buf, offset| {
            assert_eq!(buf.len(), PAGE_BYTES);
            offsets.push(offset / PAGE_BYTES as u64);
            if offsets.len() > FILE_PAGES { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        });
        let ended = (0..=FILE_PAGES).filter(|_| measure(Instant::now()).is_ok()).count();
        drop(measure);
        assert_eq!(ended, FILE_PAGES);
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets, (0..FILE_PAGES as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_wait_that_ends_late_is_a_stop_of_that_length() {
        let interval = Arc::new(AtomicUsize::new(0));
        let mut held = Some(Arc::clone(&interval));
        let thread = StopThread::start("machine_stop_ms", Duration::from_millis(1), &interval, move |_| {
            drop(held.take());
            Ok(Duration::from_millis(42))
        });
        drop(interval);
        let record = thread.unwrap().thread.join().unwrap().unwrap();
        assert_eq!((record.longest_ms, record.nanos.len()), (vec![42.0], 1));
    }
}
