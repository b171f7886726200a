//! Keys and values as the store returns them.
use core::borrow::Borrow;
use core::fmt;
use core::ops::Deref;
use fawn_types::{EntryRef, Version};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A key: dereferences to its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBytes(Box<[u8]>);

impl KeyBytes {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

/// A value with its version and expiry: dereferences to its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    bytes: Box<[u8]>,
    version: Version,
    expires_at_ms: u64,
}

impl Value {
    pub(super) fn new(bytes: Vec<u8>, version: Version, expires_at_ms: u64) -> Self {
        Self { bytes: bytes.into(), version, expires_at_ms }
    }

    pub(super) fn of(entry: &EntryRef<'_>) -> Self {
        Self::new(entry.value.to_vec(), entry.version, entry.expires_at_ms)
    }

    /// The write that made it: see [`crate::PutOptions::if_version`].
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// When it ceases to exist; `None` for never.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        if self.expires_at_ms == 0 {
            return None;
        }
        UNIX_EPOCH.checked_add(Duration::from_millis(self.expires_at_ms))
    }

    /// The bytes.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes.into_vec()
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(b\"{}\")", self.0.escape_ascii())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value(b\"{}\", {:?})", self.bytes.escape_ascii(), self.version)
    }
}

/// Everything that bytes can do.
macro_rules! as_bytes {
    ($type:ty, $($field:tt)+) => {
        impl Deref for $type {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.$($field)+
            }
        }
        impl AsRef<[u8]> for $type {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }
        impl PartialEq<[u8]> for $type {
            fn eq(&self, other: &[u8]) -> bool {
                **self == *other
            }
        }
        impl<const N: usize> PartialEq<[u8; N]> for $type {
            fn eq(&self, other: &[u8; N]) -> bool {
                **self == *other
            }
        }
        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                **self == *other.as_bytes()
            }
        }
        impl<T: ?Sized> PartialEq<&T> for $type
        where
            $type: PartialEq<T>,
        {
            fn eq(&self, other: &&T) -> bool {
                self == *other
            }
        }
        impl From<$type> for Vec<u8> {
            fn from(bytes: $type) -> Self {
                bytes.into_vec()
            }
        }
    };
}

as_bytes!(KeyBytes, 0);
as_bytes!(Value, bytes);

impl Borrow<[u8]> for KeyBytes {
    fn borrow(&self) -> &[u8] {
        self
    }
}
