//! Queue pairs and shared receive queues of rdma_cm ids, and the completion queues that are created
//! for programs that bring none.

use std::ffi::{c_int, c_uint};

use super::id::{Id, Stage};
use crate::abi::attr::{QpAttr, QpInit, QpInitEx, SrqInit, SrqInitEx};
use crate::abi::cm::Id as Raw;
use crate::abi::object::{CompChannel, Cq, Pd};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cq::create::{ibv_create_cq, ibv_destroy_cq};
use crate::entry::{Errno, INVALID, at, export, put};
use crate::qp::create::{ibv_create_qp_ex, ibv_destroy_qp};
use crate::qp::{RESET, ibv_modify_qp};
use crate::srq::{self, ibv_destroy_srq};

/// `IBV_QP_INIT_ATTR_PD`: the flag by which a queue pair's attributes have a protection domain.
const QP_PD: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_TYPE`: the flag by which a shared receive queue's attributes have a type.
const SRQ_TYPE: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_PD`: the flag by which a shared receive queue's attributes have a domain.
const SRQ_PD: u32 = 1 << 1;
/// `IBV_QPS_INIT`, a queue pair's state of `enum ibv_qp_state`.
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
const ERR: c_int = 6;
/// `IBV_QP_STATE`: the flag of `enum ibv_qp_attr_mask` for a queue pair's state.
const STATE: c_int = 1;
const ACCESS: c_int = 1 << 3;
const PORT: c_int = 1 << 5;
/// `IBV_ACCESS_REMOTE_WRITE`, `_READ` and `_ATOMIC`: the rights of a peer unless the program
/// restricts them. The kernel's rdma_cm grants the first two for iWARP cards, which lack atomics,
/// once there is a connection; cards do not enforce them before.
const REMOTE: c_uint = 1 << 1 | 1 << 2 | 1 << 3;

fn errno() -> Errno {
    std::io::Error::last_os_error().into()
}

/// Creates a completion queue with a channel for an rdma_cm id.
///
/// # Safety
/// The id is alive.
unsafe fn create_queue(id: *mut Raw, depth: u32) -> Result<(*mut CompChannel, *mut Cq), Errno> {
    // SAFETY: The caller guarantees it.
    let context = unsafe { (*id).verbs };
    let channel = ibv_create_comp_channel(context);
    if channel.is_null() {
        return Err(errno());
    }
    let cq = ibv_create_cq(context, depth as c_int, id.cast(), channel, 0);
    if cq.is_null() {
        let why = errno();
        ibv_destroy_comp_channel(channel);
        return Err(why);
    }
    Ok((channel, cq))
}

/// Creates the completion queues of an rdma_cm id: one of depth `send` and one of depth `recv`. A
/// depth of 0 creates none.
///
/// # Safety
/// The id is alive.
unsafe fn create_queues(id: *mut Raw, send: u32, recv: u32) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    unsafe {
        if recv > 0 {
            ((*id).recv_cq_channel, (*id).recv_cq) = create_queue(id, recv)?;
        }
        if send > 0 {
            match create_queue(id, send) {
                Ok(made) => ((*id).send_cq_channel, (*id).send_cq) = made,
                Err(why) => {
                    destroy_queues(id);
                    return Err(why);
                }
            }
        }
    }
    Ok(())
}

/// Destroys the completion queues that were created for an rdma_cm id.
///
/// # Safety
/// The id is alive, and nothing uses its queues any more.
unsafe fn destroy_queues(id: *mut Raw) {
    // SAFETY: The caller guarantees it. Each object is destroyed once, and its pointer is set to
    // null.
    unsafe {
        for cq in [&raw mut (*id).send_cq, &raw mut (*id).recv_cq] {
            if !(*cq).is_null() {
                ibv_destroy_cq(*cq);
                *cq = std::ptr::null_mut();
            }
        }
        for channel in [&raw mut (*id).send_cq_channel, &raw mut (*id).recv_cq_channel] {
            if !(*channel).is_null() {
                ibv_destroy_comp_channel(*channel);
                *channel = std::ptr::null_mut();
            }
        }
    }
}

