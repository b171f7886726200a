//! Seeds: any text, such as a git hash, from which each purpose gets its own random stream.
use fawn_types::checksum::checksum64;
use fawn_types::random::SplitMix64;

/// The text that determines a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    text: String,
}

impl Seed {
    /// A seed from any text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// The seed's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A separate number per purpose, so that an additional draw for one purpose does not shift the others.
    #[must_use]
    pub fn number(&self, purpose: &str) -> u64 {
        let mut named = self.text.clone().into_bytes();
        named.push(0);
        named.extend_from_slice(purpose.as_bytes());
        checksum64(&named)
    }

    /// The random stream of a purpose.
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
