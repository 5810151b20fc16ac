//! The destination of `sprat export TABLE FILE`: standard output, a node that is written in place,
//! or a regular file that is replaced as a whole.
//!
//! ```text
//!   FILE ─ links ─► regular file, or none     a temporary file beside it, renamed at the end
//!                   device, FIFO, /dev/fd/N   opened and written in place
//!                   /dev/stdout               standard output
//!                   directory, socket         an error
//! ```
//!
//! *Invariant:* until [`Destination::finish`] has renamed the temporary file, a regular file keeps
//! its old content. A signal or an error before that removes the temporary file.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use sprat_bench::fail::{Fail, Named};
use sprat_bench::process::StopSignals;

/// The most symbolic links in one path, as in Linux (path_resolution(7)).
const MOST_LINKS: usize = 40;
/// The number of random characters in the name of a temporary file: about 95 bits.
const RANDOM_CHARS: usize = 16;
/// The mode bits that the new file takes from the old one: no set-user-id bit, since a file of
/// records is no program.
const PERMISSIONS: u32 = 0o777;
/// The mode of a file that an export creates, before the umask.
const NEW_MODE: u32 = 0o666;

/// The open destination of an export.
pub(crate) enum Destination {
    /// The destination is standard output.
    Stdout,
    /// The destination is a node that is no regular file, or an open file of this process.
    InPlace(File),
    /// The destination is a regular file, which appears at its path when it is complete.
    Whole(Box<Whole>),
}

/// The temporary file of an export, and the file that it replaces.
pub(crate) struct Whole {
    temporary: NamedTempFile,
    path: PathBuf,
    /// The metadata of the existing file that the export replaces, if there is one.
    old: Option<Metadata>,
}

/// The kind of node at the end of a destination's path.
enum Node {
    Descriptor { path: PathBuf, is_stdout: bool },
    Special(PathBuf),
    Regular(PathBuf),
    Missing(PathBuf),
}

impl Destination {
    /// Opens the destination that `path` names; `-` is standard output.
    pub(crate) fn open(path: &Path) -> Result<Self, Fail> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let failed = format!("cannot write {}", path.display());
        match resolve(path).named(&failed)? {
            Node::Descriptor { is_stdout: true, .. } => Ok(Self::Stdout),
            // The file is opened again, with an offset of its own, so the bytes are appended.
            Node::Descriptor { path, .. } => {
                open(&path, OFlags::APPEND).named(&failed).map(Self::InPlace)
            }
            Node::Special(path) => open(&path, OFlags::NOFOLLOW).named(&failed).map(Self::InPlace),
            Node::Regular(path) => {
                // A file that the user may not write may not be replaced either.
                let old = open(&path, OFlags::NOFOLLOW)
                    .and_then(|file| file.metadata())
                    .named(&failed)?;
                Whole::new(path, Some(old)).map(Box::new).map(Self::Whole)
            }
            Node::Missing(path) => Whole::new(path, None).map(Box::new).map(Self::Whole),
        }
    }

    /// True if an export writes its records to standard output.
    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Returns the writer of the export's destination.
    pub(crate) fn writer(&self) -> Box<dyn Write + '_> {
        match self {
            Self::Stdout => Box::new(io::stdout().lock()),
            Self::InPlace(file) => Box::new(file),
            Self::Whole(whole) => Box::new(whole.temporary.as_file()),
        }
    }

    /// Completes the export's destination: a regular file appears at its path.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Stdout | Self::InPlace(_) => Ok(()),
            Self::Whole(whole) => whole.appear(),
        }
    }
}

impl Whole {
    /// Makes a temporary file beside `path`. A signal that ends the process removes it.
    fn new(path: PathBuf, old: Option<Metadata>) -> Result<Self, Fail> {
        let failed = format!("cannot make a file beside {}", path.display());
        let folder = parent(&path);
        // The replaced file may be secret, so the mode gets its permissions only at the end.
        let mode = if old.is_some() { 0o600 } else { NEW_MODE };
        let signals = StopSignals::catch()?;
        let temporary = tempfile::Builder::new()
            .prefix(".sprat-")
            .suffix(".part")
            .rand_bytes(RANDOM_CHARS)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(&folder)
            .map_err(|error| {
                // The crate appends the random path, which would confuse a reader.
                let why = error.to_string();
                let why = why.split(" at path ").next().unwrap_or_default();
                let next = "choose a folder that you may write to, or: sprat export TABLE - > FILE";
                Fail::new(format!("{failed}: {why}")).next(next)
            })?;
        let name = temporary.path().to_path_buf();
        signals.then_die(move || drop(fs::remove_file(name)))?;
        Ok(Self { temporary, path, old })
    }

