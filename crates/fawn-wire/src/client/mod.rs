//! Owns the other end of both protocols: requests out, replies in.
