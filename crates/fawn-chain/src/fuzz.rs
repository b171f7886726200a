//! Fuzz functions: arbitrary bytes for every decoder; decoded values must encode to the same bytes.
use crate::map::{decode_map, decode_state, encode_map, encode_state};
use crate::message::{FrameStream, decode_frame, encode_frame};
use alloc::vec::Vec;

/// Fuzzes peer frames: as one frame, as a stream in pieces, and as the images of map and promise.
pub fn peer_frame(data: &[u8]) {
    if let Ok(frame) = decode_frame(data) {
        let mut again = Vec::new();
        encode_frame(&frame, &mut again);
        assert!(again == data, "a frame that decodes is the encoding of what it decodes to");
    }
    let mut stream = FrameStream::new();
    // The first byte determines the length of the pieces.
    let piece = usize::from(data.first().copied().unwrap_or(0)) + 1;
    for bytes in data.chunks(piece) {
        stream.push(bytes);
        while let Ok(Some(_)) = stream.next_frame() {}
        assert!(stream.buffered_bytes() <= data.len());
    }
    if let Ok(map) = decode_map(data) {
        assert!(encode_map(&map) == data, "a map that decodes is the encoding of what it decodes to");
    }
    if let Ok(state) = decode_state(data) {
        assert!(encode_state(&state) == data, "a promise that decodes is the encoding of what it decodes to");
    }
}
