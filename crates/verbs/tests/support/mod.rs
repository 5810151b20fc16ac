//! Parts that the tests of this crate share: the two libraries, and `sprat` beside them where any
//! user may run it.
//!
//! `scripts/verbs` builds the libraries, which are copied with `sprat` to a directory that any user
//! may read. `scripts/tools` lists the Debian packages that the tests need.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The file names of the two libraries, libibverbs and librdmacm.
pub(crate) const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The file name of the library that `sprat exec` preloads.
pub(crate) const SYSFS: &str = "libsprat-sysfs.so";

/// The root folder of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository has a root")
}

/// The output of a command, which must succeed.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}: is it installed? See scripts/tools --verbs"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// The directory with the two libraries. The first call builds them.
pub(crate) fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let built = output(Command::new("scripts/verbs").arg("test").current_dir(repository()));
        PathBuf::from(built.trim_end())
    })
}

/// `sprat` and the libraries in a directory of their own, laid out as the build does.
pub(crate) struct Staging {
    /// The directory with `sprat`; its subdirectory `verbs` has the libraries.
    pub(crate) folder: tempfile::TempDir,
}

impl Staging {
    /// Builds `sprat` and the libraries and copies them to a new directory.
    pub(crate) fn new() -> Self {
        let cargo = ["build", "--quiet", "--profile", "test", "-p", "sprat-cli"];
        output(Command::new(env!("CARGO")).args(cargo).current_dir(repository()));
        let folder = tempfile::tempdir().expect("a folder can be made");
        let verbs = folder.path().join("verbs");
        fs::create_dir(&verbs).expect("so can one in it");
        for open in [folder.path(), &verbs] {
            fs::set_permissions(open, Permissions::from_mode(0o755)).expect("the folder is ours");
        }
        // Copy by another process: a child of another test would inherit an open descriptor of
        // ours, and the copy could not be executed then.
        let all = LIBRARIES.iter().chain([&SYSFS]).map(|library| libraries().join(library));
        output(Command::new("cp").args(all).arg(&verbs));
        output(Command::new("cp").arg(libraries().with_file_name("sprat")).arg(folder.path()));
        Self { folder }
    }

    /// The path of the program `sprat` in this directory.
    pub(crate) fn sprat(&self) -> PathBuf {
        self.folder.path().join("sprat")
    }

    /// A command that runs `sprat` as an unprivileged user, whose id it prints on the first lines
    /// of standard output.
    pub(crate) fn nobody(&self) -> Command {
        let mut command = if own_uid() == 0 {
            let mut command = Command::new("setpriv");
            command.args([
                "--reuid",
                "nobody",
                "--clear-groups",
                "--bounding-set",
                "-all",
                "--no-new-privs",
            ]);
            command
        } else {
            Command::new("env")
        };
        command.args([
            "sh",
            "-c",
            "grep -E '^(Uid|CapEff|NoNewPrivs)' /proc/self/status; exec \"$@\"",
            "sh",
        ]);
        command.arg(self.sprat()).current_dir("/");
        command
    }
}

/// The id of the user that runs the tests.
pub(crate) fn own_uid() -> u32 {
    fs::metadata("/proc/self").expect("Linux has /proc").uid()
}
