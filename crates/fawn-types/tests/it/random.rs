//! Tests of the seeded generator.
use fawn_types::random::SplitMix64;

#[test]
fn bounded_numbers_cover_their_range_and_repeat_with_their_seed() {
    let draw = |seed| {
        let mut random = SplitMix64::new(seed);
        (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert!((0..10).all(|number| draw(7).contains(&number)) && draw(7).iter().all(|&number| number < 10));
}
