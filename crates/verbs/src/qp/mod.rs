//! Queue pairs: their states, queries and changes. `work` posts requests to them.
//!
//! ```text
//!   INIT ─► (RTR) ─► RTS ─► SQD ─► ERR ─► RESET, which is INIT
//!               by rdma_cm   the connection ends
//! ```
//!
//! The states are those of iWARP devices. A new queue pair is in INIT, and `ibv_modify_qp` makes no
//! connection: before there is one, it records RTR and rejects RTS. Afterwards the engine
//! determines the state, and the program can only end the connection. `ibv_qp.state` stays RESET
//! until the program changes or queries the state for the first time, as with rdma-core.

pub(crate) mod build;
pub(crate) mod create;

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use sprat_rdma::{Access, QpState, QueuePair, Rights, SendRequest};

use crate::abi::attr::{QpAttr, QpInit};
use crate::abi::object::{Context, Qp as Raw, QpEx};
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, UNSUPPORTED, at, export, put};
use crate::log::log;
use crate::mr::access;
use crate::object::{EventCounts, lock};
use crate::query::PORT;
use crate::sequence::Sequence;

/// `IBV_QPS_RESET`, a queue pair's state of `enum ibv_qp_state`.
pub(crate) const RESET: c_int = 0;
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
const SQD: c_int = 4;
const ERR: c_int = 6;
/// `IBV_QP_STATE`: the flag of `enum ibv_qp_attr_mask` for a queue pair's state.
const STATE: c_int = 1;
const CUR_STATE: c_int = 1 << 1;
const ACCESS: c_int = 1 << 3;
const PORT_GIVEN: c_int = 1 << 5;
const CAP: c_int = 1 << 19;
/// A queue pair of a C program.
#[repr(C)]
pub(crate) struct Qp {
    raw: QpEx,
    pub(crate) engine: &'static Engine,
    pub(crate) pair: QueuePair,
    /// The state of the queue pair that the program has set before there is a connection.
    pending_state: AtomicI32,
    /// The attributes of the queue pair that the program has set, apart from the state.
    attr: Mutex<QpAttr>,
    init: QpInit,
    pub(crate) events: EventCounts,
    /// True if the queue pair has the functions of the extended interface.
    extended: bool,
    pub(crate) building: Sequence<Builder>,
}

/// The work requests that the program is building through the extended interface.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<SendRequest>,
    failed: Option<Errno>,
}

impl Builder {
    fn fail(&mut self, errno: Errno) {
        self.failed = self.failed.or(Some(errno));
    }

    /// Changes the work request that was started last.
    fn last(&mut self, set: impl FnOnce(&mut SendRequest) -> Result<(), Errno>) {
        let set = self.requests.last_mut().ok_or(INVALID).and_then(set);
        if let Err(errno) = set {
            self.fail(errno);
        }
    }
}

/// Puts all queue pairs of a closing context into the error state.
pub(crate) fn fail_all_of(engine: &Engine, context: *mut Context) {
    engine.qps.each(|qp| {
        // SAFETY: A queue pair leaves the directory, which is locked now, before it is freed.
        let qp = unsafe { &*qp.cast::<Qp>() };
        if qp.raw.qp_base.context == context {
            qp.pair.fail();
        }
    });
}

impl Qp {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the queue pair stays alive while the reference is in use.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(qp: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        unsafe { at(qp.cast::<Self>()) }
    }

    /// The state of the queue pair as an `enum ibv_qp_state`.
    pub(crate) fn state(&self) -> c_int {
        if !self.engine.is_current() {
            return ERR;
        }
        match self.pair.state() {
            Some(QpState::Idle | QpState::Starting) => self.pending_state.load(Ordering::Relaxed),
            Some(QpState::Ready) => RTS,
            Some(QpState::Closing) => SQD,
            Some(QpState::Error) | None => ERR,
        }
    }

    /// The queue pair's attribute `min_rnr_timer` that the program has set.
    pub(crate) fn min_rnr_timer(&self) -> u8 {
        lock(&self.attr).min_rnr_timer
    }

    /// True if the queue pair has the functions of the extended interface.
    pub(crate) const fn is_extended(&self) -> bool {
        self.extended
    }

