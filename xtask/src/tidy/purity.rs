//! Purity rules: no `std` in pure crates, no clock, file or socket in deterministic ones, `unsafe` in one crate.
//!
//! The compiler enforces most of them; these checks require the attributes that make it do so.
use super::{TidyFinding, crate_of, is_product};
use crate::tree::Source;

const PURE: [&str; 4] = ["fawn-types", "fawn-chain", "fawn-wire", "fawn-dli"];
const DETERMINISTIC: [&str; 2] = ["fawn-ds", "fawn-node"];
/// The embedded store has a clock, files and threads. The results of an opening's thread are taken in a fixed order, whatever its
/// speed.
const MAY_BE_IMPURE: [&str; 2] = ["crates/fawn-ds/src/store/", "crates/fawn-ds/src/recovery/work_queue.rs"];
const MAY_UNSAFE: &str = "fawn-flash";

/// Names that deterministic code must not use. `std::collections::HashMap` is among them: its order differs by run.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::time",
    "std::thread",
    "std::process",
    "std::env",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "RandomState",
];

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<TidyFinding> {
    let Some(name) = crate_of(&source.path).filter(|_| is_product(source)) else { return Vec::new() };
    let mut findings = Vec::new();
    let root = source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs");
    if root && name != MAY_UNSAFE && !source.text.contains("#![forbid(unsafe_code)]") {
        findings.push(TidyFinding::new(&*source.path, "lacks `#![forbid(unsafe_code)]`"));
    }
    if PURE.contains(&name) {
        if root && !source.text.contains("#![no_std]") {
            findings.push(TidyFinding::new(&*source.path, "a pure crate lacks `#![no_std]`"));
        }
        findings.extend(lines_with(source, &["extern crate std", "cfg_attr(not(test), no_std)"]));
    }
    if DETERMINISTIC.contains(&name) && !MAY_BE_IMPURE.iter().any(|allowed| source.path.starts_with(allowed)) {
        findings.extend(lines_with(source, &IMPURE));
    }
    findings
}

fn lines_with(source: &Source, forbidden: &[&str]) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in forbidden.iter().filter(|word| code.contains(**word)) {
            let place = format!("{}:{}", source.path, number + 1);
            findings.push(TidyFinding::new(place, format!("`{word}` breaks the crate's purity")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Source { path: path.to_owned(), text: text.to_owned() }).len()
    }

    #[test]
    fn planted_faults_are_found() {
        assert_eq!(count("crates/fawn-wire/src/lib.rs", "#![no_std]\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(count("crates/fawn-wire/src/lib.rs", "#![forbid(unsafe_code)]\nextern crate std;\n"), 2);
        assert_eq!(count("crates/fawn-ds/src/engine.rs", "use std::time::Instant;\n"), 1);
        assert_eq!(count("crates/fawn-ds/src/engine.rs", "// no std::time::Instant here\n"), 0);
        assert_eq!(count("crates/fawn-ds/src/store/mod.rs", "use std::time::Instant;\n"), 0);
        assert_eq!(count("crates/fawn-ds/src/recovery/work_queue.rs", "use std::thread::Builder;\n"), 0);
        assert_eq!(count("crates/fawn-ds/src/recovery/mod.rs", "use std::thread::Builder;\n"), 1);
        assert_eq!(count("crates/fawn/src/main.rs", "fn main() {}\n"), 1);
        assert_eq!(count("crates/fawn-flash/src/lib.rs", "mod a;\n"), 0);
    }
}
