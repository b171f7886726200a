//! Tests of the codecs: transcripts, split input, the table compared with Redis's, and the fuzz targets by seed.
mod clients;
mod driver;
mod facts;
mod fuzzing;
mod internal;
mod memcached;
mod page;
mod redis;
mod splits;
