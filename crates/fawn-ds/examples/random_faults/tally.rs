//! Counts of the states that runs have met.

macro_rules! tally {
    ($($name:ident),* $(,)?) => {
        /// Counts of a run: a state that was never met has not been tested.
        #[derive(Default, Debug)]
        pub(crate) struct FaultTally {
            $(pub(crate) $name: u64,)*
        }

        impl FaultTally {
            pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

tally! {
    operations, writes, batches, lookups, held_plans, scans, clears, closes, kills, power_losses, openings, failed_openings,
    poisoned, full, resumed, hangs, read_errors, clock_steps, flipped_bits, flips_refused, flips_served, expired,
    segments_cleaned, segments_dropped, moved_records, checkpoints, scrubbed, splits, merges, drops, undecided_changes,
    records_filed, wide_pointers, runs_listed, sweep_parts, tail_frames, tails_applied,
}
