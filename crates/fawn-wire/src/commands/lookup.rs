//! Command lookup by name, case-insensitive: a hash table built at compile time from the command table.
use super::{COMMANDS, CommandSpec};
use crate::Protocol;

/// Maximum length of a name, bytes: names are compared as 128-bit words.
const NAME_BYTES_MAX: usize = 16;
/// Number of slots: at least twice the number of commands of each protocol, so that probe sequences are short.
const SLOTS: usize = 256;
const EMPTY: u16 = u16::MAX;

/// A hash table with open addressing and linear probing: names, and their rows in the command table.
struct CommandIndex {
    names: [u128; SLOTS],
    rows: [u16; SLOTS],
}

static RESP: CommandIndex = CommandIndex::build(Protocol::Resp);
static MEMCACHED: CommandIndex = CommandIndex::build(Protocol::Memcached);

impl CommandIndex {
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

/// The command `name` of `protocol`. Names are case-insensitive in Redis, lower case only in memcached.
#[inline]
pub(crate) fn find(protocol: Protocol, name: &[u8]) -> Option<&'static CommandSpec> {
    match protocol {
        Protocol::Resp => RESP.find(name),
        Protocol::Memcached => MEMCACHED.find(name).filter(|spec| spec.name.as_bytes() == name),
    }
}

/// The subcommand `name` of `container`. A linear search suffices, since subcommands are few and rarely used.
pub(crate) fn find_subcommand(container: &str, name: &[u8]) -> Option<&'static CommandSpec> {
    COMMANDS.iter().find(|spec| {
        let sub = spec.name.split_once('|').filter(|(outer, _)| *outer == container);
        sub.is_some_and(|(_, inner)| inner.as_bytes().eq_ignore_ascii_case(name))
    })
}

/// The name in lower case as one word. Leading NUL bytes do not change the word, so callers compare the lengths too.
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