/// Creates a queue pair for an rdma_cm id.
///
/// # Safety
/// The id is alive, and no other thread uses `init`.
unsafe fn create(id: *mut Raw, init: &mut QpInitEx) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    let raw = unsafe { &mut *id };
    if !raw.qp.is_null() || raw.verbs.is_null() {
        return Err(INVALID);
    }
    if init.comp_mask & QP_PD == 0 || init.pd.is_null() {
        init.comp_mask |= QP_PD;
        init.pd = raw.pd;
    // SAFETY: The pointer is not null, and the program passes a live domain.
    } else if unsafe { (*init.pd).context } != raw.verbs {
        return Err(INVALID);
    }
    let other =
        |own: *mut Cq, wanted: *mut Cq| !own.is_null() && !wanted.is_null() && own != wanted;
    if other(raw.recv_cq, init.recv_cq) || other(raw.send_cq, init.send_cq) {
        return Err(INVALID);
    }
    let own = |own: *mut Cq, wanted: *mut Cq, depth| {
        if own.is_null() && wanted.is_null() { depth } else { 0 }
    };
    let (send, recv) = (
        own(raw.send_cq, init.send_cq, init.cap.max_send_wr),
        own(raw.recv_cq, init.recv_cq, init.cap.max_recv_wr),
    );
    // SAFETY: The caller guarantees it.
    unsafe { create_queues(id, send, recv) }?;
    let had = (init.send_cq, init.recv_cq);
    init.send_cq = if had.0.is_null() { raw.send_cq } else { had.0 };
    init.recv_cq = if had.1.is_null() { raw.recv_cq } else { had.1 };
    if !raw.srq.is_null() && init.srq.is_null() {
        init.srq = raw.srq;
    }
    let pair = ibv_create_qp_ex(raw.verbs, init);
    if pair.is_null() {
        let why = errno();
        // SAFETY: The caller guarantees it, and no queue pair uses the queues.
        unsafe { destroy_queues(id) };
        return Err(why);
    }
    // SAFETY: All zeros are a valid value of a structure of numbers.
    let mut attr =
        QpAttr { qp_state: INIT, qp_access_flags: REMOTE, ..unsafe { std::mem::zeroed() } };
    ibv_modify_qp(pair, &raw mut attr, STATE | ACCESS);
    raw.qp = pair;
    raw.pd = init.pd;
    Ok(())
}

