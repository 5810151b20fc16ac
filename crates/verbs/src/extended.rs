//! The interfaces that are made of functions in the objects: completions read one field at a time, and work requests built
//! one call at a time.
//!
//! ```text
//!   ibv_start_poll ─► ibv_wc_read_… ─► ibv_next_poll ─► … ─► ibv_end_poll        0, or ENOENT where nothing (more) is there
//!   ibv_wr_start ─► ibv_wr_send ─► ibv_wr_set_sge ─► … ─► ibv_wr_complete        all are posted, or none
//! ```
//!
//! Always holds: from its start to its end such a sequence has its object alone; threads that begin one meanwhile wait, with
//! the processor given away.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use sprat::verbs::{Completion, Data, MAX_INLINE, MAX_SGE, Remote, SendOp, SendRequest, Sge, Stag};
use sprat_sys::clock;

use crate::abi::attr::{CqInit, ModifyCq};
use crate::abi::device::ValuesEx;
use crate::abi::object::{
    BindInfo, Context, Cq as SeenCq, CqEx, DataBuf, Mw, PollCq, Qp as SeenQp, QpEx, Sge as SeenSge,
};
use crate::context::Open;
use crate::cq::{self, Cq};
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, UNSUPPORTED, entry, export};
use crate::qp::Qp;
use crate::work;

/// `IBV_WC_EX_WITH_…` that there are: the standard ones, and the times of completions.
const FIELDS: u64 = 0x7f | 1 << 7 | 1 << 11;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, and the flag that there is only one thread.
const FLAGS: u32 = 1;
const SINGLE_THREADED: u32 = 1;
/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;
/// `ibv_start_poll` found nothing.
const NOTHING: Errno = Errno(libc::ENOENT);

/// Something that one sequence at a time has for itself.
pub(crate) struct Sequence<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by who has taken the sequence, one at a time, which C's interface makes the program's duty
// between start and end, and `begin` sees to otherwise.
unsafe impl<T: Send> Sync for Sequence<T> {}

impl<T> Sequence<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn begin(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    #[inline]
    fn end(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value.
    ///
    /// # Safety
    /// The caller is within a sequence that was begun and has not ended, and has no other reference from here.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "a lock whose guard C holds")]
    unsafe fn value(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }
}

/// The functions that read completions.
pub(crate) struct Readers;

impl Readers {
    /// What is seen of a queue, with all of them in it.
    pub(crate) fn seen(plain: SeenCq) -> CqEx {
        let SeenCq { context, channel, cq_context, handle, cqe, mutex, cond, .. } = plain;
        CqEx {
            context,
            channel,
            cq_context,
            handle,
            cqe,
            mutex,
            cond,
            comp_events_completed: 0,
            async_events_completed: 0,
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            start_poll,
            next_poll,
            end_poll,
            read_opcode,
            read_vendor_err: read_zero,
            read_byte_len,
            read_imm_data,
            read_qp_num,
            read_src_qp: read_zero,
            read_wc_flags,
            read_slid: read_zero,
            read_sl: read_zero_octet,
            read_dlid_path_bits: read_zero_octet,
            read_completion_ts,
            read_cvlan: None,
            read_flow_tag: None,
            read_tm_info: None,
            read_completion_wallclock_ns,
        }
    }
}

/// Makes the next completion the current one.
///
/// # Safety
/// `cq` is a queue whose sequence was begun.
#[inline]
unsafe fn advance(seen: *mut CqEx, cq: &Cq, next: Option<Completion>) -> Result<(), Errno> {
    let next = next.ok_or(NOTHING)?;
    // SAFETY: the caller's promise; the fields are those that programs read and we alone write.
    unsafe {
        cq::note(&next);
        (*seen).status = cq::status(next.status);
        (*seen).wr_id = next.id;
        *cq.current.value() = Some(next);
    }
    Ok(())
}

/// The completion that is read, of a queue whose sequence was begun.
#[inline]
fn current(seen: *mut CqEx) -> Option<Completion> {
    // SAFETY: null, or a queue that is there; reading is allowed between start and end alone.
    unsafe { *Cq::from_seen(seen.cast()).ok()?.current.value() }
}

entry! {
    code fn start_poll(seen: *mut CqEx, attr: *mut PollCq) {
        // SAFETY: null, or a queue that is there.
        let cq = unsafe { Cq::from_seen(seen.cast()) }?;
        // SAFETY: null, or what the program wants.
        if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
            return Err(INVALID);
        }
        if !cq.engine.is_ours() {
            return Err(NOTHING);
        }
        cq.current.begin();
        // SAFETY: begun just now.
        unsafe { advance(seen, cq, cq.queue.poll()) }.inspect_err(|_| cq.current.end())
    }

    code fn next_poll(seen: *mut CqEx) {
        // SAFETY: null, or a queue that is there, whose sequence the program has begun.
        unsafe {
            let cq = Cq::from_seen(seen.cast())?;
            advance(seen, cq, cq.queue.poll_ready())
        }
    }
}

