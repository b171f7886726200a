//! Owns FAWN-DS: a log-structured hash store that answers a lookup with at most one flash read [FAWN09 §3.3].
//!
//! `format` is what lies on flash, byte for byte, and pure; `docs/formats/fawn-ds.md` describes it.
#![forbid(unsafe_code)]

pub mod format;
pub mod index;

pub use index::Pointer;
