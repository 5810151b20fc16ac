//! The handler of SIGSEGV and SIGBUS. A fault in the copy routine continues at the routine's end;
//! the previous handler gets any other fault.
//!
//! Always holds: other faults are handled as before, with the same mask and on the same stack. The
//! handler uses nothing but atomics, and no errno.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, sigaction,
    siginfo_t,
};

use super::routine;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The actions of SIGSEGV and SIGBUS before ours; null until our handler is installed.
static BEFORE: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs the handler unless another one has replaced it. Returns true if the kernel calls it for
/// both signals. It takes no lock, which another thread might hold when a process forks: two
/// threads that install it at once both do the same work.
pub(super) fn is_ours() -> bool {
    (0..SIGNALS.len()).all(|at| {
        let Some(now) = asked(SIGNALS[at]) else { return false };
        let ours = now.sa_sigaction == on_fault as Handler as usize;
        // Not on top of a handler that came later: it may hand on to ours, and neither would ever
        // end.
        ours || (before(at).is_none_or(|b| b.sa_sigaction == now.sa_sigaction) && install(at, now))
    })
}

fn before(at: usize) -> Option<&'static sigaction> {
    // SAFETY: null, or what was leaked or is static.
    unsafe { BEFORE[at].load(Ordering::Acquire).as_ref() }
}

/// Forgets the previous actions, as if the handler had never been installed.
#[cfg(test)]
pub(super) fn forget() {
    for before in &BEFORE {
        before.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// Returns the present action of a signal.
fn asked(signal: c_int) -> Option<sigaction> {
    // SAFETY: an all-zero action is a valid one, and asking changes nothing.
    unsafe {
        let mut now: sigaction = std::mem::zeroed();
        (sigaction(signal, std::ptr::null(), &raw mut now) == 0).then_some(now)
    }
}

fn install(at: usize, before: sigaction) -> bool {
    let mut ours = before;
    ours.sa_sigaction = on_fault as Handler as usize;
    ours.sa_flags = SA_SIGINFO
        | if is_handler(&before) {
            before.sa_flags & (SA_ONSTACK | SA_NODEFER | SA_RESTART)
        } else {
            SA_ONSTACK | SA_RESTART
        };
    if BEFORE[at].load(Ordering::Acquire).is_null() {
        // For good: a handler may look at it at any time.
        BEFORE[at].store(Box::leak(Box::new(before)), Ordering::Release);
    }
    // SAFETY: The handler does only what handlers may do, and passes other faults on to the
    // previous action.
    unsafe { sigaction(SIGNALS[at], &raw const ours, std::ptr::null_mut()) == 0 }
}

fn is_handler(action: &sigaction) -> bool {
    !matches!(action.sa_sigaction, SIG_DFL | SIG_IGN)
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: The kernel's context of the interrupted thread, which nothing else uses.
    if !unsafe { landed(&mut *context.cast()) } {
        // SAFETY: as the kernel gave them.
        unsafe { hand_on(signal, info, context) }
    }
}

/// Makes the thread continue at the copy routine's end, if the fault was in the routine. Returns
/// false if it was not.
fn landed(context: &mut libc::ucontext_t) -> bool {
    #[cfg(target_arch = "x86_64")]
    let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let at = &mut context.uc_mcontext.pc;
    let Some(end) = routine::landing(*at as usize) else { return false };
    *at = end as _;
    true
}

/// Handles a fault that is not the copy routine's as the previous action would have.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(at) = SIGNALS.iter().position(|&s| s == signal) else { return };
    let before = before(at).unwrap_or(&DEFAULT.0);
    // SAFETY: the kernel's.
    let sent = unsafe { (*info).si_code } <= 0;
    if is_handler(before) {
        if before.sa_flags & SA_RESETHAND != 0 {
            BEFORE[at].store((&raw const DEFAULT.0).cast_mut(), Ordering::Release);
        }
        if before.sa_flags & SA_SIGINFO != 0 {
            // SAFETY: The program that installed it declared it as a function of this kind.
            let handler: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
            // SAFETY: these are arguments of a handler.
            return unsafe { handler(signal, info, context) };
        }
        // SAFETY: as above, of the other kind.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
        return handler(signal);
    }
    if sent && before.sa_sigaction == SIG_IGN {
        return;
    }
    // The instruction faults again, or the signal comes again, when we have returned: then it ends
    // the process. No kernel lets a fault be ignored. SAFETY: the action is the default; both calls
    // are allowed in handlers.
    unsafe {
        sigaction(signal, &raw const DEFAULT.0, std::ptr::null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

struct Default(sigaction);

// SAFETY: it is never written.
unsafe impl Sync for Default {}

/// The default action of a signal.
// SAFETY: an all-zero action is a valid one: the default, no flags, nothing blocked.
static DEFAULT: Default = Default(unsafe { std::mem::zeroed() });
