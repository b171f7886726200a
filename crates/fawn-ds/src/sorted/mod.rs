//! Sorted tier: runs of records in the order of (space, ring key), found by fences and filters of about five bits per key.
//!
//! - [`RunWriter`] writes a run from records in order; [`RunMerge`] puts records of several sources in order.
//! - [`Run`] is an open run: its fences and filters. A lookup is a plan of one page read ([`Run::lookup`], [`Run::resume`]).
//! - [`RunSource`] reads a run's records, or those of a key range, in sequential chunks.
//! - [`RunCheck`] compares all of a run's content with its fences, filters, facts and counts.
//!
//! Nothing here blocks, reads a clock or owns a device, except openings. [`crate::engine`] decides what is sorted and merged.
mod check;
mod fences;
pub mod filter;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod lookup;
mod merge;
mod run;
mod source;
mod writer;

pub use check::RunCheck;
pub use fences::{FenceBuilder, FenceError, Fences, PageSpan};
pub use lookup::{RunLookup, RunPlan};
pub use merge::{Fate, MergeCounts, MergeError, MergeRules, MergeSource, Merged, RunMerge, WinnerFacts, fate};
pub use run::{Run, RunError};
pub use source::{ReadRange, RunSource, SortBuffer, SourceHead};
pub use writer::{Pushed, RunListing, RunWriteError, RunWriter, RunWriterOptions, WriterState};
