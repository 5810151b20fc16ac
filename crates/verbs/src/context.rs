//! Open devices.
//!
//! A program holds a pointer to the `ibv_context` at the end of a `verbs_context`, which is the beginning of an [`Open`].
//!
//! Always holds: the memory of an open device is a `Box` that was given up to the program. It comes back with the last of
//! its holders: the program, which gives it back by `ibv_close_device`, and the objects that were made with it.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::abi::device::VerbsContext;
use crate::abi::object::{Context, EXTENDED};
use crate::device::Device;
use crate::entry::{Errno, INVALID};
use crate::events::Events;

/// An open device.
#[repr(C)]
pub(crate) struct Open {
    pub(crate) seen: VerbsContext,
    pub(crate) device: &'static Device,
    pub(crate) events: Events,
    /// Domains, completion queues and channels, and the program until it closes the device.
    pub(crate) holders: AtomicU32,
    /// The program has closed it.
    pub(crate) closed: AtomicBool,
}

impl Open {
    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null, or to a context that another library made.
    ///
    /// # Safety
    /// If it is not null, it is to a context that is open and stays so while the reference is used.
    pub(crate) unsafe fn from_seen<'a>(context: *mut Context) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it.
        let seen = unsafe { context.as_ref() }.ok_or(INVALID)?;
        if seen.abi_compat.addr() != EXTENDED || seen.cmd_fd != OURS {
            return Err(INVALID);
        }
        // SAFETY: A context that this library created is a field of `Open`, and the program's
        // pointer was derived from one to the `Open`.
        Ok(unsafe { &*context.byte_sub(offset_of!(Self, seen.context)).cast::<Self>() })
    }

    /// Something was made with it.
    pub(crate) fn enter(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Something that was made with it is gone. With the last holder it goes itself.
    ///
    /// # Safety
    /// What leaves has entered, and does not use the context any more.
    pub(crate) unsafe fn leave(&self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.events.end();
            // SAFETY: `ibv_open_device` leaked this pointer, and no reference to it is left.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
        }
    }
}

/// Completion vectors of a device.
pub(crate) const VECTORS: u32 = 1;
/// What stands where hardware's contexts have their descriptor of the kernel: none.
pub(crate) const OURS: c_int = -1;
