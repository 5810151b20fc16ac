//! A second process for measurements and tests: a forked copy of this one that runs one function
//! and ends.
//!
//! The copy has the mappings and descriptors that this process had at the fork, so nothing has to
//! be passed to it. It has page tables of its own, as the processes that the measurements stand
//! for.

use std::io;
use std::panic::{self, AssertUnwindSafe};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

/// A running forked copy of this process. Dropping the value kills the copy and waits for its end.
#[derive(Debug)]
pub struct Child {
    pid: Option<Pid>,
}

impl Child {
    /// Forks, and runs `body` in the copy. The copy ends when `body` returns or panics, without
    /// running destructors or exit handlers, and is killed if the calling thread ends first.
    ///
    /// Only the calling thread exists in the copy, so `body` must not wait for another one or for a
    /// lock that another one may hold: it may compute, allocate and use system calls, not print.
    ///
    /// # Errors
    /// The kernel has no room for another process.
    pub fn spawn(body: impl FnOnce()) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: of what the copy inherits from other threads only locks can be in a broken state.
        // The allocator's are kept consistent by the C library; `body` takes no others, as this
        // function's contract says.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // The parent may have died before that call.
            if rustix::process::getppid() == Some(parent) {
                let _ = panic::catch_unwind(AssertUnwindSafe(body));
            }
            // SAFETY: ends the process at once; nothing of it is used afterwards.
            unsafe { libc::_exit(0) }
        }
        match Pid::from_raw(pid) {
            Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(Self { pid: Some(pid) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends the forked copy a signal. If the signal is SIGSTOP, the copy has stopped when the call
    /// returns.
    ///
    /// # Errors
    /// The kernel refuses the signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = self.pid else { return Ok(()) };
        kill_process(pid, signal)?;
        if signal == Signal::STOP {
            waitpid(Some(pid), WaitOptions::UNTRACED)?;
        }
        Ok(())
    }

    /// Waits until the forked copy has ended by itself, and returns its status.
    pub fn wait(mut self) -> Option<WaitStatus> {
        self.pid.take().and_then(reap)
    }
}

fn reap(pid: Pid) -> Option<WaitStatus> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.ok().flatten().map(|(_, status)| status),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            let _ = kill_process(pid, Signal::KILL);
            reap(pid);
        }
    }
}
