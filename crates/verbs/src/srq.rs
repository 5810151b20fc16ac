//! Shared receive queues of C programs.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use sprat_rdma::SharedReceiveQueue;

use crate::abi::attr::{SrqAttr, SrqInit, SrqInitEx};
use crate::abi::object::{Context, Pd as RawPd, Srq as Raw};
use crate::engine::{Engine, limits};
use crate::entry::{Errno, INVALID, UNSUPPORTED, at, entry, export, put};
use crate::object::{EventCounts, References};
use crate::pd::Pd;

/// A shared receive queue of a C program.
#[repr(C)]
pub(crate) struct Srq {
    raw: Raw,
    pub(crate) engine: &'static Engine,
    pub(crate) queue: SharedReceiveQueue,
    depth: u32,
    elements: u32,
    /// The number of receives below which the shared receive queue raises an event; 0 for no event.
    limit: AtomicU32,
    /// The queue pairs that take receives from the shared receive queue.
    pub(crate) references: References,
    pub(crate) events: EventCounts,
}

/// `IBV_SRQ_MAX_WR`: the flag by which a program changes the depth of a shared receive queue.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
/// `IBV_SRQ_INIT_ATTR_TYPE`: the flag by which a shared receive queue's attributes have a type.
const TYPE: u32 = 1;
const PD: u32 = 2;
/// `IBV_SRQT_BASIC`: the type of a shared receive queue without tag matching and XRC.
const BASIC: c_int = 0;

impl Srq {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the queue stays alive while the reference is in use.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(srq: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(srq.cast::<Self>()) }
    }

    /// Clears the limit of the shared receive queue, whose event is raised once.
    pub(crate) fn reached(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    fn create(
        pd: *mut RawPd,
        user: *mut std::ffi::c_void,
        attr: &SrqAttr,
    ) -> Result<*mut Self, Errno> {
        // SAFETY: The program passes null or a live protection domain.
        let domain = unsafe { Pd::usable(pd) }?;
        let (depth, elements) = (attr.max_wr, attr.max_sge.max(1));
        let most = limits();
        if !(1..=most.requests).contains(&depth) || elements as usize > most.elements {
            return Err(INVALID);
        }
        let queue = domain.domain.shared_receive_queue(depth, elements as usize)?;
        queue.report_to(&domain.open()?.events.of(domain.engine));
        let number = queue.number().0;
        let raw = Raw {
            context: domain.context(),
            srq_context: user,
            pd,
            handle: number,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let (limit, references, events) =
            (AtomicU32::new(0), References::default(), EventCounts::default());
        let engine = domain.engine;
        let srq = Box::into_raw(Box::new(Self {
            raw,
            engine,
            queue,
            depth,
            elements,
            limit,
            references,
            events,
        }));
        engine.srqs.add(number, srq.cast());
        domain.references.add();
        Ok(srq)
    }
}

export! {
    /// Creates a shared receive queue.
    null fn ibv_create_srq(pd: *mut RawPd, init: *mut SrqInit) -> *mut Raw {
        // SAFETY: The program passes null or a valid structure that no other thread uses.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let srq = Srq::create(pd, init.srq_context, &init.attr)?;
        init.attr.max_sge = init.attr.max_sge.max(1);
        Ok(srq.cast())
    }
}

entry! {
    /// Creates a shared receive queue where verbs.h does not call `ibv_create_srq` instead. The
    /// device supports neither tag matching nor XRC.
    null fn ibv_create_srq_ex(_context: *mut Context, init: *mut SrqInitEx) -> *mut Raw {
        // SAFETY: The program passes null or a valid structure that no other thread uses.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let is_basic = init.comp_mask & TYPE == 0 || init.srq_type == BASIC;
        if init.comp_mask & !(TYPE | PD) != 0 || !is_basic {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & PD == 0 {
            return Err(INVALID);
        }
        let srq = Srq::create(init.pd, init.srq_context, &init.attr)?;
        init.attr.max_sge = init.attr.max_sge.max(1);
        Ok(srq.cast())
    }
}

export! {
    /// Sets the limit below which a shared receive queue raises an event once. The depth cannot
    /// change.
    code fn ibv_modify_srq(srq: *mut Raw, attr: *mut SrqAttr, mask: c_int) {
        // SAFETY: The program passes null or a live queue.
        let srq = unsafe { Srq::from_raw(srq) }?;
        // SAFETY: The program passes null or a valid structure.
        let attr = unsafe { at(attr) }?;
        if mask & !(MAX_WR | LIMIT) != 0 || !srq.engine.is_current() {
            return Err(INVALID);
        }
        if mask & MAX_WR != 0 {
            return Err(UNSUPPORTED);
        }
        if mask & LIMIT != 0 {
            if attr.srq_limit > srq.depth {
                return Err(INVALID);
            }
            srq.limit.store(attr.srq_limit, Ordering::Relaxed);
            srq.queue.limit(attr.srq_limit);
        }
        Ok(())
    }

    /// Returns the capacities and the limit of a shared receive queue.
    code fn ibv_query_srq(srq: *mut Raw, attr: *mut SrqAttr) {
        // SAFETY: The program passes null or a live queue.
        let srq = unsafe { Srq::from_raw(srq) }?;
        let srq_limit = srq.limit.load(Ordering::Relaxed);
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(attr, SrqAttr { max_wr: srq.depth, max_sge: srq.elements, srq_limit }) }
    }

    /// Destroys a shared receive queue; `EBUSY` while queue pairs use it. Waits until all its
    /// events are acknowledged.
    code fn ibv_destroy_srq(srq: *mut Raw) {
        // SAFETY: The program passes null or a live queue.
        let own = unsafe { Srq::from_raw(srq) }?;
        own.references.check_none()?;
        // SAFETY: A domain stays allocated while it has queues.
        unsafe { Pd::from_raw(own.raw.pd) }?.references.remove();
        if own.engine.is_current() {
            own.engine.srqs.remove(own.queue.number().0);
            own.events.wait_acked();
        }
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let srq = unsafe { Box::from_raw(srq.cast::<Srq>()) };
        if !srq.engine.is_current() {
            std::mem::forget(srq);
        }
        Ok(())
    }
}

entry! {
    /// Returns the number of a shared receive queue.
    code fn ibv_get_srq_num(srq: *mut Raw, to: *mut u32) {
        // SAFETY: The program passes null or a live queue.
        let srq = unsafe { Srq::from_raw(srq) }?;
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe { put(to, srq.queue.number().0) }
    }
}
