//! Glob patterns of Redis's `SCAN` and `CONFIG GET`: `*`, `?`, `[a-z]`, `[^…]`, `\x`.

/// Maximum length of a pattern. A match takes time proportional to the product of both lengths.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Whether `text` matches `pattern`. A pattern that is too long matches nothing.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if pattern.len() > PATTERN_BYTES_MAX {
        return false;
    }
    let (mut p, mut t) = (0, 0);
    // The position to retry from after a mismatch: after the last star, one byte later. Earlier stars need no retry.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        match (text.get(t), one(&pattern[p..], text.get(t).copied())) {
            (None, _) if p == pattern.len() => return true,
            (Some(_), Some(used)) => {
                p += used;
                t += 1;
            }
            _ => match retry {
                Some((after_star, from)) if from < text.len() => {
                    retry = Some((after_star, from + 1));
                    (p, t) = (after_star, from + 1);
                }
                _ => return false,
            },
        }
    }
}

/// Matches one element of the pattern against `byte`; returns the length of the element.
fn one(pattern: &[u8], byte: Option<u8>) -> Option<usize> {
    let byte = byte?;
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', class @ ..] => in_class(class, byte).map(|used| used + 1),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Matches `byte` against the class after its `[`; returns the length up to and including `]`, which may be missing.
fn in_class(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let (mut at, mut found) = (usize::from(negated), false);
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}
