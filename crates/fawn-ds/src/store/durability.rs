//! When a write is acknowledged.

/// When [`crate::Store::put`] and the other writes return.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// When the write is synced: it survives a power loss.
    #[default]
    Sync,
    /// When the system has the write, which survives a killed process. It is synced within a second.
    EverySecond,
    /// At once, in memory. A killed process loses the last writes; they are handed to the system within 50 ms.
    Memory,
}

impl From<Durability> for fawn_types::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Sync => Self::Sync,
            Durability::EverySecond => Self::EverySec,
            Durability::Memory => Self::Memory,
        }
    }
}
