//! File `layout.toml` of a directory with several shards: its bytes (docs/formats/data-directory.md), replaced
//! atomically.
use fawn_types::HashSecret;
use fawn_types::checksum::checksum64;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file's name.
pub(super) const NAME: &str = "layout.toml";
/// Name of the file while it is being written.
pub(super) const NEW_NAME: &str = "layout.toml.new";
/// The format that this program writes, and the newest that it reads.
const FORMAT: i64 = 1;

/// Properties shared by the stores of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LayoutFile {
    /// Number of shards, at least 2.
    pub(super) shards: u16,
    /// Hash secret of all stores.
    pub(super) secret: HashSecret,
    /// Whether every shard's store was created. Before that no client was ever served.
    pub(super) is_made: bool,
}

/// Reasons to refuse a file.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum LayoutFileError {
    /// Written by a newer program, in this format.
    Newer(i64),
    /// Not written by any version of this program.
    Corrupt,
}

/// Encodes the whole file.
pub(super) fn encode(file: &LayoutFile) -> String {
    let secret: String = file.secret.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let stores = if file.is_made { "made" } else { "making" };
    let text = format!(
        "# What the shards of this FAWN data directory share. Not to be edited; keep it with the data.\n\
         format = {FORMAT}\nshards = {}\nsecret = \"{secret}\"\nstores = \"{stores}\"\n",
        file.shards
    );
    let checksum = checksum64(text.as_bytes());
    format!("{text}checksum = \"{checksum:016x}\"\n")
}

/// Decodes the file: accepts exactly the bytes that [`encode`] produces.
pub(super) fn decode(bytes: &[u8]) -> Result<LayoutFile, LayoutFileError> {
    let text = str::from_utf8(bytes).map_err(|_| LayoutFileError::Corrupt)?;
    let table: toml::Table = text.parse().map_err(|_| LayoutFileError::Corrupt)?;
    match table.get("format").and_then(toml::Value::as_integer) {
        Some(FORMAT) => {}
        Some(newer) if newer > FORMAT => return Err(LayoutFileError::Newer(newer)),
        _ => return Err(LayoutFileError::Corrupt),
    }
    let file = fields(&table).ok_or(LayoutFileError::Corrupt)?;
    // Covers the checksum and excludes other content.
    if encode(&file).as_bytes() == bytes { Ok(file) } else { Err(LayoutFileError::Corrupt) }
}

fn fields(table: &toml::Table) -> Option<LayoutFile> {
    let shards = u16::try_from(table.get("shards")?.as_integer()?).ok().filter(|shards| *shards >= 2)?;
    let hex = table.get("secret")?.as_str()?;
    let number = u128::from_str_radix(hex, 16).ok()?;
    let is_made = table.get("stores")?.as_str()? == "made";
    Some(LayoutFile { shards, secret: HashSecret(number.to_be_bytes()), is_made })
}

/// Writes the file atomically and durably.
pub(super) fn write(dir: &Path, file: &LayoutFile) -> std::io::Result<()> {
    let partial = dir.join(NEW_NAME);
    // A crash may have left it; created again for the right mode.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    out.write_all(encode(file).as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&partial, dir.join(NAME))?;
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: LayoutFile = LayoutFile { shards: 3, secret: HashSecret(*b"0123456789abcde\x07"), is_made: true };

    #[test]
    fn the_bytes_are_those_of_the_format_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/data-directory.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        assert!(page.contains(&encode(&FILE)), "the page should show\n{}", encode(&FILE));
    }

    #[test]
    fn it_reads_back_and_every_flipped_bit_is_seen() {
        for file in [FILE, LayoutFile { is_made: false, ..FILE }, LayoutFile { shards: 64, ..FILE }] {
            let bytes = encode(&file).into_bytes();
            assert_eq!(decode(&bytes), Ok(file));
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&flipped).is_err(), "bit {bit}");
            }
            assert!((0..bytes.len()).all(|len| decode(&bytes[..len]) == Err(LayoutFileError::Corrupt)), "cut short");
        }
        assert_eq!(decode(&encode(&LayoutFile { shards: 1, ..FILE }).into_bytes()), Err(LayoutFileError::Corrupt));
    }

    #[test]
    fn a_newer_format_is_told_apart_whatever_else_it_says() {
        assert_eq!(decode(b"format = 2\nislands = 7\n"), Err(LayoutFileError::Newer(2)));
        assert_eq!(decode(b"format = 0\n"), Err(LayoutFileError::Corrupt));
    }
}
