//! Owns what clients see of several shards: what they see of one, but for batches across shards.
use super::bed;
use crate::bed::shard_options;
use crate::transcripts::{self, play};
use fawn_flash::SimOptions;
use fawn_types::Durability;
use fawn_wire::Protocol;

fn plain(count: u16, seed: u64) -> super::ShardsBed {
    bed(count, SimOptions::instant(seed), shard_options(Durability::Sync))
}

#[test]
fn transcripts_of_one_shard_hold_for_several() {
    // `MSET` of keys without a common tag is what differs.
    let strings = transcripts::REDIS_STRINGS.replace("> MSET a 1 b 2 a 3\n", "> SET b 2\n+OK\n> MSET a 1 a 3\n");
    for count in [2, 3, 5] {
        for seed in 0..8 {
            println!("{count} shards, seed {seed}");
            for script in [&strings, transcripts::REDIS_CONNECTION, transcripts::REDIS_EXPIRY] {
                let mut bed = plain(count, seed);
                let id = bed.connect(Protocol::Resp);
                play(script, |line| bed.redis(id, line));
            }
            let mut bed = plain(count, seed);
            let id = bed.connect(Protocol::Memcached);
            play(transcripts::MEMCACHED_STORAGE, |line| bed.memcached(id, line));
        }
    }
}
