//! Owns a memcached command line: its words.
