//! Trace of a run: a checksum over all events, and the last few notable events as text.
//!
//! Two processes with the same seed must compute the same hash. A difference reveals a choice that the seed does not
//! make.
use fawn_types::checksum::checksum64;
use std::collections::VecDeque;

/// Maximum number of lines kept, enough to see how a failure came about.
const WORDS_MAX: usize = 60;

/// The events of a run so far.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    words: VecDeque<String>,
    scratch: Vec<u8>,
    aloud: bool,
}

impl Trace {
    /// An empty trace; `aloud` prints each line as it is added.
    #[must_use]
    pub fn new(aloud: bool) -> Self {
        Self { aloud, ..Self::default() }
    }

    /// Adds an event: its time, kind, sender, receiver and bytes.
    pub fn note(&mut self, now_us: u64, kind: u8, from: u32, to: u32, bytes: &[u8]) {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.hash.to_le_bytes());
        self.scratch.extend_from_slice(&now_us.to_le_bytes());
        self.scratch.push(kind);
        self.scratch.extend_from_slice(&from.to_le_bytes());
        self.scratch.extend_from_slice(&to.to_le_bytes());
        self.scratch.extend_from_slice(bytes);
        self.hash = checksum64(&self.scratch);
        self.events += 1;
    }

    /// Adds an event with a line of text; the text is part of the hash.
    pub fn say(&mut self, now_us: u64, words: String) {
        self.note(now_us, b'!', 0, 0, words.as_bytes());
        let line = format!("{:>9}.{:03} ms  {words}", now_us / 1000, now_us % 1000);
        if self.aloud {
            println!("{line}");
        }
        if self.words.len() == WORDS_MAX {
            self.words.pop_front();
        }
        self.words.push_back(line);
    }

    /// The checksum of all events.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Number of events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The last lines, oldest first.
    #[must_use]
    pub fn tail(&self) -> String {
        self.words.iter().map(|line| format!("\n  {line}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_time_and_content_count() {
        let run = |events: &[(u64, &[u8])]| {
            let mut trace = Trace::new(false);
            events.iter().for_each(|(at, bytes)| trace.note(*at, b'b', 1, 2, bytes));
            trace.hash()
        };
        let hash = run(&[(1, b"x"), (2, b"y")]);
        assert_eq!(hash, run(&[(1, b"x"), (2, b"y")]));
        for other in [&[(1, &b"y"[..]), (2, b"x")][..], &[(1, b"x"), (3, b"y")], &[(1, b"x")]] {
            assert_ne!(hash, run(other));
        }
    }
}
