//! Short seeded run of the recovery fuzzer; `cargo run -p fawn-fuzz -- recovery` runs for longer.
use crate::rng::Rng;

fn splice(rng: &mut Rng, data: &mut Vec<u8>) {
    // Small offsets hit headers and the manifest's commits; larger ones hit anything.
    let offset = if rng.below(3) == 0 { rng.below(6000) } else { rng.below(1 << 17) } as u32;
    let bytes = match rng.below(3) {
        0 => vec![0; rng.below(5000)],
        1 => vec![rng.next() as u8; 1 + rng.below(4)],
        _ => rng.bytes(600),
    };
    data.push(rng.next() as u8);
    data.extend_from_slice(&offset.to_le_bytes()[..3]);
    data.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    data.extend_from_slice(&bytes);
}

#[test]
fn whatever_lies_in_the_directory_is_opened_whole_or_refused() {
    fawn_ds::fuzz::recovery(&[]);
    let mut rng = Rng::new("fuzz_recovery::");
    for _ in 0..600 {
        let mut data = Vec::new();
        for _ in 0..1 + rng.below(3) {
            splice(&mut rng, &mut data);
        }
        fawn_ds::fuzz::recovery(&data);
    }
}
