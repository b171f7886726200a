//! Simulation of the choice of victims: how often a byte is written in the steady state, by formula and workload.
//!
//! `cargo run --release -p fawn-ds --example victim_choice`. A log of 97 segments of 862 records, 70 or 84 of them
//! live; new records and copies have an active segment each. Counted after four times the capacity was written, over three more.
//! The result is deterministic.

const SEGMENTS: usize = 97;
const SEGMENT_RECORDS: usize = 862;
const LIVE_SEGMENTS: [usize; 2] = [70, 84];
const CAPACITY_RECORDS: u64 = 100 * SEGMENT_RECORDS as u64;

/// A segment as a formula sees it: dead and live shares, segments written since it was begun, records since one died.
struct Candidate {
    dead: f64,
    live: f64,
    age: f64,
    quiet: f64,
    /// Records written since the last ones died, on average.
    lately_quiet: f64,
}

type Merit = fn(&Candidate) -> f64;

const FORMULAS: [(&str, Merit); 7] = [
    ("dead", |found| found.dead),
    ("dead / (1 + live) × age", |found| found.dead / (1.0 + found.live) * found.age),
    ("dead / (1 + live) × √age", |found| found.dead / (1.0 + found.live) * found.age.sqrt()),
    ("dead / live × age^¼", |found| found.dead / found.live * found.age.powf(0.25)),
    ("dead² / live × age", |found| found.dead * found.dead / found.live * found.age),
    ("dead / live × √quiet", |found| found.dead / found.live * found.quiet.sqrt()),
    ("dead / live × quiet^¾ of eight", |found| found.dead / found.live * found.lately_quiet.powf(0.75)),
];

#[derive(Default)]
struct Segment {
    keys: Vec<u32>,
    live: usize,
    sequence: u64,
    last_death: u64,
    /// Moving average of the last deaths.
    deaths: f64,
    is_sealed: bool,
}

struct Log {
    segments: Vec<Segment>,
    free: Vec<usize>,
    /// Active segments of new records and of copies.
    active: [Option<usize>; 2],
    /// Segment and place of each key's record.
    places: Vec<Option<(usize, usize)>>,
    sequence: u64,
    clock: u64,
    written: u64,
}

impl Log {
    fn new(keys: usize) -> Self {
        let (segments, free, places) = (Vec::new(), Vec::new(), vec![None; keys]);
        Self { segments, free, active: [None; 2], places, sequence: 0, clock: 0, written: 0 }
    }

    fn append(&mut self, stream: usize, key: u32) {
        let at = match self.active[stream] {
            Some(at) if self.segments[at].keys.len() < SEGMENT_RECORDS => at,
            full => self.begin(stream, full),
        };
        if let Some((old, _)) = self.places[key as usize] {
            self.segments[old].live -= 1;
            let segment = &mut self.segments[old];
            segment.last_death = self.clock;
            segment.deaths += (self.clock as f64 - segment.deaths) / 8.0;
        }
        self.places[key as usize] = Some((at, self.segments[at].keys.len()));
        self.segments[at].keys.push(key);
        self.segments[at].live += 1;
        self.written += 1;
    }

    fn begin(&mut self, stream: usize, full: Option<usize>) -> usize {
        if let Some(full) = full {
            self.segments[full].is_sealed = true;
        }
        self.sequence += 1;
        let segment = Segment {
            sequence: self.sequence,
            last_death: self.clock,
            deaths: self.clock as f64,
            ..Segment::default()
        };
        let at = self.free.pop().unwrap_or(self.segments.len());
        if at == self.segments.len() {
            self.segments.push(segment);
        } else {
            self.segments[at] = segment;
        }
        self.active[stream] = Some(at);
        at
    }

    fn clean(&mut self, merit: Merit) {
        while self.segments.len() - self.free.len() >= SEGMENTS {
            let sealed = (0..self.segments.len()).filter(|&at| self.segments[at].is_sealed);
            let merits = sealed.map(|at| (at, merit(&self.candidate(&self.segments[at]))));
            let Some((victim, _)) = merits.max_by(|(_, one), (_, other)| one.total_cmp(other)) else { return };
            let keys = core::mem::take(&mut self.segments[victim].keys);
            for (place, key) in keys.into_iter().enumerate() {
                if self.places[key as usize] == Some((victim, place)) {
                    self.append(1, key);
                }
            }
            self.segments[victim].is_sealed = false;
            self.free.push(victim);
        }
    }

    fn candidate(&self, segment: &Segment) -> Candidate {
        let live = segment.live as f64 / SEGMENT_RECORDS as f64;
        Candidate {
            dead: 1.0 - live,
            live: live.max(0.001),
            age: (self.sequence - segment.sequence + 1) as f64,
            quiet: (self.clock - segment.last_death + 1) as f64,
            lately_quiet: self.clock as f64 - segment.deaths + 1.0,
        }
    }
}

/// Numbers from 0 to 1, uniform.
fn uniform(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

fn amplification(merit: Merit, cumulative: &[f64]) -> f64 {
    let keys = cumulative.len();
    let (mut log, mut random, mut written_before) = (Log::new(keys), 12_345, 0);
    for write in 0..keys as u64 + 7 * CAPACITY_RECORDS {
        if write == keys as u64 + 4 * CAPACITY_RECORDS {
            written_before = log.written;
        }
        let key = if write < keys as u64 {
            write
        } else {
            let drawn = uniform(&mut random) * cumulative[keys - 1];
            let rank = cumulative.partition_point(|&sum| sum < drawn) as u64;
            // Neighbouring ranks lie in different segments. The factor is prime, so each key has one rank.
            rank * 2_147_483_647 % keys as u64
        };
        log.clock = write;
        log.append(0, key as u32);
        log.clean(merit);
    }
    (log.written - written_before) as f64 / (3 * CAPACITY_RECORDS) as f64
}

fn main() {
    for live_segments in LIVE_SEGMENTS {
        println!("{:32} {:>8} {:>10} {:>10}", format!("{live_segments} % live"), "uniform", "Zipf 0.99", "hot tenth");
        let workloads = workloads(live_segments * SEGMENT_RECORDS);
        for (name, merit) in FORMULAS {
            let [flat, zipf, hot] = [0, 1, 2].map(|at| amplification(merit, &workloads[at]));
            println!("{name:32} {flat:8.3} {zipf:10.3} {hot:10.3}");
        }
    }
}

/// The weights of the keys, summed up: uniform, Zipf 0.99, and a tenth of the keys that gets nine of ten writes.
fn workloads(keys: usize) -> [Vec<f64>; 3] {
    let cumulative = |weight: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let sums = (1..=keys).scan(0.0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        });
        sums.collect()
    };
    let zipf = cumulative(&|rank| (rank as f64).powf(-0.99));
    let hot = cumulative(&|rank| if rank <= keys / 10 { 81.0 } else { 1.0 });
    [cumulative(&|_| 1.0), zipf, hot]
}
