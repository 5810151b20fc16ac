//! The names of servers over shared memory in the file system: the directory of a machine's
//! servers, and the listening socket in it.
//!
//! ```text
//! $XDG_RUNTIME_DIR/sprat/NAME      or, where that is not set,      /tmp/sprat-UID/NAME
//! ```
//!
//! The directory belongs to the user alone (0700), or it is not used. A socket file whose server
//! has died refuses connections; the next server of that name replaces it. Servers that start at
//! the same time take turns by a lock on the directory, so that no lock file is left.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

use super::connected::{Connected, hang_up};

/// The time in which a process that ends closes the rest of its files.
const ENDING: Timespec = Timespec { tv_sec: 0, tv_nsec: 3_000_000 };

/// The maximum of connections that wait for `accept`; the kernel reduces it to its own limit.
const BACKLOG: i32 = 4096;

fn named(path: &Path, e: impl Into<io::Error>, what: &str) -> io::Error {
    let e = e.into();
    io::Error::new(e.kind(), format!("{}: {what}: {e}", path.display()))
}

/// The directory of the sockets of this user's servers.
pub(super) fn default_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(run) if run.is_absolute() => run.join("sprat"),
        _ => PathBuf::from(format!("/tmp/sprat-{}", rustix::process::geteuid().as_raw())),
    }
}

/// Opens `directory` if it is a directory of this user that no other user may enter.
fn open_private(directory: &Path) -> io::Result<File> {
    let found =
        fs::symlink_metadata(directory).map_err(|e| named(directory, e, "no such directory"))?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o077 != 0 {
        let why = "it must be a directory of this user that nobody else may enter (mode 0700)";
        return Err(named(directory, io::ErrorKind::PermissionDenied, why));
    }
    File::open(directory).map_err(|e| named(directory, e, "cannot be opened"))
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|e| named(path, e, "not a path for a socket"))
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to the server at `directory/name`.
pub(super) fn connect(directory: &Path, name: &str) -> io::Result<Connected> {
    let path = directory.join(name);
    if let Err(e) = open_private(directory) {
        return Err(if e.kind() == io::ErrorKind::NotFound { nobody(&path, &e) } else { e });
    }
    connect_at(&path)
}

/// Connects to the server at `path`, in a directory of any user.
pub(crate) fn connect_at(path: &Path) -> io::Result<Connected> {
    connect_to(&address(path)?).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => nobody(path, &e),
        io::ErrorKind::WouldBlock => named(path, e, "too many connections wait for this server"),
        _ => named(path, e, "cannot connect"),
    })
}

/// Returns true if a server of this user has listened at `name` and ended without removing the
/// name: the kernel refuses the connection. A living server whose queue is full does not look so.
/// Takes a few milliseconds if a server listens there.
pub(crate) fn is_deserted(name: &str) -> bool {
    let directory = default_directory();
    open_private(&directory).is_ok() && is_deserted_at(&directory.join(name))
}

pub(super) fn is_deserted_at(path: &Path) -> bool {
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    match connect_at(path) {
        Err(e) => refused(e),
        // The kernel closes the files of a process that ends one by one, and this one may be next.
        Ok(connected) => connected.ends_within(ENDING) && connect_at(path).is_err_and(refused),
    }
}

/// Connects to the server's socket at `address`. Fails with `ConnectionRefused` also if the server
/// was killed and a process that it had forked holds its socket open.
fn connect_to(address: &SocketAddrUnix) -> io::Result<Connected> {
    let socket = socket()?;
    rustix::net::connect(&socket, address)?;
    Connected::new(socket)
}

fn nobody(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("no server listens at {}", path.display()))
}

/// A listening Unix socket and its name in the file system; dropped, the name is free again.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    /// A spare file descriptor. The listener closes it for a moment to turn a client away when no
    /// other is left.
    reserve: Option<OwnedFd>,
    path: PathBuf,
    /// The process that listens: a forked copy of this value must not remove the socket's name.
    owner: Pid,
}

