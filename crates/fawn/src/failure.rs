//! Failures of a command: exit code and message, and the one place where they are reported to the user.
//!
//! An error that ends a command becomes one of these: the code and the text are all that counts.
use crate::printing::print_note;
use fawn_ds::internals::DumpError;
use std::fmt::Display;
use std::process::ExitCode;

/// Section on exit codes in `fawn --help`; docs/guide/operations.md has the same table.
pub(crate) const MANUAL: &str = "\
Exit codes:
  0  done
  1  failed; the message says where and what to do
  2  the command line, environment or configuration file is wrong
  3  the data directory cannot be used: in use, no permission, newer format, corrupt
  4  the server cannot be reached, or answered with an error
  5  rows of the input were bad (fawn load without --skip-bad), or a dump is cut short or changed
  6  no such key (fawn get, fawn del)
  7  cannot listen on an address
  8  the store is damaged, and the dump has what is left of it; or a repair lost more than it showed

Documentation: docs/guide/operations.md. Logs go to standard error; FAWN_LOG=debug shows more.";

/// Failures of a command. The numbers are part of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Any failure without a number of its own.
    Failed = 1,
    /// Wrong flags, environment or file; clap uses the same number.
    Usage = 2,
    /// The data directory cannot be used.
    Data = 3,
    /// The server cannot be reached or replied with an error.
    Server = 4,
    /// Rows could not be loaded, or a dump is not as it was written.
    BadRows = 5,
    /// No such key.
    Absent = 6,
    /// Cannot listen on an address.
    Address = 7,
    /// A dump has only what is left of a damaged store; or a repaired copy, less than the list before the question said.
    Lost = 8,
}

/// A failed command: message and exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure with a message.
    pub(crate) fn new(exit: Exit, message: impl ToString) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// Converts an error that concerns `what`.
    pub(crate) fn about<E: Display>(exit: Exit, what: impl Display) -> impl Fn(E) -> Self {
        move |error| Self::new(exit, format!("{what}: {error}"))
    }

    /// A copy into `dir` without space: its keys are no server's to delete.
    pub(crate) fn no_space(dir: impl Display) -> Self {
        let remedy = "free space there, or choose a directory on another disk";
        Self::new(Exit::Failed, format!("no space left on the device of {dir}; {remedy}"))
    }

    /// A failure without a message (`fawn get` of an absent key prints nothing).
    pub(crate) const fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new() }
    }

    /// Prints the message on standard error.
    pub(crate) fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            print_note(format_args!("fawn: {}", self.message));
        }
        ExitCode::from(self.exit as u8)
    }
}

impl From<DumpError<Self>> for Failure {
    fn from(error: DumpError<Self>) -> Self {
        match error {
            DumpError::Visitor(failure) => failure,
            DumpError::Device(error) => Self::new(Exit::Failed, error),
        }
    }
}
