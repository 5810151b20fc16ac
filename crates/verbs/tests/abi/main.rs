//! The two libraries as C sees them: their symbols beside those of Debian's, their layouts beside the installed headers,
//! and programs that nobody here built.

mod install;
mod layouts;
#[path = "../place/mod.rs"]
mod place;
mod programs;
mod symbols;
mod sysfs;

/// Where distributions have their libraries.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";
