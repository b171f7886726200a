//! The `fawn` binary.
fn main() {}
