//! The devices of rdma_cm: each is opened once and has one default protection domain, which all ids
//! share.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Mutex;

use crate::abi::object::{Context, Pd as RawPd};
use crate::device::{Device, array, at_address, devices, free_array};
use crate::entry::{Errno, export, put};
use crate::object::lock;
use crate::open::ibv_open_device;
use crate::pd::{Pd, ibv_alloc_pd};

/// The time for which the device of an IP address is cached; a look-up takes some hundred
/// microseconds.
const CACHE_NS: u64 = 1_000_000_000;
/// The most entries in the cache of IP addresses and their devices.
const CACHE_SIZE: usize = 256;

/// An open device of rdma_cm and its default protection domain, as numbers because pointers are not
/// `Send`.
#[derive(Clone, Copy, Default)]
struct SharedContext {
    context: usize,
    pd: usize,
}

/// The open devices of rdma_cm by the address of C's device structure in memory.
static CONTEXTS: Mutex<BTreeMap<usize, SharedContext>> = Mutex::new(BTreeMap::new());
/// The cache of devices by IP address: the time of the look-up in nanoseconds, and the device.
static ADDRESSES: Mutex<BTreeMap<IpAddr, (u64, &'static Device)>> = Mutex::new(BTreeMap::new());

/// Returns the shared context of a device, and opens it on the first call.
fn context(device: &'static Device) -> Result<*mut Context, Errno> {
    let mut opened = lock(&CONTEXTS);
    let known = opened.entry(device.raw().addr()).or_default();
    if known.context == 0 {
        let new = ibv_open_device(device.raw());
        if new.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        known.context = new.expose_provenance();
    }
    Ok(std::ptr::with_exposed_provenance_mut(known.context))
}

/// Returns the shared context and the default protection domain of a device.
fn context_and_domain(device: &'static Device) -> Result<(*mut Context, *mut RawPd), Errno> {
    let context = context(device)?;
    let mut opened = lock(&CONTEXTS);
    let known = opened.entry(device.raw().addr()).or_default();
    let pd: *mut RawPd = std::ptr::with_exposed_provenance_mut(known.pd);
    // A parent's is left where it is. SAFETY: null, or a domain that is never given back.
    if unsafe { Pd::usable(pd) }.is_ok() {
        return Ok((context, pd));
    }
    let new = ibv_alloc_pd(context);
    if new.is_null() {
        return Err(std::io::Error::last_os_error().into());
    }
    known.pd = new.expose_provenance();
    Ok((context, new))
}

/// Finds the device whose interface has an IP address.
fn device(address: IpAddr) -> Result<&'static Device, Errno> {
    let now = sprat_sys::clock::now().as_ns();
    let mut known = lock(&ADDRESSES);
    if let Some((since, device)) = known.get(&address)
        && now.saturating_sub(*since) < CACHE_NS
    {
        return Ok(device);
    }
    let device = at_address(address)?;
    if known.len() >= CACHE_SIZE {
        known.clear();
    }
    known.insert(address, (now, device));
    Ok(device)
}

/// Finds the shared context and the default protection domain of an IP address's device.
///
/// # Errors
/// `ENODEV` if no interface has the address.
pub(super) fn of(address: IpAddr) -> Result<(*mut Context, *mut RawPd), Errno> {
    context_and_domain(device(address.to_canonical())?)
}

export! {
    /// Lists the shared contexts of all devices, and writes their number to `count` unless that is
    /// null.
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
    /// Frees a list of device contexts. The devices stay open.
    plain fn sprat_rdma_free_devices(list: *mut *mut Context) {
        free_array(list);
        Ok(())
    }
}
