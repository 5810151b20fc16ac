//! Event channels of rdma_cm: a descriptor on which the events of ids arrive.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sprat_rdma::ConnectionChannel;
use sprat_sys::clock;

use crate::abi::cm::EventChannel as Raw;
use crate::engine::Engine;
use crate::entry::{AGAIN, Errno, INVALID, at, export};

/// The error of a call on a destroyed channel, whose descriptor is closed.
const CLOSED: Errno = Errno(libc::EBADF);
/// The time that a thread waits for an event of a destroyed channel, in nanoseconds. librdmacm's
/// thread would wait for ever, since it sleeps in the kernel. Programs end meanwhile: rping of
/// rdma-core 44 destroys the channel and returns from `main` while its other thread waits.
const LINGER_NS: u64 = 1_000_000_000;
/// The number of destroyed channels that stay allocated, for threads that still wait on them.
const KEPT: usize = 16;

/// The channels that the program destroyed last, oldest first.
static DESTROYED: Mutex<VecDeque<Destroyed>> = Mutex::new(VecDeque::new());

/// A destroyed channel that is not freed yet.
struct Destroyed(*mut Channel);

// SAFETY: All fields of a channel that change are behind its lock.
unsafe impl Send for Destroyed {}

/// An event channel of rdma_cm.
#[repr(C)]
pub(super) struct Channel {
    raw: Raw,
    pub(super) engine: &'static Engine,
    state: Mutex<State>,
}

/// The state of an event channel of rdma_cm.
enum State {
    Open(Arc<ConnectionChannel>),
    /// The program destroyed the channel. Waits for its events end at this time, in nanoseconds.
    Destroyed(u64),
}

impl Channel {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null, or a parent process created the channel.
    ///
    /// # Safety
    /// The pointer is null, or the channel stays alive while the reference is in use.
    pub(super) unsafe fn usable<'a>(channel: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        let channel = unsafe { at(channel.cast::<Self>()) }?;
        if channel.engine.is_current() { Ok(channel) } else { Err(INVALID) }
    }

    /// The engine's part of the channel.
    ///
    /// # Errors
    /// `EBADF` if the program destroyed the channel.
    pub(super) fn open(&self) -> Result<Arc<ConnectionChannel>, Errno> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(channel) => Ok(Arc::clone(channel)),
            State::Destroyed(_) => Err(CLOSED),
        }
    }

    /// The engine's part of the channel, for a thread that waits for an event of it.
    ///
    /// # Errors
    /// `EBADF` if the program destroyed the channel [`LINGER_NS`] ago, [`AGAIN`] after an interval
    /// before that.
    pub(super) fn wait_open(&self) -> Result<Arc<ConnectionChannel>, Errno> {
        let until = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(channel) => return Ok(Arc::clone(channel)),
            State::Destroyed(until) => *until,
        };
        if clock::now().as_ns() >= until {
            return Err(CLOSED);
        }
        // A thread cannot be cancelled in `park`, whose frames would leak, but can in `sleep`.
        std::thread::park_timeout(Duration::from_millis(10));
        Err(AGAIN)
    }
}

/// Creates an event channel of rdma_cm and leaks it to the program or to an id.
///
/// # Errors
/// The system has no descriptor left.
pub(super) fn create() -> Result<*mut Raw, Errno> {
    let engine = Engine::get()?;
    let channel = engine.device.connection_channel()?;
    let raw = Raw { fd: channel.as_fd().as_raw_fd() };
    let state = Mutex::new(State::Open(Arc::new(channel)));
    Ok(Box::into_raw(Box::new(Channel { raw, engine, state })).cast())
}

/// Closes an event channel of rdma_cm, and frees it once [`KEPT`] others are destroyed; ignores
/// null.
///
/// # Safety
/// The pointer is null, or [`create`] returned it and nothing but a wait for its events uses it any
/// more.
pub(super) unsafe fn destroy(channel: *mut Raw) {
    if channel.is_null() {
        return;
    }
    let gone = Destroyed(channel.cast());
    // SAFETY: The caller guarantees it.
    let channel = unsafe { &*gone.0 };
    if !channel.engine.is_current() {
        // The engine of a parent process is not touched. The descriptor is this process's copy and
        // is closed.
        // SAFETY: Nothing uses the descriptor any more.
        unsafe { libc::close(channel.raw.fd) };
        return;
    }
    let destroyed = State::Destroyed(clock::now().as_ns() + LINGER_NS);
    let state = channel.state.lock().map(|mut state| std::mem::replace(&mut *state, destroyed));
    drop(state);
    let mut kept = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(gone);
    if kept.len() > KEPT
        && let Some(Destroyed(oldest)) = kept.pop_front()
    {
        // SAFETY: `create` leaked it. No thread waits on it any more: `KEPT` others were
        // destroyed after it.
        drop(unsafe { Box::from_raw(oldest) });
    }
}

export! {
    /// Creates an event channel of rdma_cm, whose descriptor is readable while an event waits.
    null fn sprat_rdma_create_event_channel() -> *mut Raw {
        create()
    }
}

export! {
    /// Destroys an event channel of rdma_cm. Events of its remaining ids are discarded.
    plain fn sprat_rdma_destroy_event_channel(channel: *mut Raw) {
        // SAFETY: The program passes null or a channel that it does not use afterwards.
        unsafe { destroy(channel) };
        Ok(())
    }
}
