//! Syntax of sizes, durations and addresses in flags, environment and files.
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `4096`, `64K`, `256M`, `2G`, `1T`; powers of 1024, a suffix `B` or `iB` is allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size(pub(crate) u64);

/// The binary units, largest first, with their exponents.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a size; expected a number with K, M, G or T, such as 256M");
        let upper = text.trim().to_ascii_uppercase();
        let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &upper[digits.len()..] {
            "" | "B" => 0,
            unit => {
                let batch = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
                UNITS.iter().find(|(name, _)| batch.len() == 1 && batch.starts_with(*name)).ok_or_else(refuse)?.1
            }
        };
        let number: u64 = digits.trim_end().parse().map_err(|_| refuse())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("`{text}` is larger than 2^64 bytes"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{name}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A ratio with at most two decimals: `1.4`, `2`, `1.25`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ratio {
    pub(crate) percent: u64,
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a ratio; expected a number with at most two decimals, such as 1.4");
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
            return Err(refuse());
        }
        let (whole, hundredths): (u32, u64) =
            (whole.parse().map_err(|_| refuse())?, format!("{decimals:0<2}").parse().map_err(|_| refuse())?);
        Ok(Self { percent: u64::from(whole) * 100 + hundredths })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.percent / 100, self.percent % 100)
    }
}

/// A duration: `250ms`, `10s`, `5m`, `2h`, `30d`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeSpan(pub(crate) Duration);

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a span of time; expected a number with ms, s, m, h or d, such as 10s");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().map_err(|_| refuse())?;
        let unit_ms = match &text[digits.len()..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(refuse()),
        };
        number.checked_mul(unit_ms).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(refuse)
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// A listening address: `127.0.0.1:6380`, `localhost:6380`, `[::1]:6380`, or `off`. Port 0 takes any free one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// No listener.
    Off,
    /// This address.
    At(SocketAddr),
}

impl Endpoint {
    /// The address, unless it is off.
    pub(crate) const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let refuse = |detail: &str| format!("`{text}` is not an address ({detail}); expected HOST:PORT or `off`");
        if let Ok(address) = text.parse() {
            return Ok(Self::At(address));
        }
        if !text.contains(':') {
            return Err(refuse("no port"));
        }
        let mut found = text.to_socket_addrs().map_err(|error| refuse(&error.to_string()))?;
        found.next().map(Self::At).ok_or_else(|| refuse("the name has no address"))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, Ratio, Size, TimeSpan};

    #[test]
    fn sizes_read_back_as_written() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64K", 65_536), ("256M", 256 << 20), ("3T", 3 << 40)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)), "{text}");
        }
        for (text, bytes) in [("1GiB", 1 << 30), ("5mb", 5 << 20), ("7b", 7)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "12Q", "1KM", "99999999999T"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn ratios_have_at_most_two_decimals() {
        for (text, percent) in [("1.4", 140), ("2", 200), ("1.25", 125), ("0.05", 5), ("10.0", 1000)] {
            assert_eq!(text.parse(), Ok(Ratio { percent }), "{text}");
            assert_eq!(Ratio { percent }.to_string().parse(), Ok(Ratio { percent }), "{text}");
        }
        for text in ["", ".", "1.", ".5", "1.234", "-1", "1e3", "nan", "99999999999"] {
            assert!(text.parse::<Ratio>().is_err(), "{text}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        assert_eq!("250ms".parse::<TimeSpan>().map(|span| span.0.as_millis()), Ok(250));
        assert_eq!("5m".parse::<TimeSpan>().map(|span| span.to_string()), Ok("300s".to_owned()));
        assert_eq!("30d".parse::<TimeSpan>().map(|span| span.to_string()), Ok("2592000s".to_owned()));
        for text in ["", "5", "s", "-5s", "5w", "99999999999999999999s", "9999999999999999999h"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_are_addresses_or_off() {
        assert_eq!("off".parse(), Ok(Endpoint::Off));
        assert!(matches!("localhost:1".parse(), Ok(Endpoint::At(address)) if address.ip().is_loopback()));
        for text in ["", "6380", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