impl Listener {
    /// Listens at `directory/name`; makes the directory if need be and replaces the socket file of
    /// a dead server.
    ///
    /// # Errors
    /// `AddrInUse` naming the path if a living server has it; `PermissionDenied` if the directory
    /// is not this user's alone.
    pub(super) fn bind(directory: &Path, name: &str) -> io::Result<Self> {
        let path = directory.join(name);
        if let Err(e) = fs::DirBuilder::new().mode(0o700).create(directory)
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(named(directory, e, "cannot be made"));
        }
        Self::bind_in(&open_private(directory)?, path)
    }

    /// Listens at `path` in any directory. The caller has to check which users may connect.
    ///
    /// # Errors
    /// `AddrInUse` naming the path if a living server has it; no such directory.
    pub(crate) fn bind_at(path: PathBuf) -> io::Result<Self> {
        let directory =
            path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let lock = File::open(directory).map_err(|e| named(directory, e, "cannot be opened"))?;
        Self::bind_in(&lock, path)
    }

    fn bind_in(directory: &File, path: PathBuf) -> io::Result<Self> {
        rustix::fs::flock(directory, FlockOperation::LockExclusive)
            .map_err(|e| named(&path, e, "its directory cannot be locked"))?;
        let socket = socket()?;
        match rustix::net::bind(&socket, &address(&path)?) {
            Err(Errno::ADDRINUSE) => {
                if is_alive(&path)? {
                    return Err(named(
                        &path,
                        io::ErrorKind::AddrInUse,
                        "another server listens there",
                    ));
                }
                fs::remove_file(&path).map_err(|e| named(&path, e, "cannot be replaced"))?;
                rustix::net::bind(&socket, &address(&path)?)
            }
            other => other,
        }
        .map_err(|e| named(&path, e, "cannot listen"))?;
        let listener = Self { socket, reserve: reserve(), path, owner: rustix::process::getpid() };
        rustix::net::listen(&listener.socket, BACKLOG)
            .map_err(|e| named(&listener.path, e, "cannot listen"))?;
        Ok(listener)
    }

    /// Accepts the next client that waits. If no file descriptor is left, the listener hangs up on
    /// the client: left in the queue, it would keep this side from ever sleeping.
    pub(crate) fn take(&mut self) -> Call {
        loop {
            match rustix::net::accept_with(
                &self.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(socket) => return Call::Client(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.reserve.take().is_some() => {
                    let turned_away =
                        rustix::net::accept(&self.socket).map(|socket| hang_up(&socket));
                    self.reserve = reserve();
                    return if turned_away.is_ok() { Call::TurnedAway } else { Call::None };
                }
                Err(_) => return Call::None,
            }
        }
    }
}

/// The result of [`Listener::take`]: a client or none.
#[derive(Debug)]
pub(crate) enum Call {
    /// A client that connected, by its socket.
    Client(OwnedFd),
    /// A client for which no file descriptor was left, so that the listener hung up on it.
    TurnedAway,
    /// No client waits to be accepted.
    None,
}

pub(super) fn reserve() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// True if a process listens on the socket at `path`. Any error but a refused connection counts as
/// true: a full queue, a file that is no socket.
fn is_alive(path: &Path) -> io::Result<bool> {
    match connect_to(&address(path)?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // A file that is no socket refuses too, but it is not ours to remove.
            let found =
                fs::symlink_metadata(path).map_err(|e| named(path, e, "cannot be looked at"))?;
            Ok(!std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()))
        }
        _ => Ok(true),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if rustix::process::getpid() != self.owner {
            return;
        }
        // The name goes before the socket does: until then it is known to be ours, afterwards
        // another may have it.
        let _ = fs::remove_file(&self.path);
        // Closing alone would leave clients waiting as long as a forked process has a copy of the
        // socket.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        while let Ok(waiting) = rustix::net::accept(&self.socket) {
            hang_up(&waiting);
        }
    }
}
