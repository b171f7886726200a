//! Parsing of sizes, durations and counts in command-line flags.
use std::time::Duration;

/// Minimum memory of a server with one shard.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Parses a number of bytes: `4096`, `64K`, `256M`, `2G`; the units are powers of 1024.
///
/// # Errors
/// The invalid text and the expected format, printed by clap.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || format!("`{text}` is not a size; expected a number with K, M or G, such as 256M");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(refuse()),
    };
    let number: u64 = digits.parse().map_err(|_| refuse())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is larger than 2^64 bytes"))
}

/// Parses a memory budget: a size that `fawn serve` takes too.
///
/// # Errors
/// See [`parse_size`].
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < MEMORY_BYTES_MIN {
        Err(format!("`{text}` is too little memory; expected at least 16M"))
    } else {
        Ok(bytes)
    }
}

/// Parses a number of seconds above zero, possibly with a fraction.
///
/// # Errors
/// See [`parse_size`].
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let refuse = || format!("`{text}` is not a number of seconds; expected a number such as 2 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| refuse())?;
    if seconds <= 0.0 { Err(refuse()) } else { Duration::try_from_secs_f64(seconds).map_err(|_| refuse()) }
}

/// Parses a count of at least one.
///
/// # Errors
/// See [`parse_size`].
pub fn parse_count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| format!("`{text}` is not a number above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_seconds_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_count("7"), Ok(7));
        assert_eq!(parse_memory("16M"), Ok(16 << 20));
        assert!(parse_memory("1K").is_err_and(|error| error.contains("at least 16M")));
        for nonsense in ["", "M", "12X", "-1", "99999999999999999999G"] {
            assert!(parse_size(nonsense).is_err(), "{nonsense}");
        }
        for nonsense in ["", "0", "-1", "nan", "inf", "soon"] {
            assert!(parse_seconds(nonsense).is_err(), "{nonsense}");
        }
        assert!(parse_count("0").is_err());
    }
}
