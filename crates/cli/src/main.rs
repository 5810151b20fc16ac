//! The command line of Sprat: see `sprat --help`.
mod args;
mod export;
mod fail;
mod import;
mod out;
mod process;
mod progress;
mod perf {
    mod measure;
    mod report;
}
mod records;
fn main() {}
