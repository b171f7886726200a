//! Owns the key that says what the demo has loaded: in the store itself, so that it is as durable as what it speaks of.
use crate::client::{Client, ClientError};
use fawn_wire::client::resp::Reply;

/// No package is called so: Debian's names have no colon.
const KEY: &[u8] = b"fawn:demo";

/// What is in the store, or on its way in.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Marker {
    /// Where the catalogue came from.
    pub(super) source: String,
    /// Its digest.
    pub(super) digest: String,
    /// Its packages.
    pub(super) packages: usize,
    /// One of them.
    pub(super) example: String,
    /// Written only after every package was acknowledged.
    pub(super) is_complete: bool,
}

impl Marker {
    /// The store's; one that does not parse (whoever wrote there) is as none.
    pub(super) fn fetch(client: &mut Client) -> Result<Option<Self>, ClientError> {
        client.call(&[b"GET", KEY], |reply| match reply {
            Reply::Bulk(value) => serde_json::from_slice(value).ok(),
            _ => None,
        })
    }

    /// Puts it into the store.
    pub(super) fn store(&self, client: &mut Client) -> Result<(), ClientError> {
        let value = serde_json::json!(self).to_string();
        client.call(&[b"SET", KEY, value.as_bytes()], |_| ())
    }
}
