//! Streams of the log: each has segments of its own, in one order.
use core::ops::{Index, IndexMut};

/// Kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u32)]
pub enum StreamKind {
    /// The ranges' histories, in the order of their writes.
    #[default]
    Foreground = 0,
    /// Records that cleaning moved out of other segments: all committed, in any order of versions, no part of a history.
    Survivors = 1,
}

impl StreamKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Foreground, Self::Survivors];

    /// From its number on flash.
    #[must_use]
    pub const fn from_u32(kind: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::Foreground),
            1 => Some(Self::Survivors),
            _ => None,
        }
    }
}

impl core::fmt::Display for StreamKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Foreground => "foreground",
            Self::Survivors => "survivors",
        })
    }
}

/// A value for each stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerStream<T> {
    foreground: T,
    survivors: T,
}

impl<T> PerStream<T> {
    /// The values that `value_of` returns.
    pub fn from_fn(mut value_of: impl FnMut(StreamKind) -> T) -> Self {
        Self { foreground: value_of(StreamKind::Foreground), survivors: value_of(StreamKind::Survivors) }
    }

    /// The values, in the order of [`StreamKind::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.foreground, &self.survivors].into_iter()
    }
}

impl<T> Index<StreamKind> for PerStream<T> {
    type Output = T;

    #[inline]
    fn index(&self, kind: StreamKind) -> &T {
        match kind {
            StreamKind::Foreground => &self.foreground,
            StreamKind::Survivors => &self.survivors,
        }
    }
}

impl<T> IndexMut<StreamKind> for PerStream<T> {
    #[inline]
    fn index_mut(&mut self, kind: StreamKind) -> &mut T {
        match kind {
            StreamKind::Foreground => &mut self.foreground,
            StreamKind::Survivors => &mut self.survivors,
        }
    }
}
