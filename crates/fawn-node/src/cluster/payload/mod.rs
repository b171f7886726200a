//! Owns the byte form of what peer frames carry for nodes: requests, replies, results in records, records on links.
//!
//! ```text
//! request: session u64 | kind u8 | key_len u16 | key | fields of the kind | value or bytes to the end
//! reply:   session u64 | result, with its version filled in
//! result:  form u8 | fields of the form | value to the end     (also a record's result on flash)
//! records: as in a segment, each for place (0, 0): any log of the range can take them
//! ```
//! A form with its high bit set leaves its version out: it is that of the record that carries it. All numbers are
//! little endian. `docs/formats/peer-payloads.md` has the tables.
mod bytes;
mod records;
mod reply;
mod request;
mod wide;

pub use bytes::PayloadError;
pub(crate) use records::{put_record, records_of};
pub use reply::decode_reply;
pub(crate) use reply::{OwnedForm, put_reply, put_result, put_result_as_reply};
pub use request::{decode_request, encode_request};
pub use wide::{Pairs, WideRequest, decode_wide, encode_wide, put_pair};
pub(crate) use wide::{is_wide, put_scan_page, read_scan_page};
