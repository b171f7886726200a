//! Number of shards, as written in flags, environment and files.
use std::fmt;
use std::str::FromStr;

/// Maximum number of shards of a node.
pub(crate) const SHARDS_MAX: u16 = 64;

/// A number of shards: `4`, or `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShardCount {
    /// One per core when the directory is created.
    Auto,
    /// This number.
    Number(u16),
}

impl FromStr for ShardCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.parse() {
            Ok(number) if (1..=SHARDS_MAX).contains(&number) => Ok(Self::Number(number)),
            _ => Err(format!("`{text}` is not a number of shards; expected 1 to {SHARDS_MAX}, or auto")),
        }
    }
}

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Cores that this process may use, by its affinity and its container's quota.
pub(super) fn cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u16::try_from(cores).unwrap_or(SHARDS_MAX).min(SHARDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::{ShardCount, cores};

    #[test]
    fn numbers_and_auto_read_back_as_written() {
        for text in ["auto", "1", "64"] {
            assert_eq!(text.parse::<ShardCount>().map(|shards| shards.to_string()).as_deref(), Ok(text));
        }
        for text in ["0", "65", "-1", "two", "", "Auto", "1.5"] {
            assert!(text.parse::<ShardCount>().is_err(), "{text}");
        }
        assert!(cores() >= 1);
    }
}
