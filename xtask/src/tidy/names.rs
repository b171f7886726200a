//! Type names: each is used once in the workspace, so that a search for one finds one.
use super::ratchet::Count;
use super::{TidyFinding, is_product};
use crate::tree::Source;
use std::collections::BTreeMap;
use syn::visit::Visit;

/// Counts the definitions of every type name beyond its first; the place is the name.
pub(crate) fn check(sources: &[Source]) -> Result<Vec<Count>, TidyFinding> {
    let mut definitions = BTreeMap::<String, usize>::new();
    for source in sources.iter().filter(|source| is_product(source) || source.path.starts_with("xtask/src/")) {
        let file = syn::parse_file(&source.text)
            .map_err(|error| TidyFinding::new(&*source.path, format!("does not parse: {error}")))?;
        let mut types = TypeNames { names: Vec::new() };
        types.visit_file(&file);
        for name in types.names {
            *definitions.entry(name).or_default() += 1;
        }
    }
    let advice = "a type of this name exists already: choose a name that says what this one is";
    Ok(definitions.into_iter().map(|(name, count)| Count::new("type", &name, count - 1, advice)).collect())
}

struct TypeNames {
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for TypeNames {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Struct(item) => self.names.push(item.ident.to_string()),
            syn::Item::Enum(item) => self.names.push(item.ident.to_string()),
            syn::Item::Trait(item) => self.names.push(item.ident.to_string()),
            syn::Item::Type(item) => self.names.push(item.ident.to_string()),
            // Types of a test module are local to it.
            syn::Item::Mod(item) if !is_test(&item.attrs) => syn::visit::visit_item_mod(self, item),
            _ => {}
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_faults_are_found() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let first =
            source("crates/a/src/a.rs", "struct Step;\nenum Other {}\n#[cfg(test)]\nmod tests { struct Other; }\n");
        let second = source("crates/b/src/a.rs", "type Step = u8;\ntrait Third { type Other; }\n");
        let found = |sources: &[Source]| -> Vec<(String, usize)> {
            let counts = check(sources).ok().unwrap_or_default();
            counts.iter().filter(|count| count.found > 0).map(|count| (format!("{count:?}"), count.found)).collect()
        };
        let reused = found(&[first, second]);
        assert_eq!(reused.len(), 1, "{reused:?}");
        assert!(reused[0].0.contains("Step") && reused[0].1 == 1);
    }
}
