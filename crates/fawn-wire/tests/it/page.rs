//! Test that `docs/guide/commands.md` equals the command table.
use std::path::Path;

/// With `FAWN_REGENERATE` set (as by `cargo xtask fix`), the page is written first.
#[test]
fn commands_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    let expected = fawn_wire::commands::markdown();
    if std::env::var_os("FAWN_REGENERATE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/guide/commands.md differs from the command table: run `cargo xtask fix` and commit it"
    );
}
