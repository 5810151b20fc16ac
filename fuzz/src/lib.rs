//! The parts of fuzz targets that do not fit their files.

pub mod two_hosts;
