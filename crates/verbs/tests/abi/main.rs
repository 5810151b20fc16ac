//! Tests of the two libraries as C sees them: their symbols beside those of Debian's libraries,
//! their layouts beside the installed headers, and Debian's own programs.

mod install;
mod layouts;
mod programs;
#[path = "../support/mod.rs"]
mod support;
mod symbols;
mod sysfs;

/// The directory of the Linux distribution's libraries.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";