entry! {
    plain fn end_poll(seen: *mut CqEx) {
        // SAFETY: null, or a queue that is there.
        unsafe { Cq::from_seen(seen.cast()) }?.current.end();
        Ok(())
    }

    plain fn read_opcode(seen: *mut CqEx) -> c_int {
        Ok(current(seen).map_or(0, |c| cq::opcode(c.completed)))
    }

    plain fn read_byte_len(seen: *mut CqEx) -> u32 {
        Ok(current(seen).map_or(0, |c| c.len))
    }

    plain fn read_imm_data(seen: *mut CqEx) -> u32 {
        Ok(current(seen).map_or(0, |c| cq::immediate(&c)))
    }

    plain fn read_qp_num(seen: *mut CqEx) -> u32 {
        Ok(current(seen).map_or(0, |c| c.qp.0))
    }

    plain fn read_wc_flags(seen: *mut CqEx) -> c_uint {
        Ok(current(seen).map_or(0, |c| cq::flags(&c)))
    }

    plain fn read_completion_ts(seen: *mut CqEx) -> u64 {
        Ok(current(seen).map_or(0, |c| c.at.as_ns()))
    }

    plain fn read_completion_wallclock_ns(seen: *mut CqEx) -> u64 {
        // SAFETY: null, or a queue that is there.
        let cq = unsafe { Cq::from_seen(seen.cast()) }?;
        let ago_ns = current(seen).map_or(0, |c| cq.engine.device.now().since(c.at));
        Ok(clock::wall_ns().saturating_sub(ago_ns))
    }

    plain fn read_zero(_seen: *mut CqEx) -> u32 {
        Ok(0)
    }

    plain fn read_zero_octet(_seen: *mut CqEx) -> u8 {
        Ok(0)
    }
}

entry! {
    /// `ibv_create_cq_ex`.
    null fn create_cq(context: *mut Context, init: *mut CqInit) -> *mut CqEx {
        // SAFETY: null, or what the program wants.
        let init = unsafe { init.as_ref() }.ok_or(INVALID)?;
        let flags = if init.comp_mask & FLAGS != 0 { init.flags } else { 0 };
        if init.wc_flags & !FIELDS != 0 || init.comp_mask & !FLAGS != 0 || flags & !SINGLE_THREADED != 0 {
            return Err(UNSUPPORTED);
        }
        let cq = Cq::create(context, init.cqe, init.cq_context, init.channel, init.comp_vector)?;
        Ok(cq.cast())
    }
}

entry! {
    /// `ibv_modify_cq`: every completion of an armed queue is told at once, so there is nothing to moderate.
    code fn modify_cq(_cq: *mut SeenCq, _attr: *mut ModifyCq) {
        Err(UNSUPPORTED)
    }

    /// `ibv_query_rt_values_ex`: the clock that completions are stamped by counts nanoseconds.
    code fn query_values(context: *mut Context, values: *mut ValuesEx) {
        // SAFETY: null, or a context that the program has open.
        unsafe { Open::from_seen(context) }?;
        // SAFETY: null, or the program's to be written.
        let values = unsafe { values.as_mut() }.ok_or(INVALID)?;
        if values.comp_mask & RAW_CLOCK != 0 {
            let now_ns = Engine::get()?.device.now().as_ns();
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now_ns.cast_signed() };
        }
        values.comp_mask &= RAW_CLOCK;
        Ok(())
    }
}

