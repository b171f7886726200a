//! RESP request framing: locates the arguments of an array, and resumes after an incomplete request.
use crate::CodecLimits;
use fawn_types::limits::REQUEST_ARGS_MAX;

/// Number of leading arguments whose positions are recorded; `SET key value GET EX 10` has as many.
pub(crate) const SPANS: usize = 6;
/// Maximum length of a length line, bytes: more than the digits of 64 bits need, but still a bounded amount of memory.
const LENGTH_LINE_BYTES_MAX: usize = 32;

/// Positions of the first arguments: (offset, length) relative to the start of the request.
pub(crate) type Spans = [(u32, u32); SPANS];

/// The position reached in an incomplete request, from which framing resumes once there are more bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanResume {
    /// Position of the next argument; 0: at the start of the request.
    at: usize,
    /// Number of arguments before `at`.
    args: usize,
}

impl ScanResume {
    pub(crate) const fn is_start(&self) -> bool {
        self.at == 0
    }
}

/// The remaining part of a rejected request, dropped as it arrives and never buffered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Discard {
    /// Bytes left of the current argument, including its line end.
    bytes: u64,
    /// Number of further arguments.
    args: usize,
}

/// A complete request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RespFrame {
    pub(crate) spans: Spans,
    /// Number of arguments, including the command's name.
    pub(crate) count: usize,
    /// Position where the arguments begin.
    pub(crate) body: usize,
    pub(crate) consumed: usize,
}

/// The reason why there is no complete request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameStop {
    /// At least this many bytes are needed, from the start of the request.
    Need(usize),
    /// An empty array of this many bytes, ignored as in Redis.
    Empty(usize),
    /// An argument of `len` bytes exceeds the maximum value length. The rest to drop starts at `at`.
    TooLong { len: u64, at: usize, discard: Discard },
    /// The start of the next request is unknown: the connection must be closed.
    Protocol(ProtocolError),
}

/// Framing violations; the variants correspond to Redis's errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProtocolError {
    MultibulkLength,
    BulkLength,
    ExpectedDollar(u8),
    BulkEnd,
    TooLarge(usize),
}

/// Frames the array at the start of `input`, which must begin with `*`.
#[inline]
pub(crate) fn scan(input: &[u8], limits: &CodecLimits, resume: &mut ScanResume) -> Result<RespFrame, FrameStop> {
    let (count, body) = array_length(input)?;
    let mut spans = [(0, 0); SPANS];
    let from = core::mem::take(resume);
    let resumed = from.at != 0 && from.at <= input.len();
    let (mut at, mut index) = if resumed { (from.at, from.args) } else { (body, 0) };
    while index < count {
        let stopped = |stop: FrameStop, resume: &mut ScanResume| {
            *resume = ScanResume { at, args: index };
            stop
        };
        let (len, start) = match short_length(input, at) {
            Some(found) => found,
            None => bulk_length(input, at).map_err(|stop| stopped(stop, resume))?,
        };
        let end = start + len + 2;
        // Framing does not know which arguments are keys, so the longer of the two limits applies to all.
        if len > limits.value_bytes_max.max(fawn_types::limits::KEY_BYTES_MAX) {
            let discard = Discard { bytes: len as u64 + 2, args: count - index - 1 };
            return Err(FrameStop::TooLong { len: len as u64, at: start, discard });
        }
        if end > limits.request_bytes_max {
            return Err(FrameStop::Protocol(ProtocolError::TooLarge(limits.request_bytes_max)));
        }
        match input.get(end - 2..end) {
            Some(b"\r\n") => {}
            Some(_) => return Err(FrameStop::Protocol(ProtocolError::BulkEnd)),
            None => return Err(stopped(FrameStop::Need(end), resume)),
        }
        if let Some(span) = spans.get_mut(index) {
            *span = (start as u32, len as u32);
        }
        at = end;
        index += 1;
    }
    if resumed {
        // All arguments are complete and verified, but those before the resumption have no spans yet.
        note_spans(input, body, count, &mut spans);
    }
    Ok(RespFrame { spans, count, body, consumed: at })
}

