//! RDMA devices, one for each IP interface, or the one that the engine has a stack of its own on.
//!
//! Invariant: a listed device keeps its address for the life of the process, so a program may use
//! it after it has freed the list or after the interface is gone. There is one device for each
//! name. Addresses and state are read from the interface on each query.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use sprat_rdma::Interface;

use crate::abi::object::{Device as Raw, NODE_RNIC, TRANSPORT_IWARP};
use crate::engine::{Engine, is_in_memory};
use crate::entry::{Errno, at, export, put};

/// The number of zero bytes behind each device: programs that expect the pointer of a hardware
/// driver there find null.
const PADDING: usize = 64;

/// An RDMA device. C's structure is its first field, so C's pointer also refers to the whole.
#[repr(C)]
pub(crate) struct Device {
    raw: Raw,
    padding: [u8; PADDING],
    interface: String,
    index: u32,
    guid: [u8; 8],
}

/// All RDMA devices that were ever listed.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Returns the IP interfaces that stand for RDMA devices: all of the machine, or the one of the
/// engine's own device.
///
/// # Errors
/// The system does not list its interfaces, or the engine's device cannot be opened.
pub(crate) fn interfaces() -> Result<Vec<Interface>, Errno> {
    if Engine::is_on_device() {
        let own = Engine::get()?.device.interface();
        // Programs refuse a port that is down, even those that wait for a peer.
        return Ok(own
            .map(|own| Interface { up: own.up || is_in_memory(), ..own })
            .into_iter()
            .collect());
    }
    Ok(sprat_rdma::interfaces()?)
}

/// Copies `text` into an array of C characters, cut so that a zero byte ends it.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

impl Device {
    fn new(interface: &Interface) -> Self {
        let name = interface.device();
        let raw = Raw {
            ops: [None; 2],
            node_type: NODE_RNIC,
            transport_type: TRANSPORT_IWARP,
            name: chars(&name),
            dev_name: chars(&name),
            // No kernel serves these paths; the library that `sprat exec` preloads does (`sysfs`).
            dev_path: chars(&format!("/sys/class/infiniband_verbs/{name}")),
            ibdev_path: chars(&format!("/sys/class/infiniband/{name}")),
        };
        Self {
            raw,
            padding: [0; PADDING],
            interface: interface.name.clone(),
            index: interface.index,
            guid: interface.guid(),
        }
    }

    /// Returns the RDMA device of an IP interface: the one listed before if name and GUID match.
    fn of(interface: &Interface) -> &'static Self {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |d: &&&Self| d.interface == interface.name && d.guid == interface.guid();
        if let Some(device) = devices.iter().find(same) {
            return device;
        }
        let device: &'static Self = Box::leak(Box::new(Self::new(interface)));
        devices.push(device);
        device
    }

    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// `ENODEV` if the pointer is null or refers to no device of this library.
    pub(crate) fn from_raw(pointer: *const Raw) -> Result<&'static Self, Errno> {
        let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |d: &&&'static Self| std::ptr::from_ref::<Self>(d).cast() == pointer;
        devices.iter().find(same).copied().ok_or(Errno(libc::ENODEV))
    }

    /// The C structure of the RDMA device.
    pub(crate) fn raw(&'static self) -> *mut Raw {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The name of the RDMA device's IP interface.
    pub(crate) fn interface_name(&self) -> &str {
        &self.interface
    }

    /// The GUID of the RDMA device in network byte order.
    pub(crate) fn guid(&self) -> [u8; 8] {
        self.guid
    }

    /// Reads the current state of the RDMA device's IP interface.
    ///
    /// # Errors
    /// `ENODEV` if the interface is gone or has no address.
    pub(crate) fn interface(&self) -> Result<Interface, Errno> {
        let found = interfaces()?.into_iter().find(|i| i.name == self.interface);
        found.ok_or(Errno(libc::ENODEV))
    }
}

/// Lists the RDMA devices of all current IP interfaces.
///
/// # Errors
/// The system does not list its interfaces.
pub(crate) fn devices() -> Result<Vec<&'static Device>, Errno> {
    Ok(interfaces()?.iter().map(Device::of).collect())
}

/// Finds the RDMA device whose IP interface has this address. The loopback device matches every
/// loopback address.
///
/// # Errors
/// `ENODEV` if no interface has the address.
pub(crate) fn at_address(address: IpAddr) -> Result<&'static Device, Errno> {
    let all = interfaces()?;
    let exact = all.iter().find(|i| i.addresses.contains(&address));
    let found = exact.or_else(|| all.iter().find(|i| i.loopback && address.is_loopback()));
    found.map(Device::of).ok_or(Errno(libc::ENODEV))
}

/// Allocates an array of pointers for C that ends with null. [`free_array`] frees it.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn array<T>(pointers: &[*mut T]) -> Result<*mut *mut T, Errno> {
    // SAFETY: `calloc` accepts any sizes. It returns zeroed memory, so the last pointer is null.
    let array: *mut *mut T =
        unsafe { libc::calloc(pointers.len() + 1, size_of::<*mut T>()) }.cast();
    if array.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: The array has room for one pointer more, is aligned for pointers and has no other
    // reference.
    unsafe { std::ptr::copy_nonoverlapping(pointers.as_ptr(), array, pointers.len()) };
    Ok(array)
}

/// Frees an array that [`array()`] allocated; ignores null.
pub(crate) fn free_array<T>(array: *mut *mut T) {
    // SAFETY: The program passes null or an array from `array()` that it does not use afterwards.
    unsafe { libc::free(array.cast()) };
}

export! {
    /// Lists all RDMA devices, and writes their number to `count` unless that is null.
    null fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Raw {
        let devices = devices()?;
        let list = array(&devices.iter().map(|d| d.raw()).collect::<Vec<_>>())?;
        if !count.is_null() {
            // SAFETY: The pointer is not null, and the program lets this call write there.
            unsafe { put(count, devices.len() as c_int) }?;
        }
        Ok(list)
    }
}

export! {
    /// Frees a list of RDMA devices. The devices themselves are never freed.
    plain fn ibv_free_device_list(list: *mut *mut Raw) {
        free_array(list);
        Ok(())
    }

    /// The GUID of an RDMA device in network byte order.
    plain fn ibv_get_device_guid(device: *const Raw) -> u64 {
        Ok(u64::from_be_bytes(Device::from_raw(device)?.guid()).to_be())
    }
}

export! {
    /// The name of an RDMA device.
    null fn ibv_get_device_name(device: *const Raw) -> *const c_char {
        // SAFETY: The program passes null or a device, and devices are never freed.
        Ok(unsafe { at(device) }?.name.as_ptr())
    }

    /// The path at which the kernel mounts sysfs.
    null fn ibv_get_sysfs_path() -> *const c_char {
        Ok(c"/sys".as_ptr())
    }
}

export! {
    /// The index of the RDMA device's IP interface.
    minus fn ibv_get_device_index(device: *const Raw) -> c_int {
        c_int::try_from(Device::from_raw(device)?.index).map_err(|_| Errno(libc::EOVERFLOW))
    }
}