/// Work requests that are being built.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<SendRequest>,
    failed: Option<Errno>,
}

impl Builder {
    fn fail(&mut self, errno: Errno) {
        self.failed = self.failed.or(Some(errno));
    }

    /// The request that data are set of.
    fn last(&mut self, set: impl FnOnce(&mut SendRequest) -> Result<(), Errno>) {
        let set = self.requests.last_mut().ok_or(INVALID).and_then(set);
        if let Err(errno) = set {
            self.fail(errno);
        }
    }
}

/// The functions that build work requests.
pub(crate) struct Writers;

impl Writers {
    /// What is seen of a queue pair, with all of them in it.
    pub(crate) fn seen(qp_base: SeenQp) -> QpEx {
        QpEx {
            qp_base,
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            wr_atomic_cmp_swp,
            wr_atomic_fetch_add,
            wr_bind_mw,
            wr_local_inv,
            wr_rdma_read,
            wr_rdma_write,
            wr_rdma_write_imm,
            wr_send,
            wr_send_imm,
            wr_send_inv,
            wr_send_tso: None,
            wr_set_ud_addr: None,
            wr_set_xrc_srqn: None,
            wr_set_inline_data,
            wr_set_inline_data_list,
            wr_set_sge,
            wr_set_sge_list,
            wr_start,
            wr_complete,
            wr_abort,
            wr_atomic_write: None,
        }
    }
}

/// What is being built, of a queue pair whose sequence was begun.
fn build(seen: *mut QpEx, build: impl FnOnce(&mut Builder)) {
    // SAFETY: null, or a queue pair that is there; building is allowed between start and end alone.
    if let Ok(qp) = unsafe { Qp::from_seen(seen.cast()) } {
        // SAFETY: as above.
        build(unsafe { qp.building.value() });
    }
}

/// Begins a request: its id and flags are where the program has put them.
fn request(seen: *mut QpEx, op: Result<SendOp, Errno>) {
    build(seen, |builder| match op {
        Ok(op) => {
            // SAFETY: it is there; the program has written these fields before.
            let (id, flags) = unsafe { ((*seen).wr_id, work::flags((*seen).wr_flags)) };
            builder.requests.push(SendRequest {
                id,
                op,
                data: Data::Gather([].into_iter().collect()),
                flags,
            });
        }
        Err(errno) => builder.fail(errno),
    });
}

const fn remote(key: u32, addr: u64) -> Remote {
    Remote { stag: Stag(key), addr }
}