#[cold]
fn note_spans(input: &[u8], body: usize, count: usize, spans: &mut Spans) {
    let mut at = body;
    for span in spans.iter_mut().take(count) {
        let Some((len, start)) = crate::number::length_line(input, at + 1) else { return };
        *span = (start as u32, len as u32);
        at = start + len + 2;
    }
}

/// Parses the array's length; returns it with the position of the first argument.
#[inline]
fn array_length(input: &[u8]) -> Result<(usize, usize), FrameStop> {
    // Fast path: one digit.
    if let [b'*', digit @ b'1'..=b'9', b'\r', b'\n', ..] = input {
        return Ok((usize::from(digit - b'0'), 4));
    }
    let error = FrameStop::Protocol(ProtocolError::MultibulkLength);
    match signed_line(input, 1, error)? {
        (count, end) if count <= 0 => Err(FrameStop::Empty(end)),
        (count, end) if count as u64 <= REQUEST_ARGS_MAX as u64 => Ok((count as usize, end)),
        _ => Err(error),
    }
}

/// Fast path for a length of one or two digits, as most keys, options and small values have.
#[inline]
fn short_length(input: &[u8], at: usize) -> Option<(usize, usize)> {
    match *input.get(at..at + 5)? {
        [b'$', ones @ b'0'..=b'9', b'\r', b'\n', _] => Some((usize::from(ones - b'0'), at + 4)),
        [b'$', tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n'] => {
            Some((usize::from(tens - b'0') * 10 + usize::from(ones - b'0'), at + 5))
        }
        _ => None,
    }
}

/// Parses an argument's length; returns it with the position of the content.
fn bulk_length(input: &[u8], at: usize) -> Result<(usize, usize), FrameStop> {
    match input.get(at) {
        Some(b'$') => {
            let error = FrameStop::Protocol(ProtocolError::BulkLength);
            match signed_line(input, at + 1, error)? {
                // Redis has the same limit of 512 MiB. A larger length most likely means a broken stream.
                (len, start) if (0..=512 << 20).contains(&len) => Ok((len as usize, start)),
                _ => Err(error),
            }
        }
        Some(other) => Err(FrameStop::Protocol(ProtocolError::ExpectedDollar(*other))),
        None => Err(FrameStop::Need(at + 1)),
    }
}

/// Parses the signed number at `at`; returns it with the position after its line end.
fn signed_line(input: &[u8], at: usize, error: FrameStop) -> Result<(i64, usize), FrameStop> {
    let line = input.get(at..).unwrap_or_default();
    let Some(end) = line.iter().take(LENGTH_LINE_BYTES_MAX).position(|byte| *byte == b'\r') else {
        // Fail early if no further bytes can make this a valid line.
        let hopeless = line.len() >= LENGTH_LINE_BYTES_MAX || line.iter().any(|b| !matches!(b, b'-' | b'0'..=b'9'));
        return Err(if hopeless { error } else { FrameStop::Need(input.len() + 1) });
    };
    match line.get(end + 1) {
        Some(b'\n') => crate::number::parse_i64(&line[..end]).map(|number| (number, at + end + 2)).ok_or(error),
        Some(_) => Err(error),
        None => Err(FrameStop::Need(input.len() + 1)),
    }
}

impl Discard {
    pub(crate) const fn is_active(&self) -> bool {
        self.bytes > 0 || self.args > 0
    }

    /// Drops as much of `input` as possible; returns the number of bytes dropped, or the reason why none was.
    pub(crate) fn step(&mut self, input: &[u8]) -> Result<usize, FrameStop> {
        let mut at = 0;
        while self.is_active() {
            if self.bytes == 0 {
                match bulk_length(input, at) {
                    Ok((len, start)) => (self.bytes, self.args, at) = (len as u64 + 2, self.args - 1, start),
                    Err(FrameStop::Need(_)) if at > 0 => break,
                    Err(stop) => return Err(stop),
                }
            }
            let taken = self.bytes.min((input.len() - at) as u64);
            self.bytes -= taken;
            at += taken as usize;
            if self.bytes > 0 {
                break;
            }
        }
        if at == 0 { Err(FrameStop::Need(1)) } else { Ok(at) }
    }
}
