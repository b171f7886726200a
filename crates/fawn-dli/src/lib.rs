//! Owns server-side operations as functions from value to value: the string commands first [DLI12 §4.2].
//!
//! Pure: a head hands in the latest pending entry and its own time, and gets back what to write and what to answer.
//! Lists, sets and maps join as modules beside these.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod append;
mod condition;
mod counter;
mod delete;
mod number;
mod set;
mod string;
mod touch;

pub use number::{parse_signed, parse_unsigned};
pub use string::StringOperation;
