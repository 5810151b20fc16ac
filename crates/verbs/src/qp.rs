//! Queue pairs: making, asking, changing. What is posted to them is in `work`.
//!
//! ```text
//!   INIT ─► (RTR) ─► RTS by rdma_cm alone ─► SQD (it ends the connection) ─► ERR ─► RESET, which is INIT
//! ```
//!
//! As iWARP devices do it: a new queue pair is in INIT, and `ibv_modify_qp` makes no connection. Before there is one RTR is
//! taken note of and RTS refused; afterwards the engine says how the queue pair stands, and the program only may end it.
//! `ibv_qp.state` is RESET until the program moves or asks for the first time, as rdma-core leaves it.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use sprat::verbs::{Access, Limits, PairOptions, QpState, QueuePair, Rights};

use crate::abi::attr::{QpAttr, QpCap, QpInit, QpInitEx};
use crate::abi::object::{Context, Pd as SeenPd, Qp as Seen, QpEx};
use crate::cq::Cq;
use crate::engine::{Engine, limits, locked};
use crate::entry::{Errno, INVALID, UNSUPPORTED, at, entry, export, put};
use crate::extended::{Builder, Sequence, Writers};
use crate::log::log;
use crate::mr::access;
use crate::pd::{Acks, Pd};
use crate::query::PORT;
use crate::srq::Srq;

/// `IBV_QPT_RC`.
const RC: c_int = 2;
/// `enum ibv_qp_state`.
pub(crate) const RESET: c_int = 0;
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
const SQD: c_int = 4;
const ERR: c_int = 6;
/// `enum ibv_qp_attr_mask`, as far as it matters.
const STATE: c_int = 1;
const CUR_STATE: c_int = 1 << 1;
const ACCESS: c_int = 1 << 3;
const PORT_GIVEN: c_int = 1 << 5;
const CAP: c_int = 1 << 19;
/// `enum ibv_qp_init_attr_mask`.
const PD: u32 = 1;
const CREATE_FLAGS: u32 = 1 << 2;
const SEND_OPS: u32 = 1 << 6;
/// `IBV_QP_EX_WITH_…` that there are: all but TSO, flushes and atomic Writes. Sends with immediate data, which programs ask
/// for beside what they use, are refused when they are posted.
const OPERATIONS: u64 = 0x3ff;

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    seen: QpEx,
    pub(crate) engine: &'static Engine,
    pub(crate) pair: QueuePair,
    /// What the program has set before there is a connection.
    stage: AtomicI32,
    /// What it has set besides.
    attr: Mutex<QpAttr>,
    init: QpInit,
    pub(crate) events: Acks,
    /// It may be posted to by functions.
    extended: bool,
    pub(crate) building: Sequence<Builder>,
}

/// Ends the connections of all queue pairs that were made with a context: it closes.
pub(crate) fn fail_all_of(engine: &Engine, context: *mut Context) {
    engine.qps.each(|qp| {
        // SAFETY: who destroys a queue pair takes it out of the directory first, which is not possible now.
        let qp = unsafe { &*qp };
        if qp.seen.qp_base.context == context {
            qp.pair.fail();
        }
    });
}

/// What a program wants of a new one.
struct Wanted {
    pd: *mut SeenPd,
    init: QpInit,
    extended: bool,
}

