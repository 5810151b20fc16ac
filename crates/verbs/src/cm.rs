//! rdma_cm: so far, which devices there are.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::abi::device::Context;
use crate::context::ibv_open_device;
use crate::device::{array, devices, free_array};
use crate::entry::{Errno, export, put};

/// The contexts that were given out, by device: rdma_cm opens each device once, for good. As numbers, since a pointer
/// belongs to one thread.
static OPEN: Mutex<BTreeMap<[u8; 8], usize>> = Mutex::new(BTreeMap::new());

fn contexts() -> Result<Vec<*mut Context>, Errno> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut contexts = Vec::new();
    for device in devices()? {
        let known = open.get(&device.guid()).map(|&at| std::ptr::with_exposed_provenance_mut(at));
        let context: *mut Context = known.unwrap_or_else(|| ibv_open_device(device.seen()));
        if context.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        open.insert(device.guid(), context.expose_provenance());
        contexts.push(context);
    }
    Ok(contexts)
}

export! {
    /// All devices, opened; how many there are, where that is wanted.
    null fn sprat_rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
        let contexts = contexts()?;
        let list = array(&contexts)?;
        if !count.is_null() {
            // SAFETY: not null, so it is to an int that is the caller's to be written.
            unsafe { put(count, contexts.len() as c_int) }?;
        }
        Ok(list)
    }
}

export! {
    /// The list alone is given back; the devices stay open.
    plain fn sprat_rdma_free_devices(list: *mut *mut Context) {
        free_array(list);
        Ok(())
    }
}
