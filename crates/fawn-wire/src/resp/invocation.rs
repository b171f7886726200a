//! Owns a framed request and access to its arguments.
