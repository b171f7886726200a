//! `Version`: the total order of one range's writes, `epoch (28 bits) ‖ seq (36 bits)`; also memcached's cas.
use core::fmt;

const SEQ_BITS: u32 = 36;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

/// A configuration period of a chain: increases with every change of its members, never decreases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(u32);

impl Epoch {
    /// The largest epoch that fits 28 bits.
    pub const MAX: Self = Self((1 << 28) - 1);

    /// An epoch; `None` if `value` exceeds 28 bits.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The epoch's number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next epoch; `None` when 28 bits are used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// Position of a write in its range's history. `Version::ZERO` precedes every write and is never assigned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(u64);

impl Version {
    /// The version before the first write.
    pub const ZERO: Self = Self(0);
    /// From this sequence number on, the head requests a new epoch.
    pub const SEQ_SOFT_MAX: u64 = SEQ_MASK - (1 << 20);
    /// The largest sequence number within an epoch.
    pub const SEQ_MAX: u64 = SEQ_MASK;

    /// A version; `None` if `seq` does not fit 36 bits.
    #[must_use]
    pub const fn new(epoch: Epoch, seq: u64) -> Option<Self> {
        if seq <= SEQ_MASK { Some(Self(((epoch.0 as u64) << SEQ_BITS) | seq)) } else { None }
    }

    /// A version from its 64-bit form; every value is valid.
    #[must_use]
    pub const fn from_u64(raw: u64) -> Self {
        Self(raw)
    }

    /// The 64-bit form, used on flash, on the wire, and as memcached's cas.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The epoch that assigned it.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch((self.0 >> SEQ_BITS) as u32)
    }

    /// Position within the epoch, without gaps from 1.
    #[must_use]
    pub const fn seq(self) -> u64 {
        self.0 & SEQ_MASK
    }

    /// The following version of the same epoch; `None` when the 36 bits are used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        if self.seq() == SEQ_MASK { None } else { Some(Self(self.0 + 1)) }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch().get(), self.seq())
    }
}
