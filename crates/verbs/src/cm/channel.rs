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
/// The time after the end of the waits for its events at which a destroyed channel is freed, in
/// nanoseconds. A thread notices the end of its wait within 100 ms, if the system lets it run.
const MARGIN_NS: u64 = 2_000_000_000;

/// The number of times that a destroyed channel is asked if its waiting threads have left it, every
/// 100 µs.
const LEAVING_POLLS: u32 = 100;

/// The destroyed channels that threads may still wait on, oldest first.
static DESTROYED: Mutex<VecDeque<Destroyed>> = Mutex::new(VecDeque::new());

/// A destroyed channel that is not freed yet.
struct Destroyed {
    channel: *mut Channel,
    /// The time from which on the channel may be freed, in nanoseconds.
    free_at: u64,
}

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

    /// Closes the descriptor of a channel that belongs to a parent process: this process's copy.
    /// The engine there is not touched. Returns false if the channel is of this process.
    fn close_inherited(&self) -> bool {
        let is_inherited = !self.engine.is_current();
        if is_inherited {
            // SAFETY: The program has destroyed the channel, so nothing uses the descriptor.
            unsafe { libc::close(self.raw.fd) };
        }
        is_inherited
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

/// Frees the private channel of a synchronous id.
///
/// # Safety
/// [`create`] returned the pointer, and nothing uses it any more.
pub(super) unsafe fn free(channel: *mut Raw) {
    // SAFETY: The caller guarantees it.
    let own = unsafe { Box::from_raw(channel.cast::<Channel>()) };
    if own.close_inherited() {
        std::mem::forget(own);
    }
}

/// Closes an event channel of rdma_cm. Frees it when another one is destroyed some seconds later.
///
/// # Safety
/// [`create`] returned the pointer, and nothing but a wait for its events uses it any more.
unsafe fn destroy(channel: *mut Channel) {
    // SAFETY: The caller guarantees it.
    let own = unsafe { &*channel };
    if own.close_inherited() {
        return;
    }
    let now = clock::now().as_ns();
    let destroyed = State::Destroyed(now + LINGER_NS);
    let before = {
        let mut state = own.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *state, destroyed)
    };
    if let State::Open(open) = before {
        open.close();
        // The descriptor is closed when the waiting threads have noticed, and usually before this
        // function returns, as the program expects.
        for _ in 0..LEAVING_POLLS {
            if Arc::strong_count(&open) == 1 {
                break;
            }
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }
    let mut kept = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back(Destroyed { channel, free_at: now + LINGER_NS + MARGIN_NS });
    while let Some(oldest) = kept.pop_front_if(|oldest| oldest.free_at <= now) {
        // SAFETY: `create` leaked it. The last wait on it has ended `MARGIN_NS` ago.
        drop(unsafe { Box::from_raw(oldest.channel) });
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
        if !channel.is_null() {
            // SAFETY: The program passes a channel that it does not use afterwards.
            unsafe { destroy(channel.cast()) };
        }
        Ok(())
    }
}
