//! `sprat exec`: another program on our libibverbs and librdmacm, with what it reads of devices in `/sys`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Exec;
use sprat_bench::fail::Fail;

/// Names another folder with the libraries.
const FOLDER: &str = "SPRAT_VERBS";
/// Where the system's loader looks first.
const LOADER: &str = "LD_LIBRARY_PATH";
/// What it loads before all others.
const PRELOADED: &str = "LD_PRELOAD";
/// Shows programs our devices in `/sys`.
const SYSFS: &str = "libsprat-sysfs.so";
/// Tells the libraries that other machines are allowed.
const INSECURE: &str = "SPRAT_INSECURE_NETWORK";
const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", SYSFS];

/// Runs the command: this process becomes the program, with its process id, its terminal and its exit code.
pub(crate) fn run(args: &Exec) -> Result<(), Fail> {
    let folder = folder()?;
    let mut command = Command::new(&args.program);
    command.args(&args.arguments).env(LOADER, before_others(folder.as_os_str(), LOADER));
    let sysfs = folder.join(SYSFS);
    // The loader splits its list at these, and would say for each program that it does not find the parts.
    let is_one_word = !sysfs.to_string_lossy().contains([' ', ':']);
    if !args.no_sysfs && is_one_word {
        command.env(PRELOADED, before_others(sysfs.as_os_str(), PRELOADED));
    }
    if args.insecure_network {
        command.env(INSECURE, "1");
    }
    let error = command.exec();
    Err(Fail::new(format!("{}: {error}", args.program.display())))
}

/// A list of the loader's with one more in front.
fn before_others(first: &OsStr, variable: &str) -> OsString {
    let mut list = first.to_owned();
    if let Some(others) = env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The folder with the libraries: the one that is named, else `verbs` beside this program (where they are built), else
/// `lib/sprat` beside its folder (where they are installed).
fn folder() -> Result<PathBuf, Fail> {
    let whole = |folder: &Path| LIBRARIES.iter().all(|library| folder.join(library).exists());
    let build = "build them: make verbs";
    if let Some(named) = env::var_os(FOLDER).map(PathBuf::from) {
        if whole(&named) {
            return Ok(named);
        }
        return Err(Fail::new(format!(
            "{FOLDER}={}: no {} there",
            named.display(),
            LIBRARIES.join(", ")
        ))
        .next(build));
    }
    let own = env::current_exe().map_err(|e| Fail::new(format!("where this program is: {e}")))?;
    let own = own.parent().unwrap_or_else(|| Path::new("/"));
    let candidates = [own.join("verbs"), own.join("../lib/sprat")];
    let Some(folder) = candidates.iter().find(|f| whole(f)) else {
        return Err(Fail::new(format!(
            "no {} in {}",
            LIBRARIES.join(", "),
            candidates[0].display()
        ))
        .next(build));
    };
    folder.canonicalize().map_err(|e| Fail::new(format!("{}: {e}", folder.display())))
}
