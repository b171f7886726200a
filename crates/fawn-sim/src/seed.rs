//! Owns seeds: any text is one, a git hash for instance; a stream of randomness per purpose comes from it.
use fawn_types::checksum::checksum64;
use fawn_types::random::SplitMix64;

/// What a run is made of, and how a person names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    text: String,
}

impl Seed {
    /// From any text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A number of its own for each purpose, so that a draw more for one does not shift all the others.
    #[must_use]
    pub fn number(&self, purpose: &str) -> u64 {
        let mut named = self.text.clone().into_bytes();
        named.push(0);
        named.extend_from_slice(purpose.as_bytes());
        checksum64(&named)
    }

    /// The stream of a purpose.
    #[must_use]
    pub fn stream(&self, purpose: &str) -> SplitMix64 {
        SplitMix64::new(self.number(purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_and_texts_have_streams_of_their_own() {
        let seed = Seed::new("8125326");
        assert_eq!(seed.number("faults"), Seed::new("8125326").number("faults"));
        assert_ne!(seed.number("faults"), seed.number("clients"));
        assert_ne!(seed.number("faults"), Seed::new("8125327").number("faults"));
    }
}
