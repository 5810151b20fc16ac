//! The devices: one for each IP interface.
//!
//! Always holds: a device that was ever listed stays where it is as long as the process runs, so that a program that uses
//! one after it has freed the list, or after the interface has gone, finds it. There is one for each name, and few names.
//! What changes about it (its addresses, its state) is looked up whenever it is asked for.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use sprat::verbs::{Interface, interfaces};

use crate::abi::object::{Device as Seen, NODE_RNIC, TRANSPORT_IWARP};
use crate::entry::{Errno, at, export, put};

/// Programs that look for a hardware driver's pointer behind a device find null in these octets.
const BEHIND: usize = 64;

/// A device. What programs see comes first, so that a pointer to it is one to the whole.
#[repr(C)]
pub(crate) struct Device {
    seen: Seen,
    behind: [u8; BEHIND],
    interface: String,
    index: u32,
    guid: [u8; 8],
}

/// All that were ever listed, none of which moves.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// `text` in an array of C's characters, cut so that a zero ends it.
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
        let seen = Seen {
            ops: [None; 2],
            node_type: NODE_RNIC,
            transport_type: TRANSPORT_IWARP,
            name: chars(&name),
            dev_name: chars(&name),
            // What no kernel serves `sprat exec` does (`sysfs`).
            dev_path: chars(&format!("/sys/class/infiniband_verbs/{name}")),
            ibdev_path: chars(&format!("/sys/class/infiniband/{name}")),
        };
        Self {
            seen,
            behind: [0; BEHIND],
            interface: interface.name.clone(),
            index: interface.index,
            guid: interface.guid(),
        }
    }

    /// The device of an interface: the one that was listed before, if it is the same.
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

    /// What a program's pointer is to.
    ///
    /// # Errors
    /// It is null, or to no device of ours.
    pub(crate) fn from_seen(pointer: *const Seen) -> Result<&'static Self, Errno> {
        let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |d: &&&'static Self| std::ptr::from_ref::<Self>(d).cast() == pointer;
        devices.iter().find(same).copied().ok_or(Errno(libc::ENODEV))
    }

    /// How a program names it.
    pub(crate) fn seen(&'static self) -> *mut Seen {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The interface that it stands for.
    pub(crate) fn interface_name(&self) -> &str {
        &self.interface
    }

    /// Its number, as on the wire.
    pub(crate) fn guid(&self) -> [u8; 8] {
        self.guid
    }

    /// Its interface as it is now.
    ///
    /// # Errors
    /// It has gone, or has no address left.
    pub(crate) fn interface(&self) -> Result<Interface, Errno> {
        let found = interfaces()?.into_iter().find(|i| i.name == self.interface);
        found.ok_or(Errno(libc::ENODEV))
    }
}

/// The devices that there are now.
///
/// # Errors
/// The system does not list its interfaces.
pub(crate) fn devices() -> Result<Vec<&'static Device>, Errno> {
    Ok(interfaces()?.iter().map(Device::of).collect())
}

/// The device whose interface has this address; any address of loopback is loopback's.
///
/// # Errors
/// `ENODEV` if none has.
pub(crate) fn at_address(address: IpAddr) -> Result<&'static Device, Errno> {
    let all = interfaces()?;
    let exact = all.iter().find(|i| i.addresses.contains(&address));
    let found = exact.or_else(|| all.iter().find(|i| i.loopback && address.is_loopback()));
    found.map(Device::of).ok_or(Errno(libc::ENODEV))
}

/// Pointers in an array that ends with a null and that C may have until it is freed by [`free_array`].
///
/// # Errors
/// No memory.
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

/// Frees what [`array()`] gave; null is nothing.
pub(crate) fn free_array<T>(array: *mut *mut T) {
    // SAFETY: The program passes null or an array from `array()` that it does not use afterwards.
    unsafe { libc::free(array.cast()) };
}

export! {
    /// All devices, and how many there are, where that is wanted.
    null fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Seen {
        let devices = devices()?;
        let list = array(&devices.iter().map(|d| d.seen()).collect::<Vec<_>>())?;
        if !count.is_null() {
            // SAFETY: The pointer is not null, and the program lets this call write there.
            unsafe { put(count, devices.len() as c_int) }?;
        }
        Ok(list)
    }
}

export! {
    /// The list alone is given back: see the file.
    plain fn ibv_free_device_list(list: *mut *mut Seen) {
        free_array(list);
        Ok(())
    }

    /// The device's number, in the order of the wire.
    plain fn ibv_get_device_guid(device: *const Seen) -> u64 {
        Ok(u64::from_be_bytes(Device::from_seen(device)?.guid()).to_be())
    }
}

export! {
    /// The device's name.
    null fn ibv_get_device_name(device: *const Seen) -> *const c_char {
        // SAFETY: The program passes null or a device, and devices are never freed.
        Ok(unsafe { at(device) }?.name.as_ptr())
    }

    /// `/sys`, as programs look there; what they look for is not there.
    null fn ibv_get_sysfs_path() -> *const c_char {
        Ok(c"/sys".as_ptr())
    }
}

export! {
    /// The number of the interface.
    minus fn ibv_get_device_index(device: *const Seen) -> c_int {
        c_int::try_from(Device::from_seen(device)?.index).map_err(|_| Errno(libc::EOVERFLOW))
    }
}
