//! Protection domains.
//!
//! As every object: what programs see comes first, so that their pointer is one to the whole, which is a `Box` that was
//! given up to them and comes back when they destroy it. Who uses an object counts in its `users`, and while there are any
//! it is busy.

use std::sync::atomic::{AtomicU32, Ordering};

use sprat::verbs::ProtectionDomain;

use crate::abi::device::Context;
use crate::abi::object::Pd as Seen;
use crate::context::Open;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export};

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    seen: Seen,
    pub(crate) engine: &'static Engine,
    pub(crate) domain: ProtectionDomain,
    /// Regions, windows, queue pairs and shared queues in it.
    pub(crate) users: Users,
}

/// How many others use an object.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Errors
    /// `EBUSY` if there are any.
    pub(crate) fn none(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Errno(libc::EBUSY)) }
    }
}

impl Pd {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null.
    ///
    /// # Safety
    /// If it is not null, it is to a domain that is allocated and stays so while the reference is used.
    pub(crate) unsafe fn from_seen<'a>(pd: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: the caller's promise; what is seen is the whole's first field, and the pointer was derived from the whole's.
        unsafe { at(pd.cast::<Self>()) }
    }
}

export! {
    /// A protection domain of an open device.
    null fn ibv_alloc_pd(context: *mut Context) -> *mut Seen {
        // SAFETY: null, or a context that the program has open.
        unsafe { Open::from_seen(context) }?;
        let engine = Engine::get()?;
        let domain = engine.device.protection_domain().map_err(|_| Errno(libc::ENOMEM))?;
        let pd = Pd { seen: Seen { context, handle: 0 }, engine, domain, users: Users::default() };
        Ok(Box::into_raw(Box::new(pd)).cast())
    }
}

export! {
    /// Gives it back.
    code fn ibv_dealloc_pd(pd: *mut Seen) {
        if pd.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, so it is to a domain that is allocated.
        unsafe { Pd::from_seen(pd) }?.users.none()?;
        // SAFETY: the pointer that `ibv_alloc_pd` gave up, which the program gives back.
        let pd = unsafe { Box::from_raw(pd.cast::<Pd>()) };
        if !pd.engine.is_ours() {
            std::mem::forget(pd);
        }
        Ok(())
    }
}
