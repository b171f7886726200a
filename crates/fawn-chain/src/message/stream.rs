//! Splitting of a byte stream into frames, regardless of how the bytes arrive in pieces.
use super::decode::frame_bytes;
use super::{Frame, PREFIX_BYTES, decode_frame};
use alloc::vec::Vec;
use fawn_types::bytes::DecodeError;

/// A corrupt stream: its frame boundaries are lost, so the link must be closed and reconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("peer stream corrupt {offset_bytes} bytes after its start: {cause}; close the link and connect again")]
pub struct StreamError {
    /// Offset of the corrupt frame.
    pub offset_bytes: u64,
    /// The decoding error.
    pub cause: DecodeError,
}

/// A longer buffer is freed once its frame is taken.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Bytes received on one link and not yet taken as frames: at most one frame and the piece that contains its end.
#[derive(Clone, Debug, Default)]
pub struct FrameStream {
    buffer: Vec<u8>,
    /// Bytes at the front that were already taken.
    taken: usize,
    /// Offset in the stream of the buffer's first byte.
    offset_bytes: u64,
    broken: Option<StreamError>,
}

impl FrameStream {
    /// A stream for a new link.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes. Callers read bounded pieces and take all frames before the next piece, which bounds the
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

    /// As [`FrameStream::push`] of `piece` and [`FrameStream::next_frame`], but a frame that is entirely within the
    /// piece is not copied. Removes the consumed bytes from `piece`; with `None`, that is all of them.
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

    /// The next whole frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// If the stream is corrupt; every later call returns the same error.
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

    /// Bytes held that are not part of a returned frame.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len() - self.taken
    }
}
