//! fjall for `opening.py`: `opening DIR closed|killed|open KEYS COUNT VALUE_BYTES SEED`.
use fjall::{Config, PartitionCreateOptions, PersistMode};
use std::error::Error;
use std::io::Write;
use std::time::Instant;

const MEMORY_BYTES: u64 = 1 << 30;
const BATCH: usize = 1000;

fn key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&i.to_be_bytes());
    key[8..].copy_from_slice(&(!i).to_be_bytes());
    key
}

/// The next random number [SplitMix64].
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, phase, numbers @ ..] = &args[..] else { return Err("DIR PHASE KEYS COUNT VALUE_BYTES SEED".into()) };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>()?;
    let [keys, count, value_bytes, mut state] = numbers[..] else { return Err("four numbers".into()) };
    let begun = Instant::now();
    let store = Config::new(dir).cache_size(MEMORY_BYTES).open()?;
    let keyspace = store.open_partition("data", PartitionCreateOptions::default())?;
    if phase == "open" {
        let found = keyspace.get(key(next(&mut state) % keys))?.is_some();
        println!("{{\"open_ms\": {}, \"found\": {found}}}", begun.elapsed().as_secs_f64() * 1000.0);
        return Ok(());
    }
    let mut seed = 1;
    // No value is like its neighbours: compression gains nothing.
    let pool: Vec<u8> = (0..1 << 20).flat_map(|_| next(&mut seed).to_le_bytes()).collect();
    let value_at = |i: u64| {
        let at = (i * value_bytes % (pool.len() as u64 - value_bytes)) as usize;
        &pool[at..at + value_bytes as usize]
    };
    let mut batch = store.batch();
    for i in 0..count {
        let at = if count == keys { i } else { next(&mut state) % keys };
        batch.insert(&keyspace, key(at), value_at(at));
        if batch.len() == BATCH || i + 1 == count {
            std::mem::replace(&mut batch, store.batch()).commit()?;
        }
    }
    store.persist(PersistMode::Buffer)?;
    if phase == "killed" {
        println!("written");
        std::io::stdout().flush()?;
        std::thread::park();
    }
    store.persist(PersistMode::SyncAll)?;
    Ok(())
}
