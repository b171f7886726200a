//! Data directory of the demo; directories of other programs are refused.
use crate::data_dir;
use crate::failure::Failure;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The user's data directory, the same from every working directory, so that a second start finds the first one's data.
pub(crate) fn default_dir() -> PathBuf {
    place(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn place(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    // The XDG base directory specification: a relative path there is to be ignored.
    let data = variable("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let data = data.or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    match data {
        Some(data) => data.join("fawn/demo"),
        // No home: the working directory, as for `fawn serve`.
        None => PathBuf::from("fawn-demo"),
    }
}

/// Refuses `dir` if it is the store of a `fawn serve`.
pub(crate) fn refuse_foreign(dir: &Path) -> Result<(), Failure> {
    if data_dir::is_taken(dir) {
        let words = "holds the store of a `fawn serve`; choose another directory for the demo with --dir";
        return data_dir::refuse(dir, words);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::place;
    use std::path::Path;

    #[test]
    fn it_follows_the_users_variables() {
        let with = |pairs: &'static [(&str, &str)]| {
            place(move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into()))
        };
        assert_eq!(with(&[("HOME", "/home/ann")]), Path::new("/home/ann/.local/share/fawn/demo"));
        assert_eq!(with(&[("HOME", "/home/ann"), ("XDG_DATA_HOME", "/data")]), Path::new("/data/fawn/demo"));
        assert_eq!(with(&[("XDG_DATA_HOME", "data")]), Path::new("fawn-demo"));
    }
}
