//! The result of a comparison: the median of the pairs' ratios, with minimum and maximum.

/// Minimum number of pairs for a valid comparison.
pub const PAIRS_MIN: usize = 5;

/// The ratios of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// The smallest ratio.
    pub min: f64,
    /// The median: the middle ratio, or the mean of the two middle ones.
    pub median: f64,
    /// The largest ratio.
    pub max: f64,
}

impl Ratios {
    /// Computes median, minimum and maximum of the pairs' ratios; `None` if there are none.
    #[must_use]
    pub fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        let (min, max) = (*ratios.first()?, *ratios.last()?);
        Some(Self { min, median: median_of(&ratios), max })
    }
}

/// The middle one of these ascending values, or the mean of the two middle ones; 0 of none.
pub(crate) fn median_of(ascending: &[f64]) -> f64 {
    let at = |index: usize| ascending.get(index).copied().unwrap_or_default();
    let middle = ascending.len() / 2;
    if ascending.len().is_multiple_of(2) { f64::midpoint(at(middle.wrapping_sub(1)), at(middle)) } else { at(middle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_min_max() {
        assert_eq!((Ratios::of(vec![]), median_of(&[])), (None, 0.0));
        assert_eq!(Ratios::of(vec![3.0, 1.0, 2.0]), Some(Ratios { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Ratios::of(vec![4.0, 1.0]), Some(Ratios { min: 1.0, median: 2.5, max: 4.0 }));
    }
}
