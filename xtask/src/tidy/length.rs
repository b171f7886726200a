//! Size rules: at most 800 lines per file and 70 per function, and a `//!` head in every file.
use super::TidyFinding;
use crate::tree::Source;
use syn::spanned::Spanned;
use syn::visit::Visit;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.push(TidyFinding::new(
            &*source.path,
            format!("{lines} lines, at most {FILE_LINES_MAX}: split by concept"),
        ));
    }
    if !source.text.starts_with("//!") {
        findings.push(TidyFinding::new(&*source.path, "opens without `//!`: name the file's subject"));
    }
    match syn::parse_file(&source.text) {
        Ok(file) => {
            let mut functions = Functions { path: &source.path, findings: Vec::new() };
            functions.visit_file(&file);
            findings.extend(functions.findings);
        }
        Err(error) => findings.push(TidyFinding::new(&*source.path, format!("does not parse: {error}"))),
    }
    findings
}

struct Functions<'a> {
    path: &'a str,
    findings: Vec<TidyFinding>,
}

impl Functions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let span = block.span();
        let lines = span.end().line + 1 - span.start().line;
        if lines > FUNCTION_LINES_MAX {
            let place = format!("{}:{}", self.path, name.span().start().line);
            self.findings
                .push(TidyFinding::new(place, format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}")));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig.ident, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig.ident, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: String) -> Vec<String> {
        check(&Source { path: "crates/x/src/a.rs".to_owned(), text }).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn planted_faults_are_found() {
        assert_eq!(findings("//! Owns nothing.\nfn f() {}\n".to_owned()), Vec::<String>::new());
        assert!(findings("fn f() {}\n".to_owned())[0].contains("opens without"));
        let long_function = format!("//! a\nfn f() {{\n{}}}\n", "    g();\n".repeat(70));
        assert!(findings(long_function)[0].contains("`f` has 72 lines"));
        let long_file = format!("//! a\n{}", "// b\n".repeat(800));
        assert!(findings(long_file)[0].contains("801 lines"));
    }
}
