//! Import rule: the top modules of a crate import each other without a circle, so that each can be read after those below it.
use super::TidyFinding;
use crate::tree::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Crates that keep the rule.
const CRATES: [&str; 1] = ["fawn-node"];

/// Top modules with the modules that each imports, and a file that does so.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>;

/// Checks the crates in the list.
pub(super) fn check(sources: &[Source]) -> Vec<TidyFinding> {
    CRATES.iter().flat_map(|name| check_crate(name, sources)).collect()
}

fn check_crate(name: &str, sources: &[Source]) -> Vec<TidyFinding> {
    let root = format!("crates/{name}/src/");
    let files: Vec<(&str, &Source)> =
        sources.iter().filter_map(|source| Some((source.path.strip_prefix(&root)?, source))).collect();
    let exported =
        files.iter().find(|(path, _)| *path == "lib.rs").map_or(BTreeMap::new(), |(_, lib)| exports(&lib.text));
    let modules: BTreeSet<&str> = files.iter().map(|(path, _)| top_module(path)).collect();
    let mut imports = Imports::new();
    for (path, source) in files.iter().filter(|(path, _)| *path != "lib.rs" && !path.ends_with("tests.rs")) {
        let module = top_module(path);
        for named in named(&source.text) {
            let on = exported.get(named.as_str()).copied().unwrap_or(named.as_str());
            if let Some(on) = modules.get(on).filter(|on| **on != module) {
                imports.entry(module).or_default().insert(on, path);
            }
        }
    }
    circle(imports).map(|text| TidyFinding::new(format!("crates/{name}"), text)).into_iter().collect()
}

fn top_module(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or(path)
}

/// The names that follow `crate::` in code before the tests, alone or in braces.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = lines.join(" ");
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let names = code.split("crate::").skip(1).flat_map(|rest| {
        let list = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        let items: Vec<&str> = list.map_or_else(|| vec![rest], |list| list.split(',').collect());
        items
            .into_iter()
            .map(move |item| item.trim_start().split(|c| !is_part(c)).next().unwrap_or_default().to_owned())
    });
    names.collect()
}

/// Names that the crate's root exports, with their modules.
fn exports(lib: &str) -> BTreeMap<&str, &str> {
    let statements = lib.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()?.split_once("::"));
    let names = statements.flat_map(|(module, names)| {
        names.split(|c: char| !c.is_alphanumeric() && c != '_').map(move |name| (name, module))
    });
    names.collect()
}

/// Describes the modules that import each other in a circle, or that lie between two circles.
fn circle(mut imports: Imports<'_>) -> Option<String> {
    loop {
        let before = imports.len();
        let left: BTreeSet<&str> = imports.keys().copied().collect();
        imports.retain(|_, on| {
            on.retain(|module, _| left.contains(module));
            !on.is_empty()
        });
        if imports.len() == before {
            break;
        }
    }
    let edge = |(module, on): (&&str, &BTreeMap<&str, &str>)| {
        let on = on.iter().map(|(on, file)| format!("{module} → {on} in {file}"));
        on.collect::<Vec<_>>().join(", ")
    };
    let edges: Vec<String> = imports.iter().map(edge).collect();
    (!edges.is_empty()).then(|| format!("top modules import each other in a circle: {}", edges.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("crates/fawn-node/src/{path}"), text: text.to_owned() }
    }

    #[test]
    fn planted_circles_are_found() {
        let with = |b: &str| {
            [
                source("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::{Exported, Other};\n"),
                source("a/mod.rs", "use crate::b::B;\n"),
                source("b.rs", b),
                source("c.rs", "use crate::{a::A, c};\n\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ]
        };
        assert_eq!(check(&with("// crate::c is named here only\n")), []);
        assert_eq!(check(&with("fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}\n")), []);
        let findings = check(&with("fn f(_: crate::Exported) {}\n"));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].what.contains("a → b in a/mod.rs, b → c in b.rs, c → a in c.rs"), "{findings:?}");
    }
}
