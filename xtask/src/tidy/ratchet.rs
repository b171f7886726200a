//! Ratchet for rules with exceptions: `exceptions.txt` counts them per rule and place, and the counts may only shrink.
use super::TidyFinding;
use crate::tree;
use std::collections::BTreeMap;

const LIST: &str = "xtask/src/tidy/exceptions.txt";
const HEAD: &str = "# Exceptions to the prose and naming rules: rule, place, count. Lines may go and counts may fall, nothing else.\n\
                    # `cargo xtask fix` lowers them; a count that should rise is a rule that was broken.\n";

/// Violations of one rule at one place.
#[derive(Debug)]
pub(crate) struct Count {
    rule: &'static str,
    place: String,
    advice: &'static str,
    /// Number of violations.
    pub(crate) found: usize,
}

impl Count {
    pub(crate) fn new(rule: &'static str, place: &str, found: usize, advice: &'static str) -> Self {
        Self { rule, place: place.to_owned(), advice, found }
    }
}

type Allowed = BTreeMap<(String, String), usize>;

/// Compares the counts with the list: more than listed breaks the rule, fewer asks to lower the list.
pub(crate) fn check(counts: &[Count]) -> Result<Vec<TidyFinding>, String> {
    Ok(compare(counts, &read()?))
}

/// Lowers the list to the counts; never raises one.
pub(crate) fn lower(counts: &[Count]) -> Result<(), String> {
    let text = lowered(counts, &read()?);
    std::fs::write(tree::root().join(LIST), text).map_err(|error| format!("{LIST}: {error}"))
}

fn read() -> Result<Allowed, String> {
    let text = std::fs::read_to_string(tree::root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Allowed, String> {
    let mut allowed = Allowed::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let [rule, place, count] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("{LIST}: `{line}` is not `rule place count`"));
        };
        let count = count.parse().map_err(|error| format!("{LIST}: `{line}`: {error}"))?;
        allowed.insert((rule.to_owned(), place.to_owned()), count);
    }
    Ok(allowed)
}

fn compare(counts: &[Count], allowed: &Allowed) -> Vec<TidyFinding> {
    let mut left = allowed.clone();
    let mut findings = Vec::new();
    for count in counts {
        let listed = left.remove(&(count.rule.to_owned(), count.place.clone())).unwrap_or(0);
        if count.found > listed {
            let what = format!("{} ({} found, {listed} allowed)", count.advice, count.found);
            findings.push(TidyFinding::new(&*count.place, what));
        } else if count.found < listed {
            let what = format!(
                "rule `{}`: {listed} exceptions listed, {} left: run `cargo xtask fix`",
                count.rule, count.found
            );
            findings.push(TidyFinding::new(LIST, format!("{}: {what}", count.place)));
        }
    }
    for ((rule, place), _) in left {
        findings.push(TidyFinding::new(
            LIST,
            format!("{place}: rule `{rule}`: nothing left to except: run `cargo xtask fix`"),
        ));
    }
    findings
}

fn lowered(counts: &[Count], allowed: &Allowed) -> String {
    let mut text = HEAD.to_owned();
    let mut rows: Vec<String> = counts
        .iter()
        .filter_map(|count| {
            let listed = *allowed.get(&(count.rule.to_owned(), count.place.clone()))?;
            let kept = listed.min(count.found);
            (kept > 0).then(|| format!("{} {} {kept}\n", count.rule, count.place))
        })
        .collect();
    rows.sort();
    text.extend(rows);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(found: usize) -> Vec<Count> {
        vec![Count::new("head", "a.rs", found, "mend it")]
    }

    #[test]
    fn planted_faults_are_found() {
        let allowed = parse("# comment\nhead a.rs 2\n").expect("well-formed");
        assert!(compare(&count(2), &allowed).is_empty());
        assert_eq!(compare(&count(3), &allowed).len(), 1, "one more");
        assert_eq!(compare(&count(1), &allowed).len(), 1, "the list must be lowered");
        assert_eq!(compare(&[], &allowed).len(), 1, "the place is gone");
        assert!(parse("head a.rs\n").is_err());
    }

    #[test]
    fn the_list_is_lowered_and_never_raised() {
        let allowed = parse("head a.rs 2\n").expect("well-formed");
        assert!(lowered(&count(1), &allowed).ends_with("head a.rs 1\n"));
        assert!(lowered(&count(3), &allowed).ends_with("head a.rs 2\n"));
        assert!(!lowered(&count(0), &allowed).contains("a.rs"));
    }
}
