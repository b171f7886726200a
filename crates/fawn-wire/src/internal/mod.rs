//! FAWN's internal protocol: requests and replies between the members of a node or a cluster, and the messages that
//! carry them between the shards of a node.
//!
//! ```text
//! request: kind u8 | key_len u16 | key | fields of the kind | value or bytes to the end
//! reply:   kind u8 | fields of the kind | value to the end     (also the result in a record on flash)
//! ```
//! If the high bit of a reply's kind is set, the version is omitted: it is the version of the record that contains
//! the reply. All numbers are little-endian. `docs/formats/peer-payloads.md` has the tables.
mod keyspace_op;
mod message;
mod reply;
mod request;

pub use keyspace_op::{
    KeyValuePairs, KeyspaceRequest, is_keyspace, put_keyspace, put_pair, put_scan_page, read_keyspace, read_scan_page,
};
pub use message::{Message, RequestFields, put_larger_message, put_notice, put_reply_message, put_request_message};
pub use reply::{EncodedReply, put_result, read_result};
pub use request::{RequestBody, put_request, read_request};
