//! Owns what a comparison is quoted as: the median of the pairs' ratios, with minimum and maximum.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_min_max() {
        assert_eq!(Ratios::of(vec![]), None);
        assert_eq!(Ratios::of(vec![3.0, 1.0, 2.0]), Some(Ratios { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Ratios::of(vec![4.0, 1.0]), Some(Ratios { min: 1.0, median: 2.5, max: 4.0 }));
    }
}
