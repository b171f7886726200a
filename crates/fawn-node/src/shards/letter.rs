//! Owns the letter: what one shard hands another at once.

/// What one shard hands another at once, in the order of its pieces. Only the two shards look into it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Letter {
    bytes: Vec<u8>,
}

impl Letter {
    /// Bytes in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}
