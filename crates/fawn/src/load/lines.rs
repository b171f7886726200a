//! Lines of bounded length, counted, with or without a newline at the end of the input.
use std::io::{BufRead, Read};

/// Lines of an input.
#[derive(Debug)]
pub(super) struct InputLines<R> {
    input: R,
    bytes_max: usize,
    /// Number of the last line, from 1.
    pub(super) number: u64,
    pub(super) consumed_bytes: u64,
}

/// Result of reading a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputLine {
    /// End of the input.
    End,
    /// A line was appended, with its newline if it has one.
    Whole,
    /// The line exceeds the limit and was skipped.
    TooLong,
}

impl<R: BufRead> InputLines<R> {
    pub(super) const fn new(input: R, bytes_max: usize) -> Self {
        Self { input, bytes_max, number: 0, consumed_bytes: 0 }
    }

    /// Appends the next line to `line`.
    pub(super) fn read(&mut self, line: &mut Vec<u8>) -> std::io::Result<InputLine> {
        let before = line.len();
        let got = self.input.by_ref().take(self.bytes_max as u64 + 1).read_until(b'\n', line)?;
        if got == 0 {
            return Ok(InputLine::End);
        }
        self.number += 1;
        self.consumed_bytes += got as u64;
        if got > self.bytes_max && line.last() != Some(&b'\n') {
            line.truncate(before);
            self.consumed_bytes += self.input.skip_until(b'\n')? as u64;
            return Ok(InputLine::TooLong);
        }
        Ok(InputLine::Whole)
    }
}
