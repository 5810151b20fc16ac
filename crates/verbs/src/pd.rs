//! Protection domains of C programs.
//!
//! The C structure is the first field of every object, so C's pointer also refers to the whole. An
//! object is a `Box` that its constructor leaks to the program, and that its destructor takes back.
//! An object that others refer to cannot be destroyed (`EBUSY`), and destruction waits until all
//! events of the object are acknowledged.

use sprat_rdma::ProtectionDomain;

use crate::abi::object::{Context, Pd as Raw};
use crate::context::OpenDevice;
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, at, export};
use crate::object::References;

/// A protection domain of a C program.
#[repr(C)]
pub(crate) struct Pd {
    raw: Raw,
    pub(crate) engine: &'static Engine,
    pub(crate) domain: ProtectionDomain,
    /// The regions, windows, queue pairs and shared receive queues of the protection domain.
    pub(crate) references: References,
}

impl Pd {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the domain stays alive while the reference is in use.
    pub(crate) unsafe fn from_raw<'a>(pd: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`, and the
        // pointer was derived from one to `Self`.
        unsafe { at(pd.cast::<Self>()) }
    }

    /// Converts the program's pointer to a reference, for a call that creates an object in the
    /// domain.
    ///
    /// # Errors
    /// The pointer is null, or a parent process created the domain.
    ///
    /// # Safety
    /// The pointer is null, or the domain stays alive while the reference is in use.
    pub(crate) unsafe fn usable<'a>(pd: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it.
        let pd = unsafe { Self::from_raw(pd) }?;
        if pd.engine.is_current() { Ok(pd) } else { Err(INVALID) }
    }

    /// The C context of the protection domain.
    pub(crate) const fn context(&self) -> *mut Context {
        self.raw.context
    }

    /// The open device of the protection domain.
    pub(crate) fn open(&self) -> Result<&OpenDevice, Errno> {
        // SAFETY: A context stays allocated while an object of it exists.
        unsafe { OpenDevice::from_raw(self.context()) }
    }
}

export! {
    /// Allocates a protection domain.
    null fn ibv_alloc_pd(context: *mut Context) -> *mut Raw {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        let engine = Engine::get()?;
        let domain = engine.device.protection_domain().map_err(|_| Errno(libc::ENOMEM))?;
        let (raw, references) = (Raw { context, handle: 0 }, References::default());
        let pd = Pd { raw, engine, domain, references };
        open.add();
        Ok(Box::into_raw(Box::new(pd)).cast())
    }
}

export! {
    /// Frees a protection domain; `EBUSY` while it has objects.
    code fn ibv_dealloc_pd(pd: *mut Raw) {
        // SAFETY: The program passes null or a live protection domain.
        let own = unsafe { Pd::from_raw(pd) }?;
        own.references.check_none()?;
        let context = own.context();
        // SAFETY: The program returns the pointer that `ibv_alloc_pd` leaked to it.
        let pd = unsafe { Box::from_raw(pd.cast::<Pd>()) };
        if !pd.engine.is_current() {
            std::mem::forget(pd);
        }
        // SAFETY: A context stays allocated while it is referenced.
        unsafe { OpenDevice::from_raw(context)?.remove() };
        Ok(())
    }
}
