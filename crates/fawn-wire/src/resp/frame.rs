//! Owns RESP's framing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resume {}
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Discard {}
