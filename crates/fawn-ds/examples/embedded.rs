//! Shows an embedded store: `cargo run -p fawn-ds --example embedded`.
use fawn_ds::Options;
use fawn_ds::embed::Store;
use fawn_types::{Condition, Store as _, TimeMs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::open(dir.path(), Options::default())?;
    let now = TimeMs(0);
    store.put(b"wimpy", b"nodes", 0, 0)?;
    let entry = store.get(b"wimpy", now)?.ok_or("just written")?;
    println!("wimpy = {} (version {:?})", String::from_utf8_lossy(&entry.value), entry.version);
    let swapped = store.put_if(b"wimpy", b"array", 0, Condition::VersionIs(entry.version))?;
    println!("swapped: {}", swapped.is_some());
    let (_, keys) = store.scan(0, 10, now)?;
    println!("{} of {} keys met by a scan", keys.len(), store.len());
    store.close()?;
    Ok(())
}
