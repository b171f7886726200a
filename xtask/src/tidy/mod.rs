//! Lint rules of this project: one file per rule, each tested with planted violations.
mod architecture;
mod circles;
mod commits;
mod dependencies;
mod length;
mod names;
mod prose;
mod purity;
mod ratchet;
mod references;
mod words;

use crate::tree::{self, Source};

/// A violation of a rule: its place, and the fix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TidyFinding {
    /// Path, with `:line` if known.
    pub(crate) place: String,
    /// The violation and how to fix it.
    pub(crate) what: String,
}

impl TidyFinding {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

/// Checks every rule on the checkout and reports every finding.
pub(crate) fn run() -> Result<(), String> {
    let rust = tree::sources(|path| path.ends_with(".rs"))?;
    let texts = tree::sources(is_text)?;
    if rust.is_empty() {
        return Err("no Rust file found: wrong directory?".to_owned());
    }
    let mut findings = Vec::new();
    for source in &rust {
        findings.extend(length::check(source));
        findings.extend(purity::check(source));
        findings.extend(words::check_rust(source));
    }
    findings.extend(texts.iter().flat_map(words::check_text));
    findings.extend(circles::check(&rust));
    findings.extend(dependencies::check()?);
    findings.extend(architecture::check(&rust)?);
    findings.extend(commits::check()?);
    // The tidy tests plant references to pages that do not exist.
    findings.extend(references::check(texts.iter().filter(|source| !source.path.starts_with("xtask/src/tidy/")))?);
    findings.extend(ratchet::check(&counts()?)?);
    for finding in &findings {
        println!("{}: {}", finding.place, finding.what);
    }
    println!("tidy: {} Rust files, {} text files, {} findings", rust.len(), texts.len(), findings.len());
    if findings.is_empty() { Ok(()) } else { Err(format!("{} lint rules broken", findings.len())) }
}

/// Regenerates the table of the code map.
pub(crate) fn regenerate_code_map() -> Result<(), String> {
    architecture::regenerate(&tree::sources(|path| path.ends_with(".rs"))?)
}

/// Lowers the list of exceptions to the current counts.
pub(crate) fn lower_exceptions() -> Result<(), String> {
    ratchet::lower(&counts()?)
}

/// Counts of the rules that have exceptions.
fn counts() -> Result<Vec<ratchet::Count>, String> {
    let rust = tree::sources(|path| path.ends_with(".rs"))?;
    let pages = tree::sources(|path| path.ends_with(".md") && is_text(path))?;
    let mut counts: Vec<_> = rust.iter().flat_map(prose::check_rust).collect();
    counts.extend(pages.iter().flat_map(prose::check_page));
    counts.extend(names::check(&rust).map_err(|finding| format!("{}: {}", finding.place, finding.what))?);
    Ok(counts)
}

fn is_text(path: &str) -> bool {
    !path.starts_with("eval/results/") && !path.ends_with("Cargo.lock")
}

/// The crate that a path belongs to: `crates/NAME/…`.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// Whether the file is product code: in a crate's `src`, not a test, bench or example.
fn is_product(source: &Source) -> bool {
    let test = source.path.contains("/tests/") || source.path.ends_with("/tests.rs");
    crate_of(&source.path).is_some() && source.path.contains("/src/") && !test
}
