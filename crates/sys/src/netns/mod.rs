//! Network namespaces for tests and local measurements: networks of their own, joined by veth
//! pairs, which no other process sees and which end with their creator.
//!
//! A [`Namespace`] has no name and no file. It lives as long as something has it open: this value,
//! a thread inside, a socket or a process that was started inside. So nothing stays behind, not
//! even after SIGKILL. It needs CAP_SYS_ADMIN.
//!
//! Not here: routes, bridges, bandwidth. Interfaces are made by rtnetlink (`link`), without the
//! command `ip`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

pub mod link;
mod message;
mod wire;

pub use wire::{DEV, Wire};

/// The path of the calling thread's network namespace.
const HERE: &str = "/proc/thread-self/ns/net";

/// A network namespace of our own, with nothing in it but a loopback interface that is down.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Makes a network namespace.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_SYS_ADMIN; the kernel has no network namespaces, or no room
    /// for another one.
    pub fn new() -> io::Result<Self> {
        let made = || {
            leave()?;
            // The interfaces send nothing on their own: no router solicitation, no address
            // announcement.
            for which in ["all", "default"] {
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/accept_dad"), "0");
                let _ =
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
            Ok(Self { fd: File::open(HERE)?.into() })
        };
        thread::scope(|scope| joined(scope.spawn(made).join())).map_err(|e: io::Error| {
            io::Error::new(
                e.kind(),
                format!(
                    "cannot make a network namespace: {e} (it needs CAP_SYS_ADMIN: run as root)"
                ),
            )
        })
    }

    /// Runs `body` inside the namespace, in a thread of its own. Sockets and devices that it opens
    /// stay inside when it returns them.
    ///
    /// # Errors
    /// The kernel does not let us in.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        let inside = || {
            move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(body())
        };
        thread::scope(|scope| joined(scope.spawn(inside).join()))
    }

    /// Moves the calling thread into the namespace until the returned value is dropped. Threads and
    /// processes that it starts meanwhile are inside and stay there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter(&self) -> io::Result<Inside> {
        let before = File::open(HERE)?.into();
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Inside { before })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Keeps the calling thread inside a network namespace. When dropped, it moves the thread back to
/// its previous namespace.
#[derive(Debug)]
#[must_use = "the thread leaves when this is dropped"]
pub struct Inside {
    before: OwnedFd,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let back = move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network));
        // Going on in the wrong network would be worse than to stop.
        assert!(back.is_ok() || thread::panicking(), "cannot leave a network namespace");
    }
}

/// Puts the calling thread into a new network namespace.
fn leave() -> io::Result<()> {
    // SAFETY: of all that can be unshared this is the network alone: file descriptors stay those of
    // the whole process.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(Into::into)
}

fn joined<T>(result: thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
