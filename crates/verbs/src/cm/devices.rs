//! Devices as rdma_cm knows them: each is opened once, for all ids, with one protection domain for those who bring none.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Mutex;

use crate::abi::object::{Context, Pd as SeenPd};
use crate::device::{Device, array, at_address, devices, free_array};
use crate::entry::{Errno, export, put};
use crate::object::locked;
use crate::open::ibv_open_device;
use crate::pd::{Pd, ibv_alloc_pd};

/// How long an address is believed to be of the same interface: looking takes some hundred microseconds.
const BELIEVED_NS: u64 = 1_000_000_000;
/// So many addresses are remembered.
const REMEMBERED: usize = 256;

/// A device that was opened, and the domain for it. As numbers, since a pointer belongs to one thread.
#[derive(Clone, Copy, Default)]
struct Opened {
    context: usize,
    pd: usize,
}

/// By the address of the device.
static OPENED: Mutex<BTreeMap<usize, Opened>> = Mutex::new(BTreeMap::new());
/// Whose address is whose, and when that was found, in nanoseconds.
static KNOWN: Mutex<BTreeMap<IpAddr, (u64, &'static Device)>> = Mutex::new(BTreeMap::new());

/// The context of a device, the same for all.
fn context(device: &'static Device) -> Result<*mut Context, Errno> {
    let mut opened = locked(&OPENED);
    let known = opened.entry(device.seen().addr()).or_default();
    if known.context == 0 {
        let new = ibv_open_device(device.seen());
        if new.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        known.context = new.expose_provenance();
    }
    Ok(std::ptr::with_exposed_provenance_mut(known.context))
}

/// The context of a device and its domain, the same for all.
fn context_and_domain(device: &'static Device) -> Result<(*mut Context, *mut SeenPd), Errno> {
    let context = context(device)?;
    let mut opened = locked(&OPENED);
    let known = opened.entry(device.seen().addr()).or_default();
    let pd: *mut SeenPd = std::ptr::with_exposed_provenance_mut(known.pd);
    // A parent's is left where it is. SAFETY: null, or a domain that is never given back.
    if unsafe { Pd::to_use(pd) }.is_ok() {
        return Ok((context, pd));
    }
    let new = ibv_alloc_pd(context);
    if new.is_null() {
        return Err(std::io::Error::last_os_error().into());
    }
    known.pd = new.expose_provenance();
    Ok((context, new))
}

/// The device whose address this is.
fn device(address: IpAddr) -> Result<&'static Device, Errno> {
    let now = sprat_sys::clock::now().as_ns();
    let mut known = locked(&KNOWN);
    if let Some((since, device)) = known.get(&address)
        && now.saturating_sub(*since) < BELIEVED_NS
    {
        return Ok(device);
    }
    let device = at_address(address)?;
    if known.len() >= REMEMBERED {
        known.clear();
    }
    known.insert(address, (now, device));
    Ok(device)
}

/// Context and domain of the device whose address this is.
///
/// # Errors
/// `ENODEV` if it is nobody's.
pub(super) fn of(address: IpAddr) -> Result<(*mut Context, *mut SeenPd), Errno> {
    context_and_domain(device(address.to_canonical())?)
}

export! {
    /// All devices, opened; how many there are, where that is wanted.
    null fn sprat_rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
        let contexts = devices()?.into_iter().map(context).collect::<Result<Vec<_>, _>>()?;
        let list = array(&contexts)?;
        if !count.is_null() {
            // SAFETY: The pointer is not null, and the program lets this call write there.
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
