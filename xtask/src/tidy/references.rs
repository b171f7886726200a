//! References to pages: every `*.md` that code or a page names is in the tree.
use super::TidyFinding;
use crate::tree::{self, Source};

/// Checks the references of all text files.
pub(crate) fn check<'a>(sources: impl Iterator<Item = &'a Source>) -> Result<Vec<TidyFinding>, String> {
    let paths = tree::paths()?;
    Ok(sources.flat_map(|source| check_source(source, &paths)).collect())
}

fn check_source(source: &Source, paths: &[String]) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for reference in references(line) {
            if !resolves(reference, &source.path, paths) {
                let place = format!("{}:{}", source.path, number + 1);
                findings.push(TidyFinding::new(place, format!("names `{reference}`, which is not in the tree")));
            }
        }
    }
    findings
}

/// The words of a line that end in `.md`. A pattern such as `*.md` names no page.
fn references(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-*".contains(c);
    line.split(move |c| !is_path(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.len() > 3 && word.ends_with(".md") && !word.contains('*'))
}

/// From the root, from the file's folder, or by its bare name in `docs/`.
fn resolves(reference: &str, from: &str, paths: &[String]) -> bool {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let relative = normalise(&format!("{folder}/{reference}"));
    let bare = !reference.contains('/');
    paths.iter().any(|path| {
        *path == normalise(reference)
            || *path == relative
            || (bare && path.starts_with("docs/") && path.rsplit('/').next() == Some(reference))
    })
}

fn normalise(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_faults_are_found() {
        let paths = ["README.md", "docs/design/storage.md"].map(str::to_owned);
        let check = |path: &str, text: &str| {
            check_source(&Source { path: path.to_owned(), text: text.to_owned() }, &paths).len()
        };
        assert_eq!(check("crates/a/src/b.rs", "// See storage.md § 2, README.md, *.md.\n"), 0);
        assert_eq!(check("docs/guide/a.md", "[s](../design/storage.md)\n"), 0);
        assert_eq!(check("crates/a/src/b.rs", "// See gone.md.\n"), 1);
        assert_eq!(check("docs/guide/a.md", "[s](storage/storage.md)\n"), 1);
    }
}
