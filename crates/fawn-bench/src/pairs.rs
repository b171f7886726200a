//! Owns how two sides are compared: in turn (A B A B …), each pair's ratio kept, median with min and max.
use crate::{BenchError, Row};

/// Fewest pairs that a comparison is quoted from.
pub const PAIRS_MIN: usize = 5;

/// The ratios of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Smallest.
    pub min: f64,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Ratios {
    /// Of the ratios of single pairs; `None` without any.
    #[must_use]
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        let (min, max) = (*ratios.first()?, *ratios.last()?);
        let middle = ratios.len() / 2;
        let median = if ratios.len().is_multiple_of(2) {
            f64::midpoint(ratios[middle - 1], ratios[middle])
        } else {
            ratios[middle]
        };
        Some(Self { min, median, max })
    }
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} (min {:.3}, max {:.3})", self.median, self.min, self.max)
    }
}

/// Runs `ours` and `peer` in turn, `pairs` times, hands every row to `emit` as it comes, and returns ours / peer in
/// rate and in CPU per operation.
///
/// # Errors
/// The first error of either side.
pub fn compare(
    pairs: usize,
    mut ours: impl FnMut() -> Result<Row, BenchError>,
    mut peer: impl FnMut() -> Result<Row, BenchError>,
    mut emit: impl FnMut(&Row),
) -> Result<(Option<Ratios>, Option<Ratios>), BenchError> {
    let (mut rates, mut cpus) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let a = ours()?.with("pair", pair);
        emit(&a);
        let b = peer()?.with("pair", pair);
        emit(&b);
        rates.push(a.ops_per_s / b.ops_per_s);
        if let (Some(a), Some(b)) = (a.cpu_us_per_op, b.cpu_us_per_op) {
            cpus.push(a / b);
        }
    }
    Ok((Ratios::of(rates), Ratios::of(cpus)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_min_max() {
        assert_eq!(Ratios::of(vec![]), None);
        assert_eq!(Ratios::of(vec![3.0, 1.0, 2.0]), Some(Ratios { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Ratios::of(vec![4.0, 1.0]), Some(Ratios { min: 1.0, median: 2.5, max: 4.0 }));
    }

    #[test]
    fn sides_run_in_turn_and_each_pair_is_kept() {
        let side = |name: &str, rate: f64| Row { ops_per_s: rate, ..Row::new("store", name, "get") };
        let mut seen = Vec::new();
        let (rate, cpu) =
            compare(2, || Ok(side("a", 30.0)), || Ok(side("b", 10.0)), |row| seen.push(row.engine.clone())).unwrap();
        assert_eq!(seen, ["a", "b", "a", "b"]);
        assert_eq!((rate.unwrap().median, cpu), (3.0, None));
    }
}
