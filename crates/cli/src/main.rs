//! The command line of Sprat: see `sprat --help`.
mod args;
mod fail;
mod out;
mod process;
mod records;
fn main() {}
