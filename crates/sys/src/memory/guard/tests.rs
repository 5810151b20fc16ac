//! Tests of faults, in processes of their own: a fault in our copy routine is an error, and any
//! other fault reaches the previous handler.

use std::sync::atomic::AtomicUsize;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::WaitStatus;

use super::*;
use crate::fork::Child;

/// Maps a page that can be neither read nor written, and returns its address.
fn nowhere() -> *mut u8 {
    // SAFETY: a fresh mapping touches no memory of ours.
    let base = unsafe {
        mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::empty(), MapFlags::PRIVATE)
    };
    base.expect("a page can be had").cast()
}

/// Forks a process that runs `body`. The process ends with status 7 if `body` returns true, else
/// with 8. Returns its status.
fn end(body: impl FnOnce() -> bool) -> WaitStatus {
    let child = Child::spawn(|| {
        // A process that ends by a fault leaves no dump behind.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a local variable.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        let code = if body() { 7 } else { 8 };
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code) }
    });
    child.expect("a process can be had").wait().expect("it has ended")
}

fn is_well(status: WaitStatus) -> bool {
    status.exit_status() == Some(7)
}

fn reads(at: *mut u8) -> Result<(), Gone> {
    let mut bytes = [0; 64];
    // SAFETY: the array is ours.
    unsafe { read(at, bytes.as_mut_ptr(), bytes.len()) }
}

/// A program's own signal handler. It ends the process well at the second call.
extern "C" fn counts(_: libc::c_int) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    if CALLS.fetch_add(1, Ordering::Relaxed) == 1 {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(7) }
    }
}

fn install(signal: libc::c_int, handler: usize) {
    // SAFETY: an all-zero action is a valid one; the handler is one that takes one argument, or
    // none at all.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

fn touches(at: *mut u8) {
    // SAFETY: the address is not writable; the test is about just that fault.
    unsafe { at.write_volatile(1) }
}

#[test]
fn a_fault_is_an_error_both_ways() {
    let at = nowhere();
    check_handler();
    assert!(by_routine(), "the handler can be installed");
    assert_eq!(reads(at), Err(Gone));
    let mut words = [5_u64, 6];
    // SAFETY: a variable of our own.
    assert_eq!(unsafe { atomic(&raw mut words[1], &mut |w| w * 7) }, Ok(6));
    assert_eq!(words, [5, 42]);
    let by_kernel = end(|| {
        HANDLED.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        reads(at) == Err(Gone)
            && unsafe { atomic(&raw mut words[1], &mut |w| w + 1) } == Ok(42)
            && words == [5, 43]
    });
    assert!(is_well(by_kernel), "{by_kernel:?}");
}

#[test]
fn a_probe_changes_no_byte() {
    check_handler();
    let mut word = 7_u64;
    // SAFETY: a variable of our own.
    assert_eq!(unsafe { probe((&raw mut word).cast(), true) }, Ok(()));
    assert_eq!(word, 7);
    static FIXED: u64 = 9;
    let fixed = (&raw const FIXED).cast_mut().cast();
    // SAFETY: the pages may not be written; the test is about just that fault.
    assert_eq!(unsafe { (probe(fixed, false), probe(fixed, true)) }, (Ok(()), Err(Gone)));
    // SAFETY: nothing is there.
    assert_eq!(unsafe { probe(nowhere(), false) }, Err(Gone));
}

#[test]
fn other_faults_end_the_process_as_before() {
    let at = nowhere();
    let ended = end(|| {
        install(libc::SIGSEGV, libc::SIG_DFL);
        // The parent may have installed the handler; this process begins without it.
        handler::forget();
        check_handler();
        let ours = reads(at) == Err(Gone);
        touches(at);
        ours
    });
    assert_eq!(ended.terminating_signal(), Some(libc::SIGSEGV));
    let sent = end(|| {
        install(libc::SIGBUS, libc::SIG_DFL);
        handler::forget();
        check_handler();
        // SAFETY: a signal to oneself.
        unsafe { libc::raise(libc::SIGBUS) };
        true
    });
    assert_eq!(sent.terminating_signal(), Some(libc::SIGBUS));
    let ignored = end(|| {
        install(libc::SIGSEGV, libc::SIG_IGN);
        handler::forget();
        check_handler();
        // SAFETY: a signal to oneself.
        unsafe { libc::raise(libc::SIGSEGV) };
        reads(at) == Err(Gone)
    });
    assert!(is_well(ignored), "{ignored:?}");
}

#[test]
fn the_programs_handler_gets_its_own_faults() {
    let at = nowhere();
    let before = end(|| {
        install(libc::SIGSEGV, counts as extern "C" fn(libc::c_int) as usize);
        handler::forget();
        check_handler();
        if !by_routine() || reads(at) != Err(Gone) {
            return false;
        }
        touches(at);
        false
    });
    assert!(is_well(before), "{before:?}");
}

#[test]
fn a_handler_that_came_later_is_found_and_left_alone() {
    let at = nowhere();
    let later = end(|| {
        check_handler();
        install(libc::SIGSEGV, counts as extern "C" fn(libc::c_int) as usize);
        check_handler();
        // The kernel copies: the handler is not called.
        !by_routine() && (0..4).all(|_| reads(at) == Err(Gone))
    });
    assert!(is_well(later), "{later:?}");
}

#[test]
fn a_thread_that_blocks_faults_has_the_kernel_copy() {
    let at = nowhere();
    check_handler();
    let blocked = std::thread::spawn({
        let at = at.addr();
        move || {
            // SAFETY: a set of our own, for this thread.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            }
            (by_routine(), reads(std::ptr::with_exposed_provenance_mut(at)))
        }
    });
    assert_eq!(blocked.join().expect("it has not panicked"), (false, Err(Gone)));
}
