//! Configuration file: TOML whose keys are the long names of flags; an unknown key is an error.
use super::SettingFlags;
use crate::failure::{Exit, Failure};
use clap::{CommandFactory, Parser};
use std::error::Error;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Minimum similarity of a suggested name (Jaro–Winkler, 1 is equal).
const SUGGESTION_LIKENESS_MIN: f64 = 0.75;

/// A command line of settings alone: the flags' parsers also parse the file's values.
#[derive(Parser, Default)]
#[command(disable_help_flag = true)]
struct SettingLines {
    #[command(flatten)]
    flags: SettingFlags,
}

impl SettingLines {
    /// Parses one setting; returns its parser's error.
    fn set(&mut self, argument: &str) -> Result<(), String> {
        self.try_update_from(["fawn", argument]).map_err(|error| match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
        })
    }
}

/// Reads the settings of the file at `path`.
pub(super) fn read(path: &Path) -> Result<SettingFlags, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let remedy = "give the path of a readable TOML file with --config or FAWN_CONFIG";
        Failure::new(Exit::Usage, format!("{name}: {error}; {remedy}"))
    })?;
    parse(&name, &text)
}

/// Parses the text of the file `path`.
pub(super) fn parse(path: &str, text: &str) -> Result<SettingFlags, Failure> {
    let line_of = |byte: usize| text[..byte.min(text.len())].matches('\n').count() + 1;
    let bad = |line: usize, words: String| Failure::new(Exit::Usage, format!("{path}:{line}: {words}"));
    let table = DeTable::parse(text).map_err(|error| {
        bad(line_of(error.span().map_or(0, |span| span.start)), format!("not valid TOML: {}", error.message()))
    })?;
    let known = known_keys();
    let mut lines = SettingLines::default();
    for (key, value) in table.get_ref() {
        let (line, key) = (line_of(key.span().start), key.get_ref().as_ref());
        if !known.iter().any(|name| name == key) {
            let suggestion = suggestion(key, &known);
            let words = format!("unknown key `{key}`{suggestion}; `fawn serve --help` lists every setting");
            return Err(bad(line, words));
        }
        let read = value_text(value.get_ref()).and_then(|value| lines.set(&format!("--{key}={value}")));
        read.map_err(|detail| bad(line, format!("{key}: {detail}")))?;
    }
    Ok(lines.flags)
}

/// The long names of all flags.
pub(super) fn known_keys() -> Vec<String> {
    SettingLines::command().get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

/// A value in the syntax of a flag.
fn value_text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(flag) => Ok(flag.to_string()),
        other => Err(format!("expected a string, a number, true or false; found {}", other.type_str())),
    }
}

/// `, did you mean …?`, if a known name is similar.
fn suggestion(key: &str, known: &[String]) -> String {
    let likeness = |name: &&String| strsim::jaro_winkler(key, name);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match best.filter(|name| likeness(name) >= SUGGESTION_LIKENESS_MIN) {
        Some(name) => format!(", did you mean `{name}`?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::config::{Endpoint, Size};

    #[test]
    fn values_go_through_the_flags_parsers() {
        let text = "memory = \"256M\"\nmax-connections = 12\nallow-public = true\nresp = 'off'\n";
        let flags = parse("fawn.toml", text).expect("valid");
        assert_eq!(flags.memory, Some(Size(256 << 20)));
        assert_eq!((flags.max_connections, flags.allow_public), (Some(12), Some(true)));
        assert_eq!((flags.resp, flags.admin), (Some(Endpoint::Off), None));
    }

    #[test]
    fn errors_say_where_what_and_what_instead() {
        for (text, expected) in [
            ("\n\nmemroy = 1", "f:3: unknown key `memroy`, did you mean `memory`?"),
            ("max_connections = 1", "f:1: unknown key `max_connections`, did you mean `max-connections`?"),
            ("zzz = 1", "f:1: unknown key `zzz`; `fawn serve --help`"),
            ("# x\nmemory = '25X'", "f:2: memory: `25X` is not a size; expected a number with K"),
            ("memory = 1.5", "f:1: memory: `1.5` is not a size; expected a number with K"),
            ("memory = []", "f:1: memory: expected a string, a number, true or false; found array"),
            ("shards = 65", "f:1: shards: `65` is not a number of shards; expected 1 to 64, or auto"),
            ("durability = 'often'", "f:1: durability: invalid value 'often'"),
            ("dir = 'a'\nmemory = ", "f:2: not valid TOML"),
            ("[serve]\ndir = 'a'", "f:1: unknown key `serve`"),
        ] {
            let error = parse("f", text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