impl Qp {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null.
    ///
    /// # Safety
    /// If it is not null, it is to a queue pair that is there and stays so while the reference is used.
    #[inline]
    pub(crate) unsafe fn from_seen<'a>(qp: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: the caller's promise; what is seen is the whole's first field.
        unsafe { at(qp.cast::<Self>()) }
    }

    /// How it stands (`enum ibv_qp_state`).
    pub(crate) fn state(&self) -> c_int {
        if !self.engine.is_ours() {
            return ERR;
        }
        match self.pair.state() {
            Some(QpState::Idle | QpState::Starting) => self.stage.load(Ordering::Relaxed),
            Some(QpState::Ready) => RTS,
            Some(QpState::Closing) => SQD,
            Some(QpState::Error) | None => ERR,
        }
    }

    /// `min_rnr_timer`, as the program has set it.
    pub(crate) fn min_rnr_timer(&self) -> u8 {
        locked(&self.attr).min_rnr_timer
    }

    /// It may be posted to by functions.
    pub(crate) const fn is_extended(&self) -> bool {
        self.extended
    }

    /// Moves it to another state.
    fn go(&self, next: c_int) -> Result<(), Errno> {
        let now = self.state();
        match (now, next) {
            (_, RESET) => {
                self.pair.reset();
                self.stage.store(INIT, Ordering::Relaxed);
            }
            (ERR, ERR) => {}
            (_, ERR) => {
                log!(
                    Info,
                    "the program puts queue pair {} into error: what is posted is flushed",
                    self.pair.number().0
                );
                self.pair.fail();
            }
            (INIT, INIT) | (INIT | RTR, RTR) => self.stage.store(next, Ordering::Relaxed),
            // The connection was made by rdma_cm, which has gone all this way.
            (RTS, INIT | RTR | RTS) | (SQD, SQD) => {}
            (RTS, SQD) => self.pair.disconnect()?,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    fn modify(&self, attr: &QpAttr, mask: c_int) -> Result<(), Errno> {
        // Programs know a new queue pair as one in RESET.
        let current = if attr.cur_qp_state == RESET { INIT } else { attr.cur_qp_state };
        if !self.engine.is_ours() || mask & CUR_STATE != 0 && current != self.state() {
            return Err(INVALID);
        }
        if mask & CAP != 0 {
            return Err(UNSUPPORTED);
        }
        if mask & PORT_GIVEN != 0 && u32::from(attr.port_num) != PORT {
            return Err(INVALID);
        }
        if mask & STATE != 0 {
            self.go(attr.qp_state)?;
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
        let mut kept = locked(&self.attr);
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

/// The limits that a new queue pair gets: what was asked for, at least one element, all inline data that there may be.
fn granted(cap: &QpCap) -> Result<QpCap, Errno> {
    let within = |wanted: u32, most: u32| if wanted > most { Err(INVALID) } else { Ok(wanted) };
    let Limits { requests, elements, inline, .. } = limits();
    let (elements, inline) = (elements as u32, inline as u32);
    within(cap.max_inline_data, inline)?;
    Ok(QpCap {
        max_send_wr: within(cap.max_send_wr, requests)?,
        max_recv_wr: within(cap.max_recv_wr, requests)?,
        max_send_sge: within(cap.max_send_sge, elements)?.max(1),
        max_recv_sge: within(cap.max_recv_sge, elements)?.max(1),
        max_inline_data: inline,
    })
}

fn create(wanted: &Wanted) -> Result<(*mut Qp, QpCap), Errno> {
    let init = wanted.init;
    // SAFETY: null, or a domain that is allocated.
    let domain = unsafe { Pd::to_use(wanted.pd) }?;
    if init.qp_type != RC {
        return Err(UNSUPPORTED);
    }
    // SAFETY: null, or queues that are there.
    let (send, recv) = unsafe { (Cq::from_seen(init.send_cq)?, Cq::from_seen(init.recv_cq)?) };
    // SAFETY: null, or a queue that is there.
    let srq = if init.srq.is_null() { None } else { Some(unsafe { Srq::from_seen(init.srq) }?) };
    let theirs = |of: &Engine| !std::ptr::eq(of, domain.engine);
    if theirs(send.engine) || theirs(recv.engine) || srq.is_some_and(|s| theirs(s.engine)) {
        return Err(INVALID);
    }
    let cap = granted(&init.cap)?;
    let options = PairOptions {
        send_queue: &send.queue,
        recv_queue: &recv.queue,
        shared: srq.map(|s| &s.queue),
        send_depth: cap.max_send_wr,
        recv_depth: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: cap.max_recv_sge as usize,
        max_inline: cap.max_inline_data as usize,
        signal_all: init.sq_sig_all != 0,
    };
    let pair = domain.domain.queue_pair(&options)?;
    pair.report_to(&domain.open()?.events.of(domain.engine));
    let number = pair.number().0;
    let seen = Seen {
        context: domain.context(),
        qp_context: init.qp_context,
        pd: wanted.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: number,
        qp_num: number,
        state: RESET,
        qp_type: RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    // SAFETY: a structure of numbers alone, for which all zeros mean nothing set.
    let attr = QpAttr { cap, port_num: PORT as u8, ..unsafe { std::mem::zeroed() } };
    let (stage, attr, events) = (AtomicI32::new(INIT), Mutex::new(attr), Acks::default());
    let engine = domain.engine;
    let init = QpInit { cap, ..init };
    let (seen, building, extended) =
        (Writers::seen(seen), Sequence::new(Builder::default()), wanted.extended);
    let qp = Box::new(Qp { seen, engine, pair, stage, attr, init, events, extended, building });
    let qp = Box::into_raw(qp);
    engine.qps.add(number, qp);
    for users in [&domain.users, &send.users, &recv.users].into_iter().chain(srq.map(|s| &s.users))
    {
        users.enter();
    }
    Ok((qp, cap))
}

export! {
    /// A queue pair, reliable and connected. The limits that it got are written back.
    null fn ibv_create_qp(pd: *mut SeenPd, init: *mut QpInit) -> *mut Seen {
        // SAFETY: null, or what the program wants, which is its own.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let (qp, cap) = create(&Wanted { pd, init: *init, extended: false })?;
        init.cap = cap;
        Ok(qp.cast())
    }
}

entry! {
    /// `ibv_create_qp_ex`.
    null fn create_ex(_context: *mut Context, init: *mut QpInitEx) -> *mut Seen {
        // SAFETY: null, or what the program wants, which is its own; fields that its mask does not name are not looked at.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        let flags = init.comp_mask & CREATE_FLAGS != 0 && init.create_flags != 0;
        let extended = init.comp_mask & SEND_OPS != 0;
        if init.comp_mask & !(PD | CREATE_FLAGS | SEND_OPS) != 0
            || flags
            || (extended && init.send_ops_flags & !OPERATIONS != 0)
        {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & PD == 0 {
            return Err(INVALID);
        }
        let QpInitEx { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *init;
        let plain = QpInit { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let (qp, cap) = create(&Wanted { pd: init.pd, init: plain, extended })?;
        init.cap = cap;
        Ok(qp.cast())
    }
}

export! {
    /// Changes what `mask` names.
    code fn ibv_modify_qp(qp: *mut Seen, attr: *mut QpAttr, mask: c_int) {
        // SAFETY: null, or a queue pair that is there.
        let own = unsafe { Qp::from_seen(qp) }?;
        // SAFETY: null, or what the program wants.
        let attr = unsafe { at(attr) }?;
        own.modify(attr, mask)?;
        let wanted = attr.qp_state;
        if mask & STATE != 0 {
            // A queue pair that was reset is as a new one.
            let state = if wanted == RESET { RESET } else { own.state() };
            // SAFETY: not null; a field that the program leaves to us.
            unsafe { (*qp).state = state };
        }
        Ok(())
    }

    /// How it is, and how it was made.
    code fn ibv_query_qp(qp: *mut Seen, attr: *mut QpAttr, _mask: c_int, init: *mut QpInit) {
        // SAFETY: null, or a queue pair that is there.
        let own = unsafe { Qp::from_seen(qp) }?;
        let state = own.state();
        let mut found = *locked(&own.attr);
        (found.qp_state, found.cur_qp_state) = (state, state);
        found.sq_draining = u8::from(state == SQD);
        // SAFETY: null, or room for the answers, the caller's; the state is a field that the program leaves to us.
        unsafe {
            put(attr, found)?;
            put(init, own.init)?;
            (*qp).state = state;
        }
        Ok(())
    }

    /// Gives it back, and ends its connection. Waits until all its events are acknowledged.
    code fn ibv_destroy_qp(qp: *mut Seen) {
        // SAFETY: null, or a queue pair that is there.
        let own = unsafe { Qp::from_seen(qp) }?;
        let Seen { pd, send_cq, recv_cq, srq, .. } = own.seen.qp_base;
        // SAFETY: what it uses is there as long as it has users.
        unsafe {
            Pd::from_seen(pd)?.users.leave();
            Cq::from_seen(send_cq)?.users.leave();
            Cq::from_seen(recv_cq)?.users.leave();
            if !srq.is_null() {
                Srq::from_seen(srq)?.users.leave();
            }
        }
        if own.engine.is_ours() {
            own.engine.qps.remove(own.pair.number().0);
            own.events.wait();
        }
        // SAFETY: the pointer that was given up when it was made, which the program gives back.
        let qp = unsafe { Box::from_raw(qp.cast::<Qp>()) };
        if !qp.engine.is_ours() {
            std::mem::forget(qp);
        }
        Ok(())
    }
}
