//! The binary encoding of replies, and of the results that records keep for retries.
use alloc::boxed::Box;
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};
use fawn_types::{EntryRef, OperationError, Reply, Version};

/// Flag in the kind: the version is that of the record that contains the result.
const OWN_VERSION: u8 = 0x80;
/// Flag in the kind of `Previous`: the key had an entry.
const HAS_ENTRY: u8 = 0x40;

/// The encoded bytes of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedReply(Box<[u8]>);

impl EncodedReply {
    /// Encodes `reply`.
    #[must_use]
    pub fn of(reply: &Reply<'_>) -> Self {
        let mut bytes = Vec::new();
        put_result(&mut bytes, reply);
        Self(bytes.into())
    }

    /// Decodes the reply.
    #[must_use]
    pub fn as_reply(&self) -> Reply<'_> {
        read_result(&self.0, Version::ZERO).unwrap_or(Reply::Error(OperationError::Unavailable))
    }
}

/// Appends `reply` as a result. A version that is not assigned yet (zero) is omitted.
pub fn put_result(out: &mut Vec<u8>, reply: &Reply<'_>) {
    match reply {
        Reply::Value(entry) => put_entry(out, 1, entry),
        Reply::Absent => out.push(2),
        Reply::Stored { version, value_bytes } => {
            put_kind(out, 3, *version);
            out.put_u32(*value_bytes);
        }
        Reply::NotStored => out.push(4),
        Reply::VersionMismatch => out.push(5),
        Reply::NotFound => out.push(6),
        Reply::Deleted => out.push(7),
        Reply::Touched => out.push(8),
        Reply::NotTouched => out.push(9),
        Reply::Signed(value) => {
            out.push(10);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Reply::Unsigned(value) => {
            out.push(11);
            out.put_u64(*value);
        }
        Reply::Previous { entry: Some(entry), applied } => {
            put_entry(out, HAS_ENTRY | if *applied { 13 } else { 12 }, entry);
        }
        Reply::Previous { entry: None, applied } => out.push(if *applied { 13 } else { 12 }),
        Reply::Error(error) => {
            out.push(14);
            put_error(out, *error);
        }
    }
}

fn put_kind(out: &mut Vec<u8>, form: u8, version: Version) {
    if version == Version::ZERO {
        out.push(form | OWN_VERSION);
    } else {
        out.push(form);
        out.put_u64(version.as_u64());
    }
}

fn put_entry(out: &mut Vec<u8>, form: u8, entry: &EntryRef<'_>) {
    put_kind(out, form, entry.version);
    out.put_u32(entry.flags);
    out.put_u64(entry.expires_at_ms);
    out.extend_from_slice(entry.value);
}

fn put_error(out: &mut Vec<u8>, error: OperationError) {
    let (code, detail) = match error {
        OperationError::NotAnInteger => (1, 0),
        OperationError::NotANumber => (2, 0),
        OperationError::Overflow => (3, 0),
        OperationError::KeyTooLong => (4, 0),
        OperationError::ValueTooLong { limit_bytes } => (5, limit_bytes),
        OperationError::StoreFull => (6, 0),
        OperationError::Overloaded => (7, 0),
        OperationError::Unavailable => (8, 0),
        OperationError::Corrupt => (9, 0),
        OperationError::Poisoned => (10, 0),
        OperationError::TooFewCopies => (11, 0),
        OperationError::RecordsTooLong { limit_bytes } => (12, limit_bytes),
        OperationError::PoisonedInFlight => (13, 0),
    };
    out.push(code);
    out.put_u32(detail);
}

/// Decodes the result contained in a record of `version`.
///
/// # Errors
/// If the bytes are not a valid reply.
pub fn read_result(result: &[u8], version: Version) -> Result<Reply<'_>, DecodeError> {
    let mut reader = FrameReader::new(result);
    let form = reader.u8("reply kind")?;
    let own = (form & OWN_VERSION != 0).then_some(version);
    let reply = match form & !OWN_VERSION {
        1 => Reply::Value(read_entry(&mut reader, own)?),
        3 => Reply::Stored { version: read_version(&mut reader, own)?, value_bytes: reader.u32("value length")? },
        with if with == HAS_ENTRY | 12 || with == HAS_ENTRY | 13 => {
            let entry = Some(read_entry(&mut reader, own)?);
            Reply::Previous { entry, applied: with == HAS_ENTRY | 13 }
        }
        plain if own.is_none() => read_plain(&mut reader, plain)?,
        found => return Err(DecodeError::Value { what: "reply kind", found: u64::from(found) }),
    };
    reader.finish("reply")?;
    Ok(reply)
}