    fn appear(self) -> io::Result<()> {
        let file = self.temporary.as_file();
        if let Some(old) = &self.old {
            let mine = file.metadata()?;
            let owner = (old.uid() != mine.uid()).then_some(old.uid());
            // Only root may change the owner.
            let _ = owner.map(|owner| fchown(file, Some(owner), None));
            let group_kept = old.gid() == mine.gid() || fchown(file, None, Some(old.gid())).is_ok();
            let mode = old.mode() & PERMISSIONS;
            // Another group gets no more rights than all users.
            let mode = if group_kept { mode } else { mode & !0o070 | (mode & 0o007) << 3 };
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        self.temporary.persist(&self.path).map(drop).map_err(|error| error.error)
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = (flags | OFlags::NOCTTY).bits().cast_signed();
    File::options().write(true).custom_flags(flags).open(path)
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Follows the symbolic links at the end of `path` to their target.
fn resolve(path: &Path) -> io::Result<Node> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        if let Some(is_stdout) = descriptor(&path) {
            return Ok(Node::Descriptor { path, is_stdout });
        }
        let node =
            match rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(node) => node,
                // open(2) makes no file of such a name either.
                Err(Errno::NOENT) if path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                    return Err(Errno::ISDIR.into());
                }
                Err(Errno::NOENT) => return Ok(Node::Missing(path)),
                Err(error) => return Err(error.into()),
            };
        let stat = rustix::fs::fstat(&node)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        match kind {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Socket => return Err(io::Error::other("it is a socket")),
            FileType::CharacterDevice | FileType::BlockDevice => return Ok(Node::Special(path)),
            FileType::Fifo | FileType::RegularFile | FileType::Symlink => trusted(&path, &stat)?,
            _ => return Err(io::Error::other("it is no file that can be written")),
        }
        match kind {
            FileType::Fifo => return Ok(Node::Special(path)),
            FileType::RegularFile => return Ok(Node::Regular(path)),
            _ => {
                let link = rustix::fs::readlinkat(&node, "", Vec::new())?;
                use std::os::unix::ffi::OsStrExt as _;
                path = parent(&path).join(std::ffi::OsStr::from_bytes(link.as_bytes()));
            }
        }
    }
    Err(Errno::LOOP.into())
}

/// Refuses a node that another user made in a folder that all users may write to.
fn trusted(path: &Path, node: &Stat) -> io::Result<()> {
    let folder = fs::metadata(parent(path))?;
    let own = rustix::process::geteuid().as_raw();
    if is_planted(folder.mode(), folder.uid(), node.st_uid, own) {
        let why = format!("it is user {}'s, in a folder where everyone may put files", node.st_uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// True if a node in a folder may be used, by the rule of fs.protected_symlinks,
/// fs.protected_regular and fs.protected_fifos (proc_sys_fs(5)), which a rename would bypass: in a
/// sticky folder that all users may write to, a node must belong to `own` or to the folder's owner.
const fn is_planted(folder_mode: u32, folder_uid: u32, node_uid: u32, own: u32) -> bool {
    const SHARED: u32 = 0o1002;
    folder_mode & SHARED == SHARED && node_uid != own && node_uid != folder_uid
}

/// Returns whether the open file that `path` names is standard output. `None` if `path` names no
/// open file of a process.
fn descriptor(path: &Path) -> Option<bool> {
    let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
    let folder = parent(path).canonicalize().ok()?;
    let mut parts = folder.strip_prefix("/proc").ok()?.iter();
    let process = parts.next()?.to_str()?.bytes().all(|b| b.is_ascii_digit());
    if !process || folder.file_name()? != "fd" {
        return None;
    }
    let own = ["/proc/self/fd", "/proc/thread-self/fd"];
    let is_own = own.iter().any(|own| Path::new(own).canonicalize().is_ok_and(|own| own == folder));
    Some(is_own && number == 1)
}

#[cfg(test)]
mod tests;
