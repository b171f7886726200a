//! Forbidden text: unfinished code, disabled tests, paths of one machine, hosts of registries.
use super::{TidyFinding, is_product};
use crate::tree::Source;

// In pieces, so that the check does not match this file.
const NEVER: [(&str, &str); 6] = [
    (concat!("todo", "!("), "finish it or leave it out"),
    (concat!("unimplemented", "!("), "finish it or leave it out"),
    (concat!("FIX", "ME"), "mend it or open an issue"),
    (concat!("XX", "X:"), "mend it or open an issue"),
    (concat!("#[", "ignore"), "a disabled test shows nothing"),
    (concat!("thread::", "sleep"), "sleep is not synchronisation"),
];
const MACHINE: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("crates", ".io/api"), concat!("registry.npm", "js.org")];
const UNWRAP: [&str; 2] = [concat!(".unw", "rap()"), concat!(".exp", "ect(\"")];

/// Checks a Rust file.
pub(crate) fn check_rust(source: &Source) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let mut in_tests = false;
    for (number, line) in source.text.lines().enumerate() {
        let place = || format!("{}:{}", source.path, number + 1);
        in_tests |= line.trim_start().starts_with("#[cfg(test)]");
        for (word, advice) in NEVER.iter().filter(|(word, _)| line.contains(word)) {
            findings.push(TidyFinding::new(place(), format!("`{word}`: {advice}")));
        }
        let code = line.split("//").next().unwrap_or_default();
        if is_product(source) && !in_tests && UNWRAP.iter().any(|word| code.contains(word)) {
            findings.push(TidyFinding::new(
                place(),
                "product code does not unwrap: return an error, or prove it with unreachable!",
            ));
        }
    }
    findings
}

/// Checks any text file.
pub(crate) fn check_text(source: &Source) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for word in MACHINE.iter().filter(|word| line.contains(**word)) {
            let place = format!("{}:{}", source.path, number + 1);
            findings.push(TidyFinding::new(place, format!("`{word}` names one machine or a registry's host")));
        }
    }
    if source.path.starts_with("rust-toolchain") {
        findings.push(TidyFinding::new(&*source.path, "no toolchain file: the newest stable works"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "crates/x/src/a.rs".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn planted_faults_are_found() {
        assert!(check_rust(&source("let a = b?;\n")).is_empty());
        assert_eq!(check_rust(&source(concat!("todo", "!()\n"))).len(), 1);
        assert_eq!(check_rust(&source(concat!("a.unw", "rap();\n"))).len(), 1);
        assert!(check_rust(&source(concat!("#[cfg(test)]\nmod t { a.unw", "rap(); }\n"))).is_empty());
        assert_eq!(check_text(&source(concat!("see /ro", "ot/x\n"))).len(), 1);
        let toolchain = Source { path: "rust-toolchain.toml".to_owned(), text: String::new() };
        assert_eq!(check_text(&toolchain).len(), 1);
    }
}
