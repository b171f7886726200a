//! JSON lines of a dump, byte for byte as docs/formats/dump.md says: a header, a line for each key, and the end.
use super::base64;
use fawn_types::checksum::StreamChecksum;
use std::io::Write;

/// Number of the format.
pub(crate) const FORMAT: u64 = 1;
/// First bytes of a dump's first line.
pub(crate) const HEADER_PREFIX: &[u8] = b"{\"fawn_dump\":";
/// First bytes of its last line.
pub(crate) const END_PREFIX: &[u8] = b"{\"fawn_dump_end\":";
/// Maximum length of a line, bytes: a value of 16 MiB and a key of 64 KiB with every character escaped.
pub(crate) const LINE_BYTES_MAX: usize = 34 << 20;

/// A key of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DumpEntry<'a> {
    /// The key.
    pub(crate) key: &'a [u8],
    /// The value.
    pub(crate) value: &'a [u8],
    /// memcached's flags.
    pub(crate) flags: u32,
    /// Expiry, ms since 1970; 0: never.
    pub(crate) expires_at_ms: u64,
}

/// Writer of JSON lines.
#[derive(Debug)]
pub(crate) struct JsonlWriter {
    checksum: StreamChecksum,
    records: u64,
    line: Vec<u8>,
}

impl JsonlWriter {
    /// Writes the header. `stores` are the UUIDs of the shards' stores; an unreadable one is `None`.
    pub(crate) fn begin(out: &mut impl Write, time_ms: u64, stores: &[Option<[u8; 16]>]) -> std::io::Result<Self> {
        let mut writer = Self { checksum: StreamChecksum::new(), records: 0, line: Vec::new() };
        let hex = |uuid: [u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let store =
            |uuid: &Option<[u8; 16]>| uuid.map_or_else(|| "null".to_owned(), |uuid| format!("\"{}\"", hex(uuid)));
        let stores = stores.iter().map(store).collect::<Vec<_>>().join(",");
        let version = env!("CARGO_PKG_VERSION");
        writeln!(
            writer.line,
            "{{\"fawn_dump\":{FORMAT},\"fawn\":\"{version}\",\"time_ms\":{time_ms},\"stores\":[{stores}]}}"
        )?;
        writer.write_line(out)?;
        Ok(writer)
    }

    /// Writes a key.
    pub(crate) fn entry(&mut self, out: &mut impl Write, entry: &DumpEntry<'_>) -> std::io::Result<()> {
        self.line.push(b'{');
        field("key", entry.key, &mut self.line);
        self.line.push(b',');
        field("value", entry.value, &mut self.line);
        if entry.flags != 0 {
            write!(self.line, ",\"flags\":{}", entry.flags)?;
        }
        if entry.expires_at_ms != 0 {
            write!(self.line, ",\"expires_at_ms\":{}", entry.expires_at_ms)?;
        }
        self.line.extend_from_slice(b"}\n");
        self.records += 1;
        self.write_line(out)
    }

    /// Writes the end. `is_complete`: the store was sound.
    pub(crate) fn end(mut self, out: &mut impl Write, is_complete: bool) -> std::io::Result<()> {
        let (records, checksum) = (self.records, self.checksum.get());
        writeln!(
            self.line,
            "{{\"fawn_dump_end\":{FORMAT},\"records\":{records},\"complete\":{is_complete},\"xxh3\":\"{checksum:016x}\"}}"
        )?;
        self.write_line(out)
    }

    fn write_line(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        self.checksum.update(&self.line);
        out.write_all(&self.line)?;
        self.line.clear();
        Ok(())
    }
}

/// `"name":"text"`, or `"name_base64":"…"` of bytes that are no text.
fn field(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    if is_text(bytes) {
        out.extend_from_slice(b"\":\"");
        escape(bytes, out);
    } else {
        out.extend_from_slice(b"_base64\":\"");
        base64::encode(bytes, out);
    }
    out.push(b'"');
}

/// UTF-8 whose control characters have short escapes: others take six bytes each, more than base64.
fn is_text(bytes: &[u8]) -> bool {
    let has_long_escape = bytes.iter().any(|&byte| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r'));
    !has_long_escape && std::str::from_utf8(bytes).is_ok()
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\t' | b'\n' | b'\r')) {
        out.extend_from_slice(&rest[..at]);
        let escaped = match rest[at] {
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            quoted => quoted,
        };
        out.extend([b'\\', escaped]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> String {
        let mut out = Vec::new();
        let store = std::array::from_fn(|i| 0x40 + i as u8);
        let mut writer = JsonlWriter::begin(&mut out, 1_790_000_000_000, &[Some(store)]).expect("a Vec");
        let plain = DumpEntry { key: b"greeting", value: b"hello", flags: 0, expires_at_ms: 0 };
        let quoted = DumpEntry { key: "caf\u{e9}".as_bytes(), value: b"a \"b\"\n\\c", flags: 5, expires_at_ms: 0 };
        let binary = DumpEntry { key: b"\xff\x00", value: b"\x01", flags: 0, expires_at_ms: 1_790_000_060_000 };
        let empty = DumpEntry { key: b"empty", value: b"", flags: 0, expires_at_ms: 0 };
        for entry in [plain, quoted, binary, empty] {
            writer.entry(&mut out, &entry).expect("a Vec");
        }
        writer.end(&mut out, true).expect("a Vec");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_bytes_are_those_of_the_format_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/dump.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        assert!(page.contains(&example()), "the page should show\n{}", example());
    }

    #[test]
    fn every_line_is_json() {
        for line in example().lines() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert!(value.is_object());
        }
        let quoted: serde_json::Value = serde_json::from_str(example().lines().nth(2).expect("it")).expect("JSON");
        assert_eq!((&quoted["key"], &quoted["value"]), (&"caf\u{e9}".into(), &"a \"b\"\n\\c".into()));
    }

    #[test]
    fn the_longest_record_fits_a_line() {
        let worst = 2 * ((16 << 20) + (64 << 10)) + 200;
        assert!(worst <= LINE_BYTES_MAX, "{worst}");
    }
}
