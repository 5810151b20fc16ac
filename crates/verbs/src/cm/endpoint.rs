//! Endpoints of rdma_cm: an id with its address, route and queue pair in one call.

use std::ffi::c_int;

use super::event::MAX_PRIVATE_DATA;
use super::id::{self, Id};
use super::queues::{self, create_pair};
use super::resolve::{sprat_rdma_bind_addr, sprat_rdma_resolve_addr, sprat_rdma_resolve_route};
use crate::abi::attr::QpInit;
use crate::abi::cm::{AddrInfo, Id as Raw};
use crate::abi::object::Pd;
use crate::entry::{Errno, INVALID, at, export, put};

/// `RAI_PASSIVE`: the flag of a resolved address that is to listen at.
const PASSIVE: c_int = 1;
const TIMEOUT_MS: c_int = 2000;

/// Converts the return code of an exported function of this library to a `Result`.
fn check(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Binds or resolves a new rdma_cm id, and creates its queue pair.
///
/// # Safety
/// The id is alive, and the pointers are null or refer to valid structures.
unsafe fn prepare(
    id: *mut Raw,
    wanted: &AddrInfo,
    pd: *mut Pd,
    init: *mut QpInit,
) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    let init = unsafe { init.as_mut() };
    // SAFETY: The caller guarantees it.
    let own = unsafe { Id::usable(id) }?;
    if wanted.ai_flags & PASSIVE != 0 {
        check(sprat_rdma_bind_addr(id, wanted.ai_src_addr))?;
        if !pd.is_null() {
            // SAFETY: The id is alive, and programs do not write this field.
            unsafe { (*id).pd = pd };
        }
        own.state().pair_attr = init.map(|init| QpInit { qp_type: wanted.ai_qp_type, ..*init });
        return Ok(());
    }
    check(sprat_rdma_resolve_addr(id, wanted.ai_src_addr, wanted.ai_dst_addr, TIMEOUT_MS))?;
    check(sprat_rdma_resolve_route(id, TIMEOUT_MS))?;
    if let Some(init) = init {
        init.qp_type = wanted.ai_qp_type;
        // SAFETY: The caller guarantees it.
        unsafe { create_pair(id, pd, init) }?;
    }
    if wanted.ai_connect_len > MAX_PRIVATE_DATA {
        return Err(INVALID);
    }
    if !wanted.ai_connect.is_null() {
        // SAFETY: The program states the length of its memory.
        let connect_data = unsafe {
            std::slice::from_raw_parts(wanted.ai_connect.cast::<u8>(), wanted.ai_connect_len)
        };
        own.state().connect_data = connect_data.to_vec();
    }
    Ok(())
}

/// Destroys an endpoint: an id and the objects that were created for it.
///
/// # Safety
/// The id is null or alive, and the program does not use it afterwards.
unsafe fn destroy(id: *mut Raw) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    unsafe {
        id.as_ref().ok_or(INVALID)?;
        queues::destroy_pair(id);
        queues::destroy_shared(id);
        id::destroy(id)
    }
}

export! {
    /// Creates a synchronous rdma_cm id from a resolved address: bound for a listener, otherwise
    /// with a route to its peer and a queue pair.
    minus fn sprat_rdma_create_ep(
        to: *mut *mut Raw,
        wanted: *mut AddrInfo,
        pd: *mut Pd,
        init: *mut QpInit,
    ) -> c_int {
        // SAFETY: The program passes null or a result of `rdma_getaddrinfo`.
        let wanted = unsafe { at(wanted) }?;
        if to.is_null() {
            return Err(INVALID);
        }
        let null = std::ptr::null_mut();
        let id = id::create(null, null.cast(), wanted.ai_port_space, wanted.ai_qp_type)?;
        // SAFETY: The id was created above; the program passes null or valid structures.
        if let Err(why) = unsafe { prepare(id, wanted, pd, init) } {
            // SAFETY: No other reference to the id exists.
            let _ = unsafe { destroy(id) };
            return Err(why);
        }
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(to, id) }?;
        Ok(0)
    }
}

export! {
    /// Destroys an endpoint with all objects that were created for it.
    plain fn sprat_rdma_destroy_ep(id: *mut Raw) {
        // SAFETY: The program passes null or an id that it does not use afterwards.
        unsafe { destroy(id) }
    }
}
