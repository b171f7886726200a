//! Prose rules: file heads are noun phrases, sentences have nouns as subjects.
//!
//! Exceptions are counted per file in `exceptions.txt` and may only shrink (see [`super::ratchet`]).
use super::ratchet::Count;
use crate::tree::Source;

/// Words that must not open a file: the rest of the sentence then lacks its noun.
const HEADS: [&str; 9] = ["Owns", "What", "Who", "Whoever", "How", "Which", "Those", "That", "Where"];
/// Words that must not open a sentence.
const OPENINGS: [&str; 6] = ["What ", "Who ", "Whoever ", "Whatever ", "Of these", "Those "];

/// Counts what breaks the rules in one Rust file.
pub(crate) fn check_rust(source: &Source) -> Vec<Count> {
    let head = source.text.lines().next().unwrap_or_default();
    let head = head.trim_start_matches("//!").trim_start();
    let bad_head = HEADS.iter().any(|word| head.split_whitespace().next() == Some(word));
    vec![
        Count::new(
            "head",
            &source.path,
            usize::from(bad_head),
            "open the file with a noun phrase that names its subject",
        ),
        sentences(&source.path, &comments(&source.text)),
    ]
}

/// Counts what breaks the rules on one page.
pub(crate) fn check_page(source: &Source) -> Vec<Count> {
    vec![sentences(&source.path, &paragraphs(&source.text))]
}

fn sentences(path: &str, blocks: &[String]) -> Count {
    let found = blocks.iter().map(|block| openings(block)).sum();
    Count::new("sentence", path, found, "no sentence begins with What, Who, Of these, Those: name the subject")
}

/// Sentences of a block that begin with a forbidden word. Questions keep their interrogative.
fn openings(block: &str) -> usize {
    let mut starts = vec![0];
    for (at, _) in block.match_indices(['.', ':', ';']) {
        if block[at..].starts_with(". ") {
            starts.push(at + 2);
        }
    }
    let is_question = |from: usize| {
        let rest = &block[from..];
        rest.find(['?', '.']).is_some_and(|end| rest[end..].starts_with('?'))
    };
    starts
        .into_iter()
        .filter(|start| OPENINGS.iter().any(|word| block[*start..].starts_with(word)) && !is_question(*start))
        .count()
}

/// The comment blocks of a Rust file, each joined to one line.
fn comments(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        ["//!", "///", "//"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim)
    });
    join(lines)
}

/// The paragraphs of a Markdown page, code blocks left out, each joined to one line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut in_code = false;
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let fence = line.starts_with("```");
        in_code ^= fence;
        (!fence && !in_code && !line.is_empty()).then(|| line.trim_start_matches(['#', '-', '*', '>', '|', ' ']))
    });
    join(lines)
}

fn join<'a>(lines: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block = String::new();
    for line in lines {
        match line {
            Some(line) if !line.is_empty() => {
                block.push_str(line);
                block.push(' ');
            }
            _ => blocks.push(core::mem::take(&mut block)),
        }
    }
    blocks.push(block);
    blocks.retain(|block| !block.is_empty());
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> (usize, usize) {
        let source = Source { path: "crates/x/src/a.rs".to_owned(), text: text.to_owned() };
        let counts = check_rust(&source);
        (counts[0].found, counts[1].found)
    }

    #[test]
    fn planted_faults_are_found() {
        assert_eq!(counts("//! Admission control: queues requests.\n"), (0, 0));
        assert_eq!(counts("//! Owns the room.\n"), (1, 0));
        assert_eq!(counts("//! Queues.\n/// It waits. What comes\n/// after is lost. Who knows.\nfn f() {}\n"), (0, 2));
        assert_eq!(counts("//! Queues.\n// Those are late.\nlet a = \"Who \";\n"), (0, 1));
        assert_eq!(counts("//! Queues.\n// What if the disk is full?\n"), (0, 0), "a question may ask");
        let page =
            Source { path: "a.md".to_owned(), text: "# What it is\n\n```\nWho \n```\n- Who waits.\n".to_owned() };
        assert_eq!(check_page(&page)[0].found, 2);
    }
}
