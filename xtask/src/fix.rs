//! The fixer: formats the code, regenerates the pages that derive from it, lowers the list of exceptions.
use crate::{steps, tidy};

/// Runs all fixes.
pub(crate) fn run() -> Result<(), String> {
    steps::run("cargo", &["fmt", "--all"])?;
    // The test that holds docs/guide/commands.md to the command table rewrites the page when told to.
    steps::run_with("cargo", &["test", "--quiet", "-p", "fawn-wire", "commands_page"], &[("FAWN_REGENERATE", "1")])?;
    tidy::regenerate_code_map()?;
    tidy::lower_exceptions()
}
