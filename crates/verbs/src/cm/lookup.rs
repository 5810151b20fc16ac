//! Name resolution for an rdma_cm id, with an event that reports its outcome.

use std::ffi::{c_char, c_int};

use super::addrinfo::{DNS, Lookup, SA, UNKNOWN, resolved};
use super::delivery::wait_outcome;
use super::event;
use super::id::Id;
use crate::abi::cm::{AddrInfo, Id as Raw};
use crate::entry::{Errno, INVALID, UNSUPPORTED, export, put};

export! {
    /// Resolves a name and a service. An event reports the outcome, and
    /// [`sprat_rdma_query_addrinfo`] returns the result. One resolution runs at a time, within this
    /// call, as in rdma-core.
    minus fn sprat_rdma_resolve_addrinfo(
        id: *mut Raw,
        node: *const c_char,
        service: *const c_char,
        hints: *const AddrInfo,
    ) -> c_int {
        // SAFETY: The program passes null or a live id, and null or valid structures.
        let (own, hints) = unsafe { (Id::usable(id)?, hints.as_ref()) };
        {
            let mut state = own.state();
            if !matches!(state.lookup, Lookup::None) {
                return Err(Errno(libc::EBUSY));
            }
            state.lookup = Lookup::UnderWay;
        }
        // SAFETY: The program passes null or valid names and hints.
        let done = unsafe { resolve_names(node, service, hints) };
        let result = done.as_ref().map_or(Lookup::None, |found| Lookup::Found(*found));
        own.state().lookup = result;
        done?;
        own.id.post(event::own(event::ADDRINFO_RESOLVED, 0));
        wait_outcome(own)?;
        Ok(0)
    }

    /// Returns the result of an rdma_cm id's name resolution, once.
    minus fn sprat_rdma_query_addrinfo(id: *mut Raw, to: *mut *mut AddrInfo) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        if to.is_null() {
            return Err(INVALID);
        }
        let mut state = own.state();
        let Lookup::Found(resolved) = state.lookup else { return Err(UNKNOWN) };
        // The program frees the result from now on.
        std::mem::forget(std::mem::replace(&mut state.lookup, Lookup::None));
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(to, resolved) }?;
        Ok(0)
    }
}

/// Resolves names for an rdma_cm id. A code of `getaddrinfo` becomes the errno, as in rdma-core.
///
/// # Safety
/// Names are null or strings, and the hints are valid.
unsafe fn resolve_names(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Result<*mut AddrInfo, Errno> {
    let flags = hints.map_or(0, |h| h.ai_flags);
    if flags & SA != 0 {
        return Err(if flags & DNS == 0 && node.is_null() && service.is_null() {
            INVALID
        } else {
            UNSUPPORTED
        });
    }
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(INVALID);
    }
    // SAFETY: The caller guarantees it.
    unsafe { resolved(node, service, hints) }?.map_err(|code| match code {
        libc::EAI_SYSTEM => std::io::Error::last_os_error().into(),
        code => Errno(code),
    })
}
