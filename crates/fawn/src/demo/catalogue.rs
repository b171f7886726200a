//! Catalogue of the demo: the machine's packages, a file, or the small one built into the binary.
use crate::failure::{Exit, Failure};
use crate::load::{Fields, Format, InputRows, LoadRow};
use crate::printing::print_result;
use fawn_types::checksum::checksum64;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// For machines without a catalogue.
const SHIPPED: &[u8] = include_bytes!("../../data/catalogue.deb822");
/// Maximum catalogue length: it is held in memory while it is loaded.
const BYTES_MAX: u64 = 1 << 30;

/// Stanzas in Debian's control format.
pub(super) struct Catalogue {
    /// Its origin, for messages.
    pub(super) source: String,
    /// Digest of the bytes.
    pub(super) digest: String,
    bytes: Cow<'static, [u8]>,
    /// Line of each name's last stanza: the last one wins.
    last_lines: HashMap<Vec<u8>, u64>,
    /// Name of the first package.
    first: Vec<u8>,
}

impl Catalogue {
    /// Loads the given file, or the machine's catalogue, or the built-in one.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = file {
            let source = path.display().to_string();
            let fail = |detail: String| Failure::new(Exit::Failed, format!("{source}: {detail}"));
            let bytes = File::open(path).and_then(read_bounded).map_err(|error| fail(error.to_string()))?;
            let catalogue = Self::new(source.clone(), bytes.into());
            return catalogue.ok_or_else(|| fail("no stanza with a field `Package`; see --catalogue".to_owned()));
        }
        let own = machines().and_then(|bytes| {
            let found = Self::new("apt-cache dumpavail".to_owned(), bytes.into());
            found.ok_or_else(|| "apt-cache lists no package; `apt-get update` would fill it".to_owned())
        });
        own.or_else(|reason| {
            print_result(format_args!("{reason}; loading the small catalogue that comes with fawn instead"));
            let shipped = Self::new("the catalogue that comes with fawn".to_owned(), SHIPPED.into());
            shipped.ok_or_else(|| Failure::new(Exit::Failed, "the shipped catalogue is empty: a faulty build"))
        })
    }

    /// Returns `None` if there is no package in it.
    fn new(source: String, bytes: Cow<'static, [u8]>) -> Option<Self> {
        let digest = format!("{:016x}", checksum64(&bytes));
        let (mut last_lines, mut first) = (HashMap::new(), None);
        let mut rows = parse(&bytes);
        // Reading from memory does not fail.
        while let Ok(Some(row)) = rows.next_row() {
            if let Ok(row) = row {
                first.get_or_insert_with(|| row.key.clone());
                last_lines.insert(row.key, row.line);
            }
        }
        Some(Self { source, digest, bytes, last_lines, first: first? })
    }

    /// Number of packages.
    pub(super) fn len(&self) -> usize {
        self.last_lines.len()
    }

    /// Bytes of the input.
    pub(super) fn total_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// An example package: a well-known one, or the first.
    pub(super) fn example(&self) -> String {
        let known = [&b"bash"[..], b"coreutils"].into_iter().find(|name| self.last_lines.contains_key(*name));
        String::from_utf8_lossy(known.unwrap_or(&self.first)).into_owned()
    }

    /// Its stanzas.
    pub(super) fn stanzas(&self) -> InputRows<&[u8]> {
        parse(&self.bytes)
    }

    /// Whether it is the last stanza of its name.
    pub(super) fn is_last(&self, row: &LoadRow) -> bool {
        self.last_lines.get(&row.key) == Some(&row.line)
    }
}

fn parse(bytes: &[u8]) -> InputRows<&[u8]> {
    InputRows::new(Format::Deb822, bytes, Fields { key: "Package".to_owned(), value: None, prefix: String::new() })
}

/// The output of `apt-cache dumpavail`, or the reason why there is none.
fn machines() -> Result<Vec<u8>, String> {
    let fail = |error: std::io::Error| format!("apt-cache: {error}");
    let mut command = Command::new("apt-cache");
    command.arg("dumpavail").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(fail)?;
    let bytes = child.stdout.take().map_or(Ok(Vec::new()), read_bounded);
    if bytes.is_err() {
        // The process may have ended already.
        drop(child.kill());
    }
    let status = child.wait().map_err(fail)?;
    let bytes = bytes.map_err(fail)?;
    if status.success() { Ok(bytes) } else { Err(format!("apt-cache dumpavail: {status}")) }
}

fn read_bounded(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let got = source.take(BYTES_MAX + 1).read_to_end(&mut bytes)? as u64;
    if got > BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "more than {BYTES_MAX} bytes; give a smaller file with --catalogue"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{Catalogue, SHIPPED};

    #[test]
    fn the_last_stanza_of_a_name_counts_once() {
        let text = b"Package: a\nSize: 1\n\nnonsense\n\nPackage: b\n\nPackage: a\nSize: 2\n";
        let catalogue = Catalogue::new("test".to_owned(), text.as_slice().into()).expect("it has packages");
        assert_eq!((catalogue.len(), catalogue.example()), (2, "a".to_owned()));
        let mut rows = catalogue.stanzas();
        let mut found = Vec::new();
        while let Some(row) = rows.next_row().expect("memory reads") {
            if row.as_ref().is_ok_and(|row| !catalogue.is_last(row)) {
                continue;
            }
            found.push(
                row.map_or_else(|bad| format!("{}!", bad.line), |row| format!("{}={}", row.line, row.value.len())),
            );
        }
        assert_eq!(found, ["4!", "6=10", "8=18"]);
        assert!(Catalogue::new("test".to_owned(), b"Size: 1\n".as_slice().into()).is_none());
    }

    #[test]
    fn the_shipped_one_is_sound() {
        let catalogue = Catalogue::new("shipped".to_owned(), SHIPPED.into()).expect("it has packages");
        let (mut rows, mut good) = (catalogue.stanzas(), 0);
        while let Some(row) = rows.next_row().expect("memory reads") {
            assert!(row.is_ok(), "{row:?}");
            good += 1;
        }
        assert!(good == catalogue.len() && good >= 300, "{good} of {}", catalogue.len());
    }
}
