//! Times the opening of a store, after a close or without one.
//!
//! `opening DIR write KEYS COUNT [close]` writes COUNT random ones of KEYS keys with values of 256 B, then closes the store,
//! or ends as `kill -9` does. `opening DIR open KEYS` opens it, reads 10,000 random ones, and prints the times.
use fawn_ds::{Durability, Store};
use std::error::Error;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 256;
/// The store is at rest if nothing has changed for so long.
const CALM: Duration = Duration::from_secs(1);
/// Writes per batch.
const BATCH: usize = 128;

/// The next random number [SplitMix64].
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (Some(&dir), Some(&phase)) = (args.first(), args.get(1)) else { return Err("DIR and write or open".into()) };
    let begun = Instant::now();
    let store = Store::builder(dir).memory(1 << 30).durability(Durability::EverySecond).open()?;
    let opened = begun.elapsed();
    let keys: u64 = args.get(2).ok_or("KEYS")?.parse()?;
    if phase == "open" {
        let mut state = 9;
        let begun = Instant::now();
        let found =
            (0..10_000).map(|_| store.get((next(&mut state) % keys).to_le_bytes())).collect::<Result<Vec<_>, _>>()?;
        let read = begun.elapsed();
        let found = found.iter().flatten().count();
        let live = store.stats()?.live_bytes;
        println!("opened in {opened:?}, 10,000 lookups in {read:?}, {found} found; {} keys", store.len()?);
        // Confirming the overwritten keys lowers the live bytes.
        let mut last = (live, Instant::now());
        while last.1.elapsed() < CALM {
            let live = store.stats()?.live_bytes;
            last = if live == last.0 { last } else { (live, Instant::now()) };
        }
        println!("live bytes {live}, {} after {:?}", last.0, last.1 - begun);
        std::process::exit(0);
    }
    let count: u64 = args.get(3).ok_or("COUNT")?.parse()?;
    let mut state = begun.elapsed().as_nanos() as u64;
    let mut value = [7; VALUE_BYTES];
    let mut batch = store.batch();
    for i in 0..count {
        let key = if count == keys { i } else { next(&mut state) % keys };
        value[..8].copy_from_slice(&i.to_le_bytes());
        batch.put(key.to_le_bytes(), &value[..]);
        if batch.len() == BATCH || i + 1 == count {
            core::mem::replace(&mut batch, store.batch()).commit()?;
        }
    }
    println!("{count} writes in {:?}", begun.elapsed());
    if args.get(4) == Some(&"close") {
        let begun = Instant::now();
        store.close()?;
        println!("closed in {:?}", begun.elapsed());
    }
    std::process::exit(0)
}
