//! `sprat exec`: runs another program with our libibverbs and librdmacm, and with the files of our
//! devices in `/sys`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use sprat::locator::Locator;
use sprat_bench::fail::Fail;

/// The environment variable that names another folder with our libibverbs and librdmacm.
const FOLDER: &str = "SPRAT_VERBS";
/// The environment variable with the folders that the dynamic loader searches first.
const LOADER: &str = "LD_LIBRARY_PATH";
/// The environment variable with the libraries that the dynamic loader loads first.
const PRELOADED: &str = "LD_PRELOAD";
/// The library that shows our RDMA devices in `/sys` to programs.
const SYSFS: &str = "libsprat-sysfs.so";
/// The environment variable with the locator of the device that the libraries use.
const DEVICE: &str = "SPRAT_DEVICE";
/// The environment variable that lets our libibverbs and librdmacm communicate with other machines.
const INSECURE: &str = "SPRAT_INSECURE_NETWORK";
const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", SYSFS];

/// Run a program that was built for RDMA hardware on software RDMA, without root.
///
/// The program gets our libibverbs.so.1 and librdmacm.so.1, and so does every program that it
/// starts. The libraries are in the folder `verbs` beside this program (`make verbs`), in
/// `../lib/sprat` (`make install`), or in the folder that SPRAT_VERBS names. Programs that are
/// set-user-id or linked statically cannot use them. A preloaded library (LD_PRELOAD) shows the
/// devices in /sys/class/infiniband.
///
/// With SPRAT_LOG=error, info or debug the libraries log their decisions and failed calls to
/// standard error; SPRAT_LOG=info,FILE appends the log to a file (%p in its name is the process
/// id).
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat exec ibv_devinfo -v               the devices, one for each IP interface
  sprat exec -- rping -s -a 127.0.0.1     a server; in another terminal its client:
  sprat exec -- rping -c -a 127.0.0.1 -C 10 -v
  SPRAT_LOG=info sprat exec --insecure-network -- ib_write_bw -R 192.0.2.7
  sprat exec --device rdma+packet:dev=eth0,host=192.0.2.7,port=0 -- rping -s -a 192.0.2.7")]
pub(crate) struct Exec {
    /// Allow other machines. Nothing is encrypted: a peer that reaches the program may do what RDMA
    /// allows. Without it, listeners accept peers of this machine only, and addresses of other
    /// machines are refused (EACCES).
    #[arg(long)]
    insecure_network: bool,
    /// Use our own TCP over a packet device, which a locator of rdma+DEVICE names, instead of the
    /// kernel's. The program then has one RDMA device, with the address in the locator. Every
    /// host that reaches the device may connect.
    #[arg(long, value_name = "LOCATOR")]
    device: Option<Locator>,
    /// Preload no library for /sys/class/infiniband: for programs that refuse any
    /// (AddressSanitizer's).
    #[arg(long)]
    no_sysfs: bool,
    /// The program, by its path or as the shell would find it.
    #[arg(value_name = "PROGRAM")]
    program: OsString,
    /// Arguments of the program.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs `sprat exec`: this process becomes the program, with its process id, its terminal and its
/// exit code.
pub(crate) fn run(args: &Exec) -> Result<(), Fail> {
    let folder = folder()?;
    if let Some(device) = &args.device
        && !sprat::verbs::is_native(device)
    {
        // A locator that is none of any kind has an error of its own.
        let why = device.kind().err().map(|e| format!(": {e}")).unwrap_or_default();
        return Err(Fail::new(format!("{device} names no device of our own TCP{why}"))
            .next("name one as rdma+packet:dev=eth0,host=192.0.2.7,port=0"));
    }
    let mut command = Command::new(&args.program);
    command.args(&args.arguments).env(LOADER, before_others(folder.as_os_str(), LOADER));
    let sysfs = folder.join(SYSFS);
    // The loader splits its list at these characters, and reports each part that it does not find.
    let is_one_word = !sysfs.to_string_lossy().contains([' ', ':']);
    if !args.no_sysfs && is_one_word {
        command.env(PRELOADED, before_others(sysfs.as_os_str(), PRELOADED));
    }
    if let Some(device) = &args.device {
        command.env(DEVICE, device.to_string());
    }
    if args.insecure_network {
        command.env(INSECURE, "1");
    }
    let error = command.exec();
    Err(Fail::new(format!("cannot run {}: {error}", args.program.display()))
        .next("name a program by its path, or one that is in PATH"))
}

/// Returns the list in the environment's `variable`, with `first` in front.
fn before_others(first: &OsStr, variable: &str) -> OsString {
    let mut list = first.to_owned();
    if let Some(others) = env::var_os(variable).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Returns the folder with our libibverbs and librdmacm: the one that SPRAT_VERBS names, else
/// `verbs` beside this program (where they are built), else `lib/sprat` beside its folder (where
/// they are installed).
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
    let own = env::current_exe()
        .map_err(|e| Fail::new(format!("cannot find this program's own file: {e}")))?;
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
