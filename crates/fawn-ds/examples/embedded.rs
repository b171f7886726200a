//! A tour of the embedded store: `cargo run -p fawn-ds --example embedded`.
use fawn_ds::{Durability, PutOptions, Store};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let store = Store::builder(dir.path()).memory(64 << 20).durability(Durability::EverySecond).open()?;

    // Keys and values are bytes; anything that can be seen as bytes will do.
    let version = store.put("wimpy", "nodes")?;
    if let Some(value) = store.get("wimpy")? {
        println!("wimpy = {} (version {:?})", String::from_utf8_lossy(&value), value.version());
    }

    // A write that happens only if nothing else has written the key since.
    let swapped = store.put_with("wimpy", "array", PutOptions::new().if_version(version))?;
    println!("swapped: {}", swapped.is_some());

    // A lock that frees itself after ten seconds.
    let lock = PutOptions::new().if_absent().ttl(Duration::from_secs(10));
    println!("locked: {}", store.put_with("lock", "me", lock)?.is_some());
    println!("locked again: {}", store.put_with("lock", "you", lock)?.is_some());

    // All or nothing, also after a power loss.
    let mut batch = store.batch();
    batch.put("from", "90").put("to", "110").delete("lock");
    batch.commit()?;

    // Handles are cheap clones for any thread; writers share flushes and syncs.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = store.clone();
            scope.spawn(move || (0..100).try_for_each(|i| store.put(format!("{thread}-{i}"), "v").map(drop)));
        }
    });

    // In no particular order, while writes continue.
    let mut bytes = 0;
    for entry in &store {
        let (key, value) = entry?;
        bytes += key.len() + value.len();
    }
    println!("{} keys, {bytes} bytes of keys and values", store.len()?);

    // The last handle that is dropped does this too, but cannot return an error.
    store.close()?;
    Ok(())
}
