//! Marker key with the state of the demo's load, stored with the data and therefore as durable.
use crate::client::CliClient;
use crate::failure::Failure;
use fawn_wire::client::resp::RespReply;

/// No package has this name: Debian's names have no colon.
const KEY: &[u8] = b"fawn:demo";

/// A loaded or partly loaded catalogue.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Marker {
    /// Origin of the catalogue.
    pub(super) source: String,
    /// Its digest.
    pub(super) digest: String,
    /// Number of its packages.
    pub(super) packages: usize,
    /// One of its packages.
    pub(super) example: String,
    /// Written only after every package was acknowledged.
    pub(super) is_complete: bool,
}

impl Marker {
    /// Reads the marker; one that does not parse counts as absent.
    pub(super) fn fetch(client: &mut CliClient) -> Result<Option<Self>, Failure> {
        client.call(&[b"GET", KEY], |reply| match reply {
            RespReply::Bulk(value) => serde_json::from_slice(value).ok(),
            _ => None,
        })
    }

    /// Writes the marker.
    pub(super) fn store(&self, client: &mut CliClient) -> Result<(), Failure> {
        let value = serde_json::json!(self).to_string();
        client.call(&[b"SET", KEY, value.as_bytes()], |_| ())
    }
}
