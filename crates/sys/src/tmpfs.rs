//! A file system in memory with a limit, for tests of a full disk. No other process sees it except
//! those that this thread starts, and it ends with them.
//!
//! Each [`Tmpfs`] moves the calling thread to a mount namespace of its own (mount_namespaces(7)),
//! in which the file system is mounted. Threads and processes that the thread starts are inside. So
//! nothing stays mounted, not even after SIGKILL. It needs CAP_SYS_ADMIN.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};
use rustix::thread::UnshareFlags;

/// The number of tries to find the limit that files have reached while they grow.
const FILL_TRIES: u32 = 1000;

/// A file system in memory.
#[derive(Debug)]
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts a file system of at most `bytes` bytes on the directory `path`, for this thread and
    /// what it starts from now on.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN is missing, or there is no directory.
    pub fn mount(path: &Path, bytes: u64) -> io::Result<Self> {
        leave()?;
        // Otherwise the mount would show in the namespace that the thread has left.
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", path, "tmpfs", flags, &*size(bytes)?)?;
        Ok(Self { path: path.to_owned() })
    }

    /// Changes the limit. If files use as much already, writes that need more room fail.
    ///
    /// # Errors
    /// Files use more than `bytes`.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(&self.path, flags, &*size(bytes)?).map_err(Into::into)
    }

    /// Lowers the limit to what files use: there is no room for more.
    ///
    /// # Errors
    /// Files grow meanwhile, again and again.
    pub fn fill(&self) -> io::Result<()> {
        let mut filled = Ok(());
        for _ in 0..FILL_TRIES {
            filled = self.used().and_then(|used| self.limit(used));
            if filled.is_ok() {
                break;
            }
        }
        filled
    }

    /// Returns the bytes that files use.
    ///
    /// # Errors
    /// The file system is gone.
    fn used(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.path)?;
        Ok((disk.f_blocks - disk.f_bfree) * disk.f_frsize)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // If a process still uses it, it ends with the process.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn size(bytes: u64) -> io::Result<CString> {
    Ok(CString::new(format!("size={bytes}"))?)
}

/// Puts the calling thread into a new mount namespace.
fn leave() -> io::Result<()> {
    // SAFETY: of all that can be unshared these are the mounts, and with them the root and the
    // working directory, which stay the same: file descriptors stay those of the whole process.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    /// The limit is that of the files together, and can be changed while files are open. The thread
    /// outside sees nothing.
    #[test]
    fn a_full_disk_refuses_room_until_it_grows() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        let inside = || {
            let Ok(tmpfs) = Tmpfs::mount(path, 1 << 20) else {
                assert!(!rustix::process::geteuid().is_root(), "root can mount");
                return;
            };
            let file = File::create(path.join("file")).expect("it is ours");
            let grow = |len| fallocate(&file, FallocateFlags::empty(), 0, len);
            assert!(grow(512 << 10).is_ok() && grow(2 << 20).is_err());
            tmpfs.fill().expect("no file grows");
            assert!(grow(600 << 10).is_err() && tmpfs.limit(4096).is_err());
            tmpfs.limit(4 << 20).expect("it grows");
            assert!(grow(2 << 20).is_ok());
        };
        std::thread::scope(|scope| scope.spawn(inside).join().expect("no panic"));
        assert_eq!(path.read_dir().expect("it is there").count(), 0);
    }
}
