//! Lines on standard output and standard error: one that cannot be written never ends a command's work.
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

/// The first line of the result that could not be written.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();

/// Prints a line of the command's result on standard output. After a failed write the command continues, and fails at its
/// end: [`first_error`].
pub(crate) fn print_result(line: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        // Only the first error counts.
        let _ = UNWRITTEN.set(error);
    }
}

/// A count of things in words: `1 key`, `2 keys`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Prints a message on standard error, if that can be written.
pub(crate) fn print_note(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Why a line of the result could not be written, if so.
pub(crate) fn first_error() -> Option<&'static std::io::Error> {
    UNWRITTEN.get()
}
