//! What happened that no completion tells, behind a descriptor that programs wait on.
//!
//! Always holds: the descriptor counts what waits, so that it is readable exactly while an event does; a program makes it
//! non-blocking, if it wants so, and getting an event honours that. What happens comes here by the engine's own thread,
//! without the program's help.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use sprat::verbs::{Cause, Notice, NoticeChannel};

use crate::abi::object::{AsyncEvent, Context};
use crate::context::Open;
use crate::cq::Cq;
use crate::engine::{Engine, locked};
use crate::entry::{Errno, INVALID, at, export, put};
use crate::log::log;
use crate::qp::Qp;
use crate::srq::Srq;

/// `enum ibv_event_type`.
const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const QP_ACCESS_ERR: c_int = 3;
const SRQ_LIMIT_REACHED: c_int = 15;
const QP_LAST_WQE_REACHED: c_int = 16;

/// The events of one open device.
pub(crate) struct Events {
    fd: Arc<OwnedFd>,
    /// Where the engine puts them, once it has been asked to.
    channel: Mutex<Option<(&'static Engine, Arc<NoticeChannel>)>>,
}

impl Events {
    /// None yet.
    ///
    /// # Errors
    /// No descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: numbers alone.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a descriptor that was made just now and that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd: Arc::new(fd), channel: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Where objects of `engine` report to.
    pub(crate) fn of(&self, engine: &'static Engine) -> Arc<NoticeChannel> {
        let mut channel = locked(&self.channel);
        if let Some((of, channel)) = &*channel
            && std::ptr::eq(*of, engine)
        {
            return Arc::clone(channel);
        }
        let new = Arc::new(engine.device.notice_channel(Arc::clone(&self.fd)));
        // A parent's is not touched, not even to be dropped.
        std::mem::forget(channel.replace((engine, Arc::clone(&new))));
        new
    }

    /// The context closes.
    pub(crate) fn end(&self) {
        let channel = locked(&self.channel).take();
        if channel.as_ref().is_some_and(|(engine, _)| !engine.is_ours()) {
            std::mem::forget(channel);
        }
    }

    /// The next event; waits for it, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is none and it has, `EINTR` if a signal came.
    fn next(&self) -> Result<AsyncEvent, Errno> {
        loop {
            let channel = locked(&self.channel)
                .as_ref()
                .map(|(engine, channel)| (*engine, Arc::clone(channel)));
            match channel {
                Some((engine, channel)) if engine.is_ours() => {
                    let notice = channel.read()?;
                    log(notice);
                    if let Some(event) = told(engine, notice) {
                        return Ok(event);
                    }
                }
                Some(other) => {
                    std::mem::forget(other);
                    return Err(INVALID);
                }
                // Nobody has made anything yet that could have one. The system's own waiting is not for here: a thread that is
                // cancelled in it would leave without what is on the stack.
                None => drop(self.of(Engine::get()?)),
            }
        }
    }
}

/// A notice in the log. Errors that end connections are logged where they are found (`failures`).
fn log(notice: Notice) {
    match notice {
        Notice::Overflow(cq) => {
            log!(Error, "completion queue {} overflows: its queue pairs are in error", cq.0)
        }
        Notice::LastWorkRequest(pair) => {
            log!(Debug, "queue pair {} takes no more of its shared receives", pair.0)
        }
        Notice::Limit(srq) => log!(Debug, "shared receive queue {} is below its limit", srq.0),
        _ => {}
    }
}

/// What a program is told of a notice, counted as told; nothing if the object has gone.
fn told(engine: &Engine, notice: Notice) -> Option<AsyncEvent> {
    let (element, event_type): (*mut c_void, c_int) = match notice {
        Notice::Overflow(cq) => {
            // SAFETY: who destroys an object takes it out of the directory first, which is not possible now. So below.
            let told = |cq: *mut Cq| unsafe { &*cq }.mishaps.tell();
            (engine.cqs.find(cq.0, |cq| (told(cq), cq.cast()).1)?, CQ_ERR)
        }
        Notice::Failed { pair, cause, ours } => {
            // SAFETY: see above.
            let told = |qp: *mut Qp| unsafe { &*qp }.events.tell();
            let event = if ours && is_access(cause) { QP_ACCESS_ERR } else { QP_FATAL };
            (engine.qps.find(pair.0, |qp| (told(qp), qp.cast()).1)?, event)
        }
        Notice::LastWorkRequest(pair) => {
            // SAFETY: see above.
            let told = |qp: *mut Qp| unsafe { &*qp }.events.tell();
            (engine.qps.find(pair.0, |qp| (told(qp), qp.cast()).1)?, QP_LAST_WQE_REACHED)
        }
        Notice::Limit(srq) => {
            let told = |srq: *mut Srq| {
                // SAFETY: see above.
                let srq = unsafe { &*srq };
                srq.events.tell();
                srq.reached();
            };
            (engine.srqs.find(srq.0, |srq| (told(srq), srq.cast()).1)?, SRQ_LIMIT_REACHED)
        }
        _ => return None,
    };
    Some(AsyncEvent { element, event_type })
}

/// The peer wanted what it must not.
fn is_access(cause: Cause) -> bool {
    cause.is_access()
}

export! {
    /// The next event of an open device.
    waits fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
        // SAFETY: null, or a context that the program has open during this call.
        let open = unsafe { Open::from_seen(context) }?;
        if event.is_null() {
            return Err(INVALID);
        }
        let next = open.events.next()?;
        // SAFETY: not null, so it is room for an event of the caller's.
        unsafe { put(event, next) }?;
        Ok(0)
    }
}

export! {
    /// An event was taken note of: the object that it is of may go, as far as this one is concerned.
    plain fn ibv_ack_async_event(event: *mut AsyncEvent) {
        // SAFETY: null, or an event that the program got from us.
        let AsyncEvent { element, event_type } = *unsafe { at(event) }?;
        // SAFETY: an object is there as long as an event of it is not acknowledged.
        let acks = unsafe {
            match event_type {
                CQ_ERR => &Cq::from_seen(element.cast())?.mishaps,
                SRQ_LIMIT_REACHED => &Srq::from_seen(element.cast())?.events,
                QP_FATAL | QP_ACCESS_ERR | QP_LAST_WQE_REACHED => &Qp::from_seen(element.cast())?.events,
                _ => return Ok(()),
            }
        };
        acks.ack(1);
        Ok(())
    }
}