/// Creates a queue pair for an rdma_cm id in a protection domain.
///
/// # Errors
/// The queue pair or one of its queues cannot be created.
///
/// # Safety
/// The id is alive.
pub(super) unsafe fn create_pair(
    id: *mut Raw,
    pd: *mut Pd,
    init: &mut QpInit,
) -> Result<(), Errno> {
    // SAFETY: All zeros are a valid value of a structure of numbers and pointers.
    let zeros: QpInitEx = unsafe { std::mem::zeroed() };
    let QpInit { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = *init;
    let mut wanted = QpInitEx {
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all,
        comp_mask: QP_PD,
        pd,
        ..zeros
    };
    // SAFETY: The caller guarantees it.
    let created = unsafe { create(id, &mut wanted) };
    let QpInitEx { send_cq, recv_cq, srq, cap, .. } = wanted;
    *init = QpInit { send_cq, recv_cq, srq, cap, ..*init };
    created
}

export! {
    /// Creates a queue pair for an rdma_cm id. It creates completion queues if the program passes
    /// none, and uses the device's default domain if `pd` is null.
    minus fn sprat_rdma_create_qp(id: *mut Raw, pd: *mut Pd, init: *mut QpInit) -> c_int {
        // SAFETY: The program passes null or a live id, and null or a valid structure that no other
        // thread uses.
        unsafe {
            Id::usable(id)?;
            create_pair(id, pd, init.as_mut().ok_or(INVALID)?)?;
        }
        Ok(0)
    }

    /// Creates a queue pair for an rdma_cm id from extended attributes.
    minus fn sprat_rdma_create_qp_ex(id: *mut Raw, init: *mut QpInitEx) -> c_int {
        // SAFETY: The program passes null or a live id, and null or a valid structure that no other
        // thread uses.
        unsafe {
            Id::usable(id)?;
            create(id, init.as_mut().ok_or(INVALID)?)?;
        }
        Ok(0)
    }

    /// Creates a shared receive queue for an rdma_cm id.
    minus fn sprat_rdma_create_srq(id: *mut Raw, pd: *mut Pd, init: *mut SrqInit) -> c_int {
        // SAFETY: The program passes null or a valid structure that no other thread uses.
        let init = unsafe { init.as_mut() }.ok_or(INVALID)?;
        // SAFETY: All zeros are a valid value of a structure of numbers and pointers.
        let zeros: SrqInitEx = unsafe { std::mem::zeroed() };
        let SrqInit { srq_context, attr } = *init;
        let mut wanted = SrqInitEx { srq_context, attr, comp_mask: SRQ_TYPE | SRQ_PD, pd, ..zeros };
        // SAFETY: The program passes null or a live id.
        unsafe { create_shared(id, &mut wanted) }?;
        init.attr = wanted.attr;
        Ok(0)
    }

    /// Creates a shared receive queue for an rdma_cm id from extended attributes.
    minus fn sprat_rdma_create_srq_ex(id: *mut Raw, init: *mut SrqInitEx) -> c_int {
        // SAFETY: The program passes null or a live id, and null or a valid structure that no other
        // thread uses.
        unsafe { create_shared(id, init.as_mut().ok_or(INVALID)?) }?;
        Ok(0)
    }

    /// Returns the attributes by which a program moves its own queue pair to a state. As for an
    /// iWARP card, whose later states the engine sets itself, only the access rights and the port
    /// remain.
    minus fn sprat_rdma_init_qp_attr(id: *mut Raw, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
        // SAFETY: The program passes null or a live id, and null or valid structures.
        let (own, wanted) = unsafe { (Id::usable(id)?, at(attr)?.qp_state) };
        // SAFETY: The id is alive.
        let (device, port_num) = unsafe { ((*own.raw()).verbs, (*own.raw()).port_num) };
        if mask.is_null() || device.is_null() {
            return Err(INVALID);
        }
        let has_begun = match own.state().stage {
            Stage::Idle | Stage::Listening => return Err(INVALID),
            Stage::Bound | Stage::Resolved | Stage::Routed => false,
            Stage::Requested(_) | Stage::Connecting | Stage::Connected | Stage::Closed => true,
        };
        let (access, changes) = match (has_begun, wanted) {
            (true, INIT | RTR) => (REMOTE, STATE | ACCESS),
            (true, RTS) => (0, 0),
            (false, RESET..=ERR) => (REMOTE, STATE | ACCESS),
            _ => return Err(INVALID),
        };
        // SAFETY: All zeros are a valid value of a structure of numbers.
        let zeros: QpAttr = unsafe { std::mem::zeroed() };
        // SAFETY: The program passes null or memory that it lets this call write.
        unsafe {
            put(attr, QpAttr { qp_state: wanted, qp_access_flags: access, port_num, ..zeros })?;
            put(mask, changes | PORT)?;
        }
        Ok(0)
    }
}

/// Creates a shared receive queue for an rdma_cm id.
///
/// # Safety
/// The id is null or alive.
unsafe fn create_shared(id: *mut Raw, init: &mut SrqInitEx) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    unsafe { Id::usable(id) }?;
    // SAFETY: The caller guarantees it, and the pointer is not null.
    let raw = unsafe { &mut *id };
    if init.comp_mask & SRQ_TYPE == 0 || raw.verbs.is_null() {
        return Err(INVALID);
    }
    if init.comp_mask & SRQ_PD == 0 || init.pd.is_null() {
        init.comp_mask |= SRQ_PD;
        init.pd = raw.pd;
    }
    let queue = srq::ibv_create_srq_ex(raw.verbs, init);
    if queue.is_null() {
        return Err(errno());
    }
    if raw.pd.is_null() {
        raw.pd = init.pd;
    }
    raw.srq = queue;
    Ok(())
}

/// Destroys an rdma_cm id's queue pair, if it has one, and the completion queues that were created
/// for it.
///
/// # Safety
/// The id is alive.
pub(super) unsafe fn destroy_pair(id: *mut Raw) {
    // SAFETY: The caller guarantees it.
    unsafe {
        let pair = std::mem::replace(&mut (*id).qp, std::ptr::null_mut());
        if !pair.is_null() {
            ibv_destroy_qp(pair);
        }
        destroy_queues(id);
    }
}

/// Destroys an rdma_cm id's shared receive queue, if it has one, and the completion queues that
/// were created for it.
///
/// # Safety
/// The id is alive.
pub(super) unsafe fn destroy_shared(id: *mut Raw) {
    // SAFETY: The caller guarantees it.
    unsafe {
        let queue = std::mem::replace(&mut (*id).srq, std::ptr::null_mut());
        if !queue.is_null() {
            ibv_destroy_srq(queue);
        }
        destroy_queues(id);
    }
}

export! {
    /// Destroys an rdma_cm id's queue pair and the completion queues that were created for it.
    plain fn sprat_rdma_destroy_qp(id: *mut Raw) {
        // SAFETY: The program passes null or a live id.
        unsafe {
            id.as_ref().ok_or(INVALID)?;
            destroy_pair(id);
        }
        Ok(())
    }

    /// Destroys an rdma_cm id's shared receive queue and the completion queues that were created
    /// for it.
    plain fn sprat_rdma_destroy_srq(id: *mut Raw) {
        // SAFETY: The program passes null or a live id.
        unsafe {
            id.as_ref().ok_or(INVALID)?;
            destroy_shared(id);
        }
        Ok(())
    }
}
