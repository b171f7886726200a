//! Placeholder, replaced by the first commit of this crate.
#![forbid(unsafe_code)]
