//! Owns the fuzz targets.
