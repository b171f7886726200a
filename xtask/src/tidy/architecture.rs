//! Owns that ARCHITECTURE.md and the tree agree: every path it names exists, every module of every crate is named.
use super::Finding;
use crate::tree;
use std::collections::BTreeSet;

const PAGE: &str = "ARCHITECTURE.md";

/// Checks the page against the checkout.
pub(crate) fn check() -> Result<Vec<Finding>, String> {
    let page = std::fs::read_to_string(tree::root().join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let paths = tree::paths()?;
    Ok(compare(&page, &paths))
}

fn compare(page: &str, paths: &[String]) -> Vec<Finding> {
    let named = named_paths(page);
    let mut findings = Vec::new();
    for path in &named {
        let exists =
            paths.iter().any(|file| file == path || file.starts_with(&format!("{}/", path.trim_end_matches('/'))));
        if !exists {
            findings.push(Finding::new(PAGE, format!("names `{path}`, which is not in the tree")));
        }
    }
    for module in modules(paths) {
        if !named.contains(&module) {
            findings.push(Finding::new(PAGE, format!("does not name `{module}`: add it to the code map")));
        }
    }
    findings
}

/// Paths in backticks that start at the root of the tree.
fn named_paths(page: &str) -> BTreeSet<String> {
    let quoted = page.split('`').skip(1).step_by(2);
    let roots = ["crates/", "docs/", "eval/", "fuzz/", "tests/", "xtask/", ".ci/"];
    quoted
        .filter(|text| roots.iter().any(|root| text.starts_with(root)) && !text.contains(['*', ' ', '<']))
        .map(|text| text.trim_end_matches('/').to_owned())
        .collect()
}

/// The top modules of every crate: `crates/x/src/a` for both `a.rs` and `a/`.
fn modules(paths: &[String]) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for path in paths {
        let parts: Vec<&str> = path.split('/').collect();
        let [root, name, "src", module, rest @ ..] = parts.as_slice() else { continue };
        let is_root = rest.is_empty() && matches!(*module, "lib.rs" | "main.rs");
        if *root == "crates" && !is_root {
            modules.insert(format!("crates/{name}/src/{module}"));
        }
    }
    // A folder with a file of the same name beside it is one module, named by its folder.
    let folders: Vec<String> = modules.iter().filter(|path| !path.contains(".rs")).cloned().collect();
    modules.retain(|path| !folders.iter().any(|folder| *path == format!("{folder}.rs")));
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_faults_are_found() {
        let paths: Vec<String> =
            ["crates/a/src/lib.rs", "crates/a/src/log/mod.rs", "crates/a/src/key.rs"].map(str::to_owned).to_vec();
        let good = "`crates/a/src/log`, `crates/a/src/key.rs` and `cargo build`";
        assert!(compare(good, &paths).is_empty());
        assert_eq!(compare("`crates/a/src/log`", &paths).len(), 1, "a module is missing from the page");
        assert_eq!(compare(&format!("{good} `docs/gone.md`"), &paths).len(), 1, "a path is not in the tree");
    }
}
