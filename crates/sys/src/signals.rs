//! Blocks signals for the calling thread.

use std::ptr;

/// Calls `act` with all signals blocked that another thread could take: a thread that `act` starts
/// never gets one. Signals that a thread's own faults raise stay unblocked, because a fault whose
/// signal is blocked ends the process.
pub fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: sets of signals are plain memory; those given to the C library are local variables.
    let before = unsafe {
        let (mut held, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut held);
        for fault in faults {
            libc::sigdelset(&raw mut held, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const held, &raw mut before);
        before
    };
    let result = act();
    // SAFETY: the set is the one that this thread had before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
