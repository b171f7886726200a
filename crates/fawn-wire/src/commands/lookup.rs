//! Owns finding a command by name, whatever its case: a hash table made at compile time from the one list.
use super::{COMMANDS, CommandSpec};
use crate::Protocol;

/// Longest name in the table, bytes: names are compared as one 128-bit word.
const NAME_BYTES_MAX: usize = 16;
/// Slots; at least twice the commands of either protocol, so that probing ends soon.
const SLOTS: usize = 256;
const EMPTY: u16 = u16::MAX;

/// Open addressing with linear probing: names, and rows of the table.
struct Index {
    names: [u128; SLOTS],
    rows: [u16; SLOTS],
}

static RESP: Index = Index::build(Protocol::Resp);
static MEMCACHED: Index = Index::build(Protocol::Memcached);

impl Index {
    const fn build(protocol: Protocol) -> Self {
        let mut index = Self { names: [0; SLOTS], rows: [EMPTY; SLOTS] };
        let (mut row, mut used) = (0, 0);
        while row < COMMANDS.len() {
            let spec = &COMMANDS[row];
            // Subcommands are found through their container.
            let top = !has_bar(spec.name.as_bytes());
            if top && matches!(protocol, Protocol::Resp) == matches!(spec.protocol, Protocol::Resp) {
                let name = fold(spec.name.as_bytes());
                let mut slot = slot_of(name);
                while index.rows[slot] != EMPTY {
                    assert!(index.names[slot] != name, "a command is in the table twice");
                    slot = (slot + 1) % SLOTS;
                }
                index.names[slot] = name;
                index.rows[slot] = row as u16;
                used += 1;
            }
            row += 1;
        }
        assert!(used * 2 <= SLOTS);
        index
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<&'static CommandSpec> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let len = name.len();
        let name = fold(name);
        let mut slot = slot_of(name);
        while self.rows[slot] != EMPTY {
            if self.names[slot] == name {
                return COMMANDS.get(usize::from(self.rows[slot])).filter(|spec| spec.name.len() == len);
            }
            slot = (slot + 1) % SLOTS;
        }
        None
    }
}

/// The command called `name` in `protocol`. memcached's names are lower case only, Redis's any case.
#[inline]
pub(crate) fn find(protocol: Protocol, name: &[u8]) -> Option<&'static CommandSpec> {
    match protocol {
        Protocol::Resp => RESP.find(name),
        Protocol::Memcached => MEMCACHED.find(name).filter(|spec| spec.name.as_bytes() == name),
        // Its requests have kinds, not names.
        Protocol::Native => None,
    }
}

/// The subcommand `name` of `container`. Few and rare, so by walking the table.
pub(crate) fn find_subcommand(container: &str, name: &[u8]) -> Option<&'static CommandSpec> {
    COMMANDS.iter().find(|spec| {
        let sub = spec.name.split_once('|').filter(|(outer, _)| *outer == container);
        sub.is_some_and(|(_, inner)| inner.as_bytes().eq_ignore_ascii_case(name))
    })
}

/// The name in lower case as one word. A leading NUL vanishes, so the lengths are compared too.
const fn fold(name: &[u8]) -> u128 {
    let mut word = 0u128;
    let mut i = 0;
    while i < name.len() {
        let byte = name[i];
        let lower = if byte.is_ascii_uppercase() { byte | 0x20 } else { byte };
        word = word << 8 | lower as u128;
        i += 1;
    }
    word
}

const fn slot_of(name: u128) -> usize {
    let folded = (name as u64) ^ (name >> 64) as u64;
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % SLOTS
}

const fn has_bar(name: &[u8]) -> bool {
    let mut i = 0;
    while i < name.len() {
        if name[i] == b'|' {
            return true;
        }
        i += 1;
    }
    false
}