entry! {
    plain fn wr_start(seen: *mut QpEx) {
        // SAFETY: null, or a queue pair that is there.
        let qp = unsafe { Qp::from_seen(seen.cast()) }?;
        qp.building.begin();
        build(seen, |builder| {
            builder.requests.clear();
            builder.failed = None;
        });
        Ok(())
    }

    plain fn wr_abort(seen: *mut QpEx) {
        // SAFETY: null, or a queue pair that is there.
        unsafe { Qp::from_seen(seen.cast()) }?.building.end();
        Ok(())
    }

    plain fn wr_atomic_cmp_swp(seen: *mut QpEx, key: u32, addr: u64, compare: u64, swap: u64) {
        let (to, compare_mask, swap_mask) = (remote(key, addr), u64::MAX, u64::MAX);
        request(seen, Ok(SendOp::CompareSwap { to, compare, compare_mask, swap, swap_mask }));
        Ok(())
    }

    plain fn wr_atomic_fetch_add(seen: *mut QpEx, key: u32, addr: u64, add: u64) {
        request(seen, Ok(SendOp::FetchAdd { to: remote(key, addr), add, mask: 0 }));
        Ok(())
    }

    plain fn wr_bind_mw(seen: *mut QpEx, _window: *mut Mw, key: u32, info: *const BindInfo) {
        // SAFETY: null, or what the program wants, which names a region that is registered.
        request(seen, unsafe { info.as_ref().ok_or(INVALID).and_then(|info| work::bind(key, info)) });
        Ok(())
    }

    plain fn wr_local_inv(seen: *mut QpEx, key: u32) {
        request(seen, Ok(SendOp::Invalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_rdma_read(seen: *mut QpEx, key: u32, addr: u64) {
        request(seen, Ok(SendOp::Read(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write(seen: *mut QpEx, key: u32, addr: u64) {
        request(seen, Ok(SendOp::Write(remote(key, addr))));
        Ok(())
    }

    plain fn wr_rdma_write_imm(seen: *mut QpEx, key: u32, addr: u64, octets: u32) {
        request(seen, Ok(SendOp::WriteImmediate(remote(key, addr), work::immediate(octets))));
        Ok(())
    }

    plain fn wr_send(seen: *mut QpEx) {
        request(seen, Ok(SendOp::Send));
        Ok(())
    }

    plain fn wr_send_imm(seen: *mut QpEx, _octets: u32) {
        request(seen, Err(INVALID));
        Ok(())
    }

    plain fn wr_send_inv(seen: *mut QpEx, key: u32) {
        request(seen, Ok(SendOp::SendInvalidate(Stag(key))));
        Ok(())
    }

    plain fn wr_set_sge(seen: *mut QpEx, key: u32, addr: u64, len: u32) {
        let sge = Sge { stag: Stag(key), addr, len };
        build(seen, |builder| builder.last(|request| {
            request.data = Data::from(sge);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_sge_list(seen: *mut QpEx, count: usize, list: *const SeenSge) {
        build(seen, |builder| builder.last(|request| {
            let count = c_int::try_from(count).ok().filter(|count| *count as usize <= MAX_SGE).ok_or(INVALID)?;
            // SAFETY: the program's array is as long as it says.
            let list = unsafe { work::elements(list, count) }?;
            request.data = Data::Gather(list.iter().map(work::element).collect());
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data(seen: *mut QpEx, addr: *const c_void, len: usize) {
        build(seen, |builder| builder.last(|request| {
            let mut octets = Vec::new();
            // SAFETY: the program's octets are as many as it says.
            unsafe { gather(&mut octets, addr.cast(), len) }?;
            request.data = Data::Inline(octets);
            Ok(())
        }));
        Ok(())
    }

    plain fn wr_set_inline_data_list(seen: *mut QpEx, count: usize, list: *const DataBuf) {
        build(seen, |builder| builder.last(|request| {
            let mut octets = Vec::new();
            if list.is_null() && count > 0 {
                return Err(INVALID);
            }
            for index in 0..count {
                // SAFETY: the program's array is as long as it says, and so are the octets that it names.
                unsafe {
                    let DataBuf { addr, length } = *list.add(index);
                    gather(&mut octets, addr.cast(), length)?;
                }
            }
            request.data = Data::Inline(octets);
            Ok(())
        }));
        Ok(())
    }
}

/// Appends a copy of the program's octets.
///
/// # Errors
/// They are more than any queue takes.
///
/// # Safety
/// They may be read.
unsafe fn gather(octets: &mut Vec<u8>, addr: *const u8, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if addr.is_null() || len > MAX_INLINE - octets.len() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise; they are copied at once.
    octets.extend_from_slice(unsafe { std::slice::from_raw_parts(addr, len) });
    Ok(())
}

entry! {
    code fn wr_complete(seen: *mut QpEx) {
        // SAFETY: null, or a queue pair that is there.
        let qp = unsafe { Qp::from_seen(seen.cast()) }?;
        // SAFETY: the program has begun the sequence, and ends it now.
        let builder = unsafe { qp.building.value() };
        let posted = match builder.failed {
            Some(errno) => Err(errno),
            None if !qp.engine.is_ours() => Err(INVALID),
            None => qp.pair.post_all(&mut builder.requests).map_err(Errno::from),
        };
        qp.building.end();
        posted
    }
}

export! {
    /// The functions of a queue pair that was made to have them.
    null fn ibv_qp_to_qp_ex(qp: *mut SeenQp) -> *mut QpEx {
        // SAFETY: null, or a queue pair that is there.
        if unsafe { Qp::from_seen(qp) }?.is_extended() { Ok(qp.cast()) } else { Err(UNSUPPORTED) }
    }
}
