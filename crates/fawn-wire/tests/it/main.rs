//! Tests of the codecs: transcripts, split input, and the table compared with Redis's.
mod clients;
mod driver;
mod facts;
mod internal;
mod memcached;
mod page;
mod redis;
mod splits;
