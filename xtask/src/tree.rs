//! The checkout: its root, and the files that git tracks or would add.
use std::path::PathBuf;
use std::process::Command;

/// A file of the checkout, as text.
pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// Content.
    pub(crate) text: String,
}

/// The checkout's root.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or_else(|| manifest.clone(), PathBuf::from)
}

/// Paths that git tracks or would add, without deleted files.
pub(crate) fn paths() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let mut paths: Vec<String> = listed.lines().map(str::to_owned).filter(|path| root().join(path).is_file()).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// The text files among [`paths`] that satisfy `wanted`.
pub(crate) fn sources(wanted: impl Fn(&str) -> bool) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in paths()?.into_iter().filter(|path| wanted(path)) {
        let bytes = std::fs::read(root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { path, text });
        }
    }
    Ok(sources)
}
