//! A framed request, prepared for the command parsers: arguments by position, checked keys and numbers.
use super::frame::{SPANS, Spans};
use super::parse_error::{KEY_TOO_LONG, NOT_AN_INTEGER, ParseError};
use crate::args::{Args, Framing};
use crate::{ReplyFormat, RespFormat, RespVersion, number};
use fawn_types::{TimeMs, limits::KEY_BYTES_MAX};

/// A framed request; argument 0 is the command's name.
pub(crate) struct CommandArgs<'a> {
    /// The whole request, which the spans refer to.
    pub(crate) input: &'a [u8],
    pub(crate) spans: Spans,
    pub(crate) count: usize,
    /// Position of the first argument's framing.
    pub(crate) body: usize,
    pub(crate) framing: Framing,
    pub(crate) version: RespVersion,
    pub(crate) now: TimeMs,
}

impl<'a> CommandArgs<'a> {
    /// The argument at `index`, which must be below `count`.
    #[inline]
    pub(crate) fn arg(&self, index: usize) -> &'a [u8] {
        assert!(index < self.count, "argument {index} of {}", self.count);
        if index < SPANS {
            let (start, len) = self.spans[index];
            return &self.input[start as usize..][..len as usize];
        }
        self.from(index).next().unwrap_or_default()
    }

    /// The argument at `index`, if present.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.count).then(|| self.arg(index))
    }

    /// The arguments from `index` to the end.
    pub(crate) fn from(&self, index: usize) -> Args<'a> {
        let mut args = Args::new(&self.input[self.body..], self.count, self.framing);
        for _ in 0..index {
            args.next();
        }
        args
    }

    /// The key at `index`, with its length checked.
    #[inline]
    pub(crate) fn key(&self, index: usize) -> Result<&'a [u8], ParseError> {
        let key = self.arg(index);
        if key.len() <= KEY_BYTES_MAX { Ok(key) } else { Err(KEY_TOO_LONG) }
    }

    /// The keys: every `step`th argument from 1 on, with their lengths checked.
    pub(crate) fn keys(&self, step: usize) -> Result<Args<'a>, ParseError> {
        let args = self.from(1);
        if args.step_by(step).any(|key| key.len() > KEY_BYTES_MAX) {
            return Err(KEY_TOO_LONG);
        }
        Ok(args)
    }

    /// The signed number at `index`.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, ParseError> {
        number::parse_i64_strict(self.arg(index)).ok_or(NOT_AN_INTEGER)
    }

    /// The encoding of the reply, in the connection's RESP version.
    #[inline]
    pub(crate) const fn format(&self, format: RespFormat) -> ReplyFormat {
        ReplyFormat::Resp(format, self.version)
    }
}
