//! Checksums of the pages of verified frames: an open rewrites only bytes that match them.
//!
//! The end of a log is read twice: by the scan, and again before its last pages are rewritten. Without the comparison, a
//! second read that is misdirected would overwrite synced frames with other bytes.
use super::FRAMES_OFFSET;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::checksum::checksum64;

/// The checksums of one segment's pages, up to the end of its last valid frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageSums {
    sums: Vec<u64>,
    /// The bytes of the last page, up to the end of the frames.
    partial: Vec<u8>,
}

impl PageSums {
    /// Adds the bytes of the next verified frame; the first one begins at [`FRAMES_OFFSET`].
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - self.partial.len()));
            if part.len() == PAGE_BYTES {
                self.sums.push(checksum64(part));
            } else {
                self.partial.extend_from_slice(part);
            }
            if self.partial.len() == PAGE_BYTES {
                self.sums.push(checksum64(&self.partial));
                self.partial.clear();
            }
            bytes = rest;
        }
    }

    /// Whether these bytes, read from this page's offset on, are those of the verified frames as far as these extend.
    pub(crate) fn match_pages(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(first) = offset.checked_sub(u64::from(FRAMES_OFFSET)).map(|from| from as usize / PAGE_BYTES) else {
            return false;
        };
        bytes.chunks(PAGE_BYTES).zip(first..).all(|(page, i)| match self.sums.get(i) {
            Some(&sum) => page.len() == PAGE_BYTES && checksum64(page) == sum,
            None => i == self.sums.len() && page.starts_with(&self.partial),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_match_whatever_pieces_the_bytes_came_in() {
        let bytes: Vec<u8> = (0..3 * PAGE_BYTES + 100).map(|i| (i % 251) as u8).collect();
        for piece in [1, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, bytes.len()] {
            let mut sums = PageSums::default();
            bytes.chunks(piece).for_each(|piece| sums.add(piece));
            let at = |page: usize| u64::from(FRAMES_OFFSET) + (page * PAGE_BYTES) as u64;
            assert!(sums.match_pages(at(0), &bytes) && sums.match_pages(at(2), &bytes[2 * PAGE_BYTES..]));
            let mut page = bytes[3 * PAGE_BYTES..].to_vec();
            page.resize(PAGE_BYTES, 9);
            assert!(sums.match_pages(at(3), &page), "bytes behind the frames do not count");
            page[99] ^= 1;
            assert!(!sums.match_pages(at(3), &page), "the last byte of the frames does");
            assert!(!sums.match_pages(at(1), &bytes[..PAGE_BYTES]), "another page");
            assert!(!sums.match_pages(0, &bytes[..PAGE_BYTES]), "no page of frames");
        }
    }
}
