//! Server-side operations as pure functions from value to value: the string commands [DLI12 §4.2].
//!
//! The head of a chain passes in the latest pending entry and its own time; the result is the effect to write and the
//! reply. Further data types are further modules.
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
