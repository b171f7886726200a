//! Times the opening of a store, for `eval/peers/opening.py`.
//!
//! `opening DIR closed|killed KEYS COUNT VALUE_BYTES SEED` writes COUNT random ones of KEYS keys of 16 B, or each once, and closes
//! the store, or prints `written` and waits to be killed. `opening DIR open KEYS 0 VALUE_BYTES SEED` opens it, looks one key
//! up, then 10,000 others, waits until all that the opening deferred is confirmed, prints the times, and closes it.
use fawn_ds::{Durability, Store};
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

const MEMORY_BYTES: u64 = 1 << 30;
/// The store is at rest if nothing has changed for so long.
const CALM: Duration = Duration::from_secs(1);
/// Writes per batch.
const BATCH: usize = 128;

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
    let store = Store::builder(dir).memory(MEMORY_BYTES).durability(Durability::EverySecond).open()?;
    if phase == "open" {
        let opened = begun.elapsed();
        read(&store, (keys, state), (begun, opened))?;
        return Ok(store.close()?);
    }
    let mut value = vec![7; value_bytes as usize];
    let mut batch = store.batch();
    for i in 0..count {
        let at = if count == keys { i } else { next(&mut state) % keys };
        value[..8].copy_from_slice(&i.to_le_bytes());
        batch.put(key(at), &value[..]);
        if batch.len() == BATCH || i + 1 == count {
            core::mem::replace(&mut batch, store.batch()).commit()?;
        }
    }
    if phase == "killed" {
        println!("written");
        std::io::stdout().flush()?;
        std::thread::park();
    }
    Ok(store.close()?)
}

fn read(
    store: &Store,
    (keys, mut state): (u64, u64),
    (begun, opened): (Instant, Duration),
) -> Result<(), Box<dyn Error>> {
    let is_found = store.get(key(next(&mut state) % keys))?.is_some();
    let open_ms = begun.elapsed().as_secs_f64() * 1000.0;
    let lookups = Instant::now();
    let mut found = 0;
    for _ in 0..10_000 {
        found += u64::from(store.get(key(next(&mut state) % keys))?.is_some());
    }
    let lookup_us = lookups.elapsed().as_secs_f64() * 100.0;
    // Confirming the overwritten keys lowers the live bytes.
    let mut last = (store.stats()?.live_bytes, Instant::now());
    while last.1.elapsed() < CALM {
        let live = store.stats()?.live_bytes;
        last = if live == last.0 { last } else { (live, Instant::now()) };
    }
    let confirmed_ms = (last.1 - begun).saturating_sub(opened).as_secs_f64() * 1000.0;
    println!(
        "{{\"open_ms\": {open_ms}, \"found\": {}, \"lookup_us\": {lookup_us}, \"confirmed_after_ms\": {confirmed_ms}}}",
        is_found && found == 10_000
    );
    Ok(())
}
