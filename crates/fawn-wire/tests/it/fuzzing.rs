//! A seeded driver of the fuzz targets: mutated samples and random bytes.
//!
//! For longer runs or other seeds: `FAWN_SEED=7 FAWN_FUZZ_CASES=1000000 cargo test -p fawn-wire --test it fuzzing`.
use fawn_types::random::SplitMix64;
use fawn_wire::fuzz;

const SAMPLES: [&[u8]; 8] = [
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$4\r\nMGET\r\n$1\r\nk\r\n",
    b"set a 0 0 3\r\nabc\r\ngets a b\r\nincr a 1\r\n",
    b"HELLO 3 SETNAME x\r\nCOMMAND DOCS get\r\nCLIENT INFO\r\n",
    b"*2\r\n+OK\r\n%1\r\n$1\r\na\r\n:1\r\n",
    b"VALUE k 0 3 9\r\nabc\r\nEND\r\nSTORED\r\nSTAT a b\r\n",
    b"SET k \"a\\x41\" EX 10 NX GET\r\nEXPIRE k 10 GT\r\nSCAN 0 MATCH * COUNT 3\r\n",
    b"cas a 1 -1 2 77 noreply\r\nxy\r\nflush_all 3\r\nverbosity 1\r\nstats items\r\n",
    b"COMMAND\r\nCOMMAND LIST FILTERBY ACLCAT string\r\nMSET a 1 b 2\r\nDEL a b c\r\n",
];

struct FuzzRng(SplitMix64);

impl FuzzRng {
    fn next(&mut self, below: usize) -> usize {
        self.0.below(below as u64) as usize
    }

    fn input(&mut self) -> Vec<u8> {
        let mut data = SAMPLES[self.next(SAMPLES.len())].to_vec();
        for _ in 0..self.next(6) {
            let at = self.next(data.len().max(1)).min(data.len());
            match self.next(5) {
                0 if at < data.len() => data[at] = self.next(256) as u8,
                1 => data.insert(at, b"\r\n $*:-0123456789\"'"[self.next(19)]),
                2 if at < data.len() => drop(data.remove(at)),
                3 => data.truncate(at),
                _ => data.extend_from_slice(SAMPLES[self.next(SAMPLES.len())]),
            }
        }
        data
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seed, cases) = (number("FAWN_SEED", 1), number("FAWN_FUZZ_CASES", 20_000));
    println!("FAWN_SEED={seed} FAWN_FUZZ_CASES={cases} cargo test -p fawn-wire --test it fuzzing");
    let mut random = FuzzRng(SplitMix64::new(seed));
    for _ in 0..cases {
        let data = random.input();
        for target in [fuzz::resp, fuzz::memcached, fuzz::client_resp, fuzz::client_memcached, fuzz::glob] {
            target(&data);
        }
    }
}
