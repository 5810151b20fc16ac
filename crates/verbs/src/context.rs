//! Open RDMA devices, which C calls contexts.
//!
//! A program holds a pointer to the `ibv_context` at the end of a `verbs_context`, the first field
//! of an [`OpenDevice`].
//!
//! Invariant: an open device is a `Box` that `ibv_open_device` leaks to the program. It is freed
//! with its last reference. The program holds one until `ibv_close_device`, and each object of the
//! device holds one.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::abi::device::VerbsContext;
use crate::abi::object::{Context, EXTENDED};
use crate::device::Device;
use crate::entry::{Errno, INVALID};
use crate::events::Events;

/// An open RDMA device, which C calls a context.
#[repr(C)]
pub(crate) struct OpenDevice {
    pub(crate) raw: VerbsContext,
    pub(crate) device: &'static Device,
    pub(crate) events: Events,
    /// The number of references to the open device: by protection domains, completion queues and
    /// channels, and by the program until it closes the device.
    pub(crate) references: AtomicU32,
    /// True if the program has closed the device.
    pub(crate) closed: AtomicBool,
}

impl OpenDevice {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null, or another library created the context.
    ///
    /// # Safety
    /// The pointer is null, or the context stays open while the reference is in use.
    pub(crate) unsafe fn from_raw<'a>(context: *mut Context) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it.
        let raw = unsafe { context.as_ref() }.ok_or(INVALID)?;
        if raw.abi_compat.addr() != EXTENDED || raw.cmd_fd != NO_FD {
            return Err(INVALID);
        }
        // SAFETY: A context that this library created is a field of `OpenDevice`, and the program's
        // pointer was derived from one to the `OpenDevice`.
        Ok(unsafe { &*context.byte_sub(offset_of!(Self, raw.context)).cast::<Self>() })
    }

    /// Adds a reference for an object of the device.
    pub(crate) fn add(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a reference to the open device. The last one frees the device.
    ///
    /// # Safety
    /// The caller removes a reference that was added, and does not use the context afterwards.
    pub(crate) unsafe fn remove(&self) {
        if self.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.events.end();
            // SAFETY: `ibv_open_device` leaked this pointer, and no reference to it is left.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(self).cast_mut()) });
        }
    }
}

/// The number of completion vectors of a device.
pub(crate) const VECTORS: u32 = 1;
/// The value of a context's `cmd_fd`, which in contexts of hardware is a descriptor of the kernel.
pub(crate) const NO_FD: c_int = -1;
