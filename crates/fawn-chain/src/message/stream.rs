//! Owns the cutting of a byte stream into frames: pieces may be cut and joined anywhere.
use super::decode::frame_bytes;
use super::{Frame, PREFIX_BYTES, decode_frame};
use crate::bytes::DecodeError;
use alloc::vec::Vec;

/// Why a stream is over: after damage its frame boundaries are lost, so the link is closed and opened anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("peer stream damaged {offset_bytes} bytes after its start: {cause}; close the link and connect again")]
pub struct StreamError {
    /// Where the damaged frame begins.
    pub offset_bytes: u64,
    /// What is wrong.
    pub cause: DecodeError,
}

/// A longer buffer goes back to the system once its frame is taken.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Bytes received on one link and not yet taken as frames; never more than one frame and what came with its end.
#[derive(Clone, Debug, Default)]
pub struct FrameStream {
    buffer: Vec<u8>,
    /// Bytes at the front that were taken already.
    taken: usize,
    /// Bytes of the stream before the buffer's first.
    offset_bytes: u64,
    broken: Option<StreamError>,
}

impl FrameStream {
    /// Of a new link.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they came. Callers read bounded pieces and take all frames between two pieces, which bounds the
    /// buffer by [`super::FRAME_BYTES_MAX`] and one piece.
    pub fn push(&mut self, piece: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.offset_bytes += self.taken as u64;
            self.taken = 0;
        }
        if self.broken.is_none() {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// As [`FrameStream::push`] of `piece` and [`FrameStream::next_frame`], but a frame that lies in the piece as a whole
    /// is not copied. What is taken leaves `piece`; with `None` all of it is.
    ///
    /// # Errors
    /// As [`FrameStream::next_frame`].
    pub fn next_frame_of<'a, 'p: 'a>(&'a mut self, piece: &mut &'p [u8]) -> Result<Option<Frame<'a>>, StreamError> {
        let is_at_frame = self.buffered_bytes() == 0 && self.broken.is_none();
        if is_at_frame {
            self.offset_bytes += core::mem::take(&mut self.taken) as u64;
            self.buffer.clear();
            if self.buffer.capacity() > BUFFER_BYTES_KEPT {
                self.buffer = Vec::new();
            }
        }
        match piece.first_chunk::<PREFIX_BYTES>().filter(|_| is_at_frame).map(frame_bytes) {
            Some(Ok(total)) if total <= piece.len() => {
                let (bytes, rest) = piece.split_at(total);
                *piece = rest;
                let offset_bytes = self.offset_bytes;
                self.offset_bytes += total as u64;
                match decode_frame(bytes) {
                    Ok(frame) => Ok(Some(frame)),
                    Err(cause) => Err(*self.broken.insert(StreamError { offset_bytes, cause })),
                }
            }
            _ => {
                self.push(core::mem::take(piece));
                self.next_frame()
            }
        }
    }

    /// The next whole frame; `None` until more bytes come.
    ///
    /// # Errors
    /// When the stream is damaged; every later call says the same.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, StreamError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let start = self.taken;
        let offset_bytes = self.offset_bytes + start as u64;
        let Some(prefix) = self.buffer[start..].first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let total = match frame_bytes(prefix) {
            Ok(total) => total,
            Err(cause) => return Err(*self.broken.insert(StreamError { offset_bytes, cause })),
        };
        let Some(bytes) = self.buffer.get(start..start + total) else { return Ok(None) };
        self.taken += total;
        match decode_frame(bytes) {
            Ok(frame) => Ok(Some(frame)),
            Err(cause) => Err(*self.broken.insert(StreamError { offset_bytes, cause })),
        }
    }

    /// Bytes held that no frame was made of yet.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() - self.taken
    }
}