    /// Changes the state of the queue pair.
    fn set_state(&self, next: c_int) -> Result<(), Errno> {
        let now = self.state();
        match (now, next) {
            (_, RESET) => {
                self.pair.reset();
                self.pending_state.store(INIT, Ordering::Relaxed);
            }
            (ERR, ERR) => {}
            (_, ERR) => {
                log!(
                    Info,
                    "the program puts queue pair {} into error; posted requests are flushed",
                    self.pair.number().0
                );
                self.pair.fail();
            }
            (INIT, INIT) | (INIT | RTR, RTR) => self.pending_state.store(next, Ordering::Relaxed),
            // rdma_cm has connected the queue pair and taken these steps already.
            (RTS, INIT | RTR | RTS) | (SQD, SQD) => {}
            (RTS, SQD) => self.pair.disconnect()?,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    fn modify(&self, attr: &QpAttr, mask: c_int) -> Result<(), Errno> {
        // A program considers a new queue pair to be in RESET.
        let current = if attr.cur_qp_state == RESET { INIT } else { attr.cur_qp_state };
        if !self.engine.is_current() || mask & CUR_STATE != 0 && current != self.state() {
            return Err(INVALID);
        }
        if mask & CAP != 0 {
            return Err(UNSUPPORTED);
        }
        if mask & PORT_GIVEN != 0 && u32::from(attr.port_num) != PORT {
            return Err(INVALID);
        }
        if mask & STATE != 0 {
            self.set_state(attr.qp_state)?;
        }
        if mask & ACCESS != 0 {
            let Access { remote_write, remote_read, remote_atomic, .. } =
                access(attr.qp_access_flags);
            self.pair.allow(Rights {
                write: remote_write,
                read: remote_read,
                atomic: remote_atomic,
            });
        }
        let mut kept = lock(&self.attr);
        let kept = &mut *kept;
        let mut take = |bit: u32, set: fn(&mut QpAttr, &QpAttr)| {
            if mask & (1 << bit) != 0 {
                set(kept, attr);
            }
        };
        take(ACCESS.trailing_zeros(), |to, from| to.qp_access_flags = from.qp_access_flags);
        take(4, |to, from| to.pkey_index = from.pkey_index);
        take(5, |to, from| to.port_num = from.port_num);
        take(8, |to, from| to.path_mtu = from.path_mtu);
        take(9, |to, from| to.timeout = from.timeout);
        take(10, |to, from| to.retry_cnt = from.retry_cnt);
        take(11, |to, from| to.rnr_retry = from.rnr_retry);
        take(13, |to, from| to.max_rd_atomic = from.max_rd_atomic);
        take(15, |to, from| to.min_rnr_timer = from.min_rnr_timer);
        take(17, |to, from| to.max_dest_rd_atomic = from.max_dest_rd_atomic);
        Ok(())
    }
}

export! {
    /// Changes the attributes of a queue pair that `mask` names.
    code fn ibv_modify_qp(qp: *mut Raw, attr: *mut QpAttr, mask: c_int) {
        // SAFETY: The program passes null or a live queue pair.
        let own = unsafe { Qp::from_raw(qp) }?;
        // SAFETY: The program passes null or a valid structure.
        let attr = unsafe { at(attr) }?;
        own.modify(attr, mask)?;
        let parameters = attr.qp_state;
        if mask & STATE != 0 {
            // A reset queue pair appears as a new one.
            let state = if parameters == RESET { RESET } else { own.state() };
            // SAFETY: The pointer is not null, and programs do not write this field.
            unsafe { (*qp).state = state };
        }
        Ok(())
    }

    /// Returns the present attributes of a queue pair, and the attributes with which it was
    /// created.
    code fn ibv_query_qp(qp: *mut Raw, attr: *mut QpAttr, _mask: c_int, init: *mut QpInit) {
        // SAFETY: The program passes null or a live queue pair.
        let own = unsafe { Qp::from_raw(qp) }?;
        let state = own.state();
        let mut found = *lock(&own.attr);
        (found.qp_state, found.cur_qp_state) = (state, state);
        found.sq_draining = u8::from(state == SQD);
        // SAFETY: The program passes null or memory that it lets this call write. Programs do not
        // write the field `state`.
        unsafe {
            put(attr, found)?;
            put(init, own.init)?;
            (*qp).state = state;
        }
        Ok(())
    }
}
