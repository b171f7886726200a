//! Owns the refusals and their wording.
