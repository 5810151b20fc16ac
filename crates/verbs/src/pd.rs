//! Protection domains, and what all objects have in common.
//!
//! What programs see of an object comes first, so that their pointer is one to the whole, which is a `Box` that was given up
//! to them and comes back when they destroy it. Who uses an object counts in its `users`, and while there are any it is
//! busy. Whoever destroys an object waits until all its events are acknowledged.

use sprat::verbs::ProtectionDomain;

use crate::abi::object::{Context, Pd as Seen};
use crate::context::Open;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export};
use crate::object::Users;

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    seen: Seen,
    pub(crate) engine: &'static Engine,
    pub(crate) domain: ProtectionDomain,
    /// Regions, windows, queue pairs and shared queues in it.
    pub(crate) users: Users,
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
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`, and the
        // pointer was derived from one to `Self`.
        unsafe { at(pd.cast::<Self>()) }
    }

    /// The same for who makes something in it.
    ///
    /// # Errors
    /// It is null, or of another process: a parent's.
    ///
    /// # Safety
    /// As [`Pd::from_seen`].
    pub(crate) unsafe fn to_use<'a>(pd: *mut Seen) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it.
        let pd = unsafe { Self::from_seen(pd) }?;
        if pd.engine.is_ours() { Ok(pd) } else { Err(INVALID) }
    }

    /// The open device that it is of.
    pub(crate) const fn context(&self) -> *mut Context {
        self.seen.context
    }

    /// The same, for us.
    pub(crate) fn open(&self) -> Result<&Open, Errno> {
        // SAFETY: A context stays allocated while an object of it exists.
        unsafe { Open::from_seen(self.context()) }
    }
}

export! {
    /// A protection domain of an open device.
    null fn ibv_alloc_pd(context: *mut Context) -> *mut Seen {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { Open::from_seen(context) }?;
        let engine = Engine::get()?;
        let domain = engine.device.protection_domain().map_err(|_| Errno(libc::ENOMEM))?;
        let pd = Pd { seen: Seen { context, handle: 0 }, engine, domain, users: Users::default() };
        open.enter();
        Ok(Box::into_raw(Box::new(pd)).cast())
    }
}

export! {
    /// Gives it back.
    code fn ibv_dealloc_pd(pd: *mut Seen) {
        // SAFETY: The program passes null or a live protection domain.
        let own = unsafe { Pd::from_seen(pd) }?;
        own.users.none()?;
        let context = own.context();
        // SAFETY: The program returns the pointer that `ibv_alloc_pd` leaked to it.
        let pd = unsafe { Box::from_raw(pd.cast::<Pd>()) };
        if !pd.engine.is_ours() {
            std::mem::forget(pd);
        }
        // SAFETY: A context stays allocated while it is referenced.
        unsafe { Open::from_seen(context)?.leave() };
        Ok(())
    }
}
