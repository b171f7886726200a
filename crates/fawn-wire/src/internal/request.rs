//! The binary encoding of requests.
use super::keyspace_op::{KeyspaceRequest, is_keyspace, put_keyspace, read_keyspace};
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader, PutFields};
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Expiry, Request, Update, Version, limits};

/// A request on one key, or on a member's whole range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBody<'a> {
    /// On one key.
    Key(Request<'a>),
    /// On a whole range.
    Keyspace(KeyspaceRequest<'a>),
}

impl<'a> RequestBody<'a> {
    /// Whether it changes the range.
    #[must_use]
    pub const fn is_update(&self) -> bool {
        match self {
            Self::Key(request) => matches!(request, Request::Update { .. }),
            Self::Keyspace(request) => matches!(request, KeyspaceRequest::Clear | KeyspaceRequest::SetAll(_)),
        }
    }

    /// Appends the request. Keys must not exceed the key length limit.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Key(request) => put_request(request, out),
            Self::Keyspace(request) => put_keyspace(request, out),
        }
    }

    /// Decodes a request; the result borrows from the bytes.
    ///
    /// # Errors
    /// If the bytes are not a valid request.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if is_keyspace(bytes) { read_keyspace(bytes).map(Self::Keyspace) } else { read_request(bytes).map(Self::Key) }
    }
}

/// Appends `request` to `out`. The key must not exceed the key length limit.
pub fn put_request(request: &Request<'_>, out: &mut Vec<u8>) {
    let key = request.key();
    assert!(key.len() <= limits::KEY_BYTES_MAX, "a key of {} bytes", key.len());
    out.push(match request {
        Request::Get { .. } => 0,
        Request::Update { update, .. } => kind_of(update),
    });
    out.put_u16(key.len() as u16);
    out.extend_from_slice(key);
    if let Request::Update { update, .. } = request {
        put_update(out, update);
    }
}

const fn kind_of(update: &Update<'_>) -> u8 {
    match update {
        Update::Set { .. } => 1,
        Update::Append { .. } => 2,
        Update::Prepend { .. } => 3,
        Update::AddSigned { .. } => 4,
        Update::AddUnsigned { .. } => 5,
        Update::SubtractUnsigned { .. } => 6,
        Update::Delete { .. } => 7,
        Update::Touch { .. } => 8,
    }
}

fn put_update(out: &mut Vec<u8>, update: &Update<'_>) {
    match *update {
        Update::Set { value, flags, expiry, condition, return_previous } => {
            out.put_u32(flags);
            put_expiry(out, expiry);
            put_condition(out, condition);
            out.push(u8::from(return_previous));
            out.extend_from_slice(value);
        }
        Update::Append { bytes, create, condition } | Update::Prepend { bytes, create, condition } => {
            out.push(u8::from(create));
            put_condition(out, condition);
            out.extend_from_slice(bytes);
        }
        Update::AddSigned { delta } => out.extend_from_slice(&delta.to_le_bytes()),
        Update::AddUnsigned { delta } | Update::SubtractUnsigned { delta } => out.put_u64(delta),
        Update::Delete { condition, return_previous } => {
            put_condition(out, condition);
            out.push(u8::from(return_previous));
        }
        Update::Touch { expiry, condition, return_value } => {
            put_expiry(out, expiry);
            out.push(condition as u8);
            out.push(u8::from(return_value));
        }
    }
}

fn put_expiry(out: &mut Vec<u8>, expiry: Expiry) {
    match expiry {
        Expiry::Never => out.push(0),
        Expiry::Keep => out.push(1),
        Expiry::AtMs(at) => {
            out.push(2);
            out.put_u64(at);
        }
        Expiry::InMs(ms) => {
            out.push(3);
            out.put_u64(ms);
        }
    }
}

fn put_condition(out: &mut Vec<u8>, condition: Condition) {
    match condition {
        Condition::Always => out.push(0),
        Condition::Exists => out.push(1),
        Condition::Absent => out.push(2),
        Condition::VersionIs(version) => {
            out.push(3);
            out.put_u64(version.as_u64());
        }
    }
}

/// Decodes a request; the result borrows from the bytes.
///
/// # Errors
/// If the bytes are not a valid request.
pub fn read_request(form: &[u8]) -> Result<Request<'_>, DecodeError> {
    let mut reader = FrameReader::new(form);
    let kind = reader.u8("kind")?;
    let key_len = usize::from(reader.u16("key length")?);
    let key = reader.take("key", key_len)?;
    let update = match kind {
        0 => {
            reader.finish("request")?;
            return Ok(Request::Get { key });
        }
        1 => read_set(&mut reader)?,
        2 | 3 => read_append(&mut reader, kind == 2)?,
        4 => Update::AddSigned { delta: reader.u64("delta")?.cast_signed() },
        5 => Update::AddUnsigned { delta: reader.u64("delta")? },
        6 => Update::SubtractUnsigned { delta: reader.u64("delta")? },
        7 => {
            let condition = read_condition(&mut reader)?;
            Update::Delete { condition, return_previous: reader.flag("return previous")? }
        }
        8 => read_touch(&mut reader)?,
        other => return Err(DecodeError::Value { what: "kind", found: u64::from(other) }),
    };
    reader.finish("request")?;
    Ok(Request::Update { key, update })
}

fn read_set<'a>(reader: &mut FrameReader<'a>) -> Result<Update<'a>, DecodeError> {
    let flags = reader.u32("flags")?;
    let expiry = read_expiry(reader)?;
    let condition = read_condition(reader)?;
    let return_previous = reader.flag("return previous")?;
    Ok(Update::Set { value: reader.rest(), flags, expiry, condition, return_previous })
}

fn read_append<'a>(reader: &mut FrameReader<'a>, at_end: bool) -> Result<Update<'a>, DecodeError> {
    let create = reader.flag("create")?;
    let condition = read_condition(reader)?;
    let bytes = reader.rest();
    Ok(if at_end { Update::Append { bytes, create, condition } } else { Update::Prepend { bytes, create, condition } })
}

fn read_touch<'a>(reader: &mut FrameReader<'a>) -> Result<Update<'a>, DecodeError> {
    let expiry = read_expiry(reader)?;
    let condition = match reader.u8("expiry condition")? {
        0 => ExpiryCondition::Always,
        1 => ExpiryCondition::HasNone,
        2 => ExpiryCondition::HasOne,
        3 => ExpiryCondition::Later,
        4 => ExpiryCondition::Earlier,
        5 => ExpiryCondition::EarlierThanOne,
        found => return Err(DecodeError::Value { what: "expiry condition", found: u64::from(found) }),
    };
    Ok(Update::Touch { expiry, condition, return_value: reader.flag("return value")? })
}

fn read_expiry(reader: &mut FrameReader<'_>) -> Result<Expiry, DecodeError> {
    match reader.u8("expiry")? {
        0 => Ok(Expiry::Never),
        1 => Ok(Expiry::Keep),
        2 => Ok(Expiry::AtMs(reader.u64("expiry time")?)),
        3 => Ok(Expiry::InMs(reader.u64("time to live")?)),
        found => Err(DecodeError::Value { what: "expiry", found: u64::from(found) }),
    }
}

fn read_condition(reader: &mut FrameReader<'_>) -> Result<Condition, DecodeError> {
    match reader.u8("condition")? {
        0 => Ok(Condition::Always),
        1 => Ok(Condition::Exists),
        2 => Ok(Condition::Absent),
        3 => Ok(Condition::VersionIs(Version::from_u64(reader.u64("condition's version")?))),
        found => Err(DecodeError::Value { what: "condition", found: u64::from(found) }),
    }
}
