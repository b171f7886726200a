//! Commit subjects: `area: verb …`, at most 72 characters.
use super::TidyFinding;
use crate::tree;
use std::process::Command;

const SUBJECT_CHARS_MAX: usize = 72;
/// The rule holds from the commit after this one.
const SINCE: &str = "ee60e5fa5bdce1f5a306d6615417f07707339dfa";

/// Checks the commits of this checkout's branch.
pub(crate) fn check() -> Result<Vec<TidyFinding>, String> {
    let known = git(&["cat-file", "-e", SINCE]).is_ok();
    // A shallow clone lacks the history: its newest commit is checked alone, and the output says so.
    let range = if known { format!("{SINCE}..HEAD") } else { "-1".to_owned() };
    if !known {
        println!("tidy: shallow history, only the newest commit's subject is checked");
    }
    let log = git(&["log", "--no-merges", "--format=%h%x09%s", &range])?;
    Ok(log
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(hash, subject)| judge(hash, subject))
        .collect())
}

fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(tree::root()).output();
    let output = output.map_err(|error| format!("git {args:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn judge(hash: &str, subject: &str) -> Option<TidyFinding> {
    let area_ok = subject.split_once(": ").is_some_and(|(area, rest)| {
        let is_word =
            |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-,/ ".contains(c));
        !area.is_empty() && is_word(area) && rest.starts_with(|c: char| c.is_ascii_lowercase())
    });
    let length = subject.chars().count();
    if !area_ok {
        return Some(TidyFinding::new(hash, format!("`{subject}`: write `area: verb …`")));
    }
    (length > SUBJECT_CHARS_MAX)
        .then(|| TidyFinding::new(hash, format!("`{subject}`: {length} characters, at most {SUBJECT_CHARS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_faults_are_found() {
        assert_eq!(judge("a", "server: drop slow senders after 1 s"), None);
        assert!(judge("a", "Drop slow senders").is_some(), "no area");
        assert!(judge("a", "server: Drop slow senders").is_some(), "not a verb in lower case");
        assert!(judge("a", &format!("server: {}", "x".repeat(65))).is_some(), "73 characters");
    }
}