/// Decodes the kinds without a version.
fn read_plain<'a>(reader: &mut FrameReader<'a>, form: u8) -> Result<Reply<'a>, DecodeError> {
    Ok(match form {
        2 => Reply::Absent,
        4 => Reply::NotStored,
        5 => Reply::VersionMismatch,
        6 => Reply::NotFound,
        7 => Reply::Deleted,
        8 => Reply::Touched,
        9 => Reply::NotTouched,
        10 => Reply::Signed(reader.u64("signed value")?.cast_signed()),
        11 => Reply::Unsigned(reader.u64("unsigned value")?),
        12 | 13 => Reply::Previous { entry: None, applied: form == 13 },
        14 => Reply::Error(read_error(reader)?),
        found => return Err(DecodeError::Value { what: "reply kind", found: u64::from(found) }),
    })
}

fn read_version(reader: &mut FrameReader<'_>, own: Option<Version>) -> Result<Version, DecodeError> {
    own.map_or_else(|| reader.u64("version").map(Version::from_u64), Ok)
}

fn read_entry<'a>(reader: &mut FrameReader<'a>, own: Option<Version>) -> Result<EntryRef<'a>, DecodeError> {
    let version = read_version(reader, own)?;
    let flags = reader.u32("flags")?;
    let expires_at_ms = reader.u64("expiry time")?;
    Ok(EntryRef { value: reader.rest(), flags, expires_at_ms, version })
}

fn read_error(reader: &mut FrameReader<'_>) -> Result<OperationError, DecodeError> {
    let code = reader.u8("error")?;
    let detail = reader.u32("error's detail")?;
    Ok(match code {
        1 => OperationError::NotAnInteger,
        2 => OperationError::NotANumber,
        3 => OperationError::Overflow,
        4 => OperationError::KeyTooLong,
        5 => OperationError::ValueTooLong { limit_bytes: detail },
        6 => OperationError::StoreFull,
        7 => OperationError::Overloaded,
        8 => OperationError::Unavailable,
        9 => OperationError::Corrupt,
        10 => OperationError::Poisoned,
        11 => OperationError::TooFewCopies,
        12 => OperationError::RecordsTooLong { limit_bytes: detail },
        13 => OperationError::PoisonedInFlight,
        found => return Err(DecodeError::Value { what: "error", found: u64::from(found) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_versions_are_filled_in_from_the_record() {
        let version = Version::from_u64(77);
        let mut result = Vec::new();
        put_result(&mut result, &Reply::Stored { version: Version::ZERO, value_bytes: 3 });
        assert_eq!(result.len(), 5, "every record contains a result, so the result of a set is short");
        assert_eq!(read_result(&result, version), Ok(Reply::Stored { version, value_bytes: 3 }));
    }

    #[test]
    fn every_reply_survives_and_no_prefix_panics() {
        let entry = EntryRef { value: b"value", flags: 7, expires_at_ms: 8, version: Version::from_u64(9) };
        let replies = [
            Reply::Value(entry),
            Reply::Absent,
            Reply::NotStored,
            Reply::Signed(-5),
            Reply::Unsigned(u64::MAX),
            Reply::Previous { entry: Some(entry), applied: true },
            Reply::Previous { entry: Some(entry), applied: false },
            Reply::Previous { entry: None, applied: true },
            Reply::Error(OperationError::ValueTooLong { limit_bytes: 12 }),
        ];
        for reply in replies {
            let mut bytes = Vec::new();
            put_result(&mut bytes, &reply);
            assert_eq!(read_result(&bytes, Version::ZERO), Ok(reply));
            (0..bytes.len()).for_each(|cut| assert!(read_result(&bytes[..cut], Version::ZERO) != Ok(reply)));
        }
    }
}
