//! Owns the tests of the codecs: transcripts, splits, the table against redis's own, the fuzz targets by seed.
mod clients;
mod driver;
mod facts;
mod fuzzing;
mod memcached;
mod page;
mod redis;
mod splits;
