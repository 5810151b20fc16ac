//! Memory regions: memory of the program that work requests and peers access.
//!
//! A region's base address is its virtual address, unless the program chooses another. Both keys of
//! a region are the engine's tag. Nothing is pinned: copies find a page again that the kernel has
//! moved or swapped out, and after a fork parent and child each have pages of their own, so the
//! fork functions have nothing to do.
//!
//! Not here: on-demand paging, device memory and DMA buffers, which this device lacks.

use std::ffi::{c_int, c_uint};

use sprat_rdma::{Access, Error, Foreign, ForeignRegion, PostError, is_written};

use crate::abi::attr::MrInit;
use crate::abi::layout::Opaque;
use crate::abi::object::{Mr as Raw, Pd as RawPd};
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, UNSUPPORTED, at, export, set_errno};
use crate::pd::Pd;

/// `IBV_ACCESS_LOCAL_WRITE`: the access flag of a region that the device may write.
const LOCAL_WRITE: c_uint = 1;
const REMOTE_WRITE: c_uint = 1 << 1;
const REMOTE_READ: c_uint = 1 << 2;
const REMOTE_ATOMIC: c_uint = 1 << 3;
const MW_BIND: c_uint = 1 << 4;
pub(crate) const ZERO_BASED: c_uint = 1 << 5;
const ON_DEMAND: c_uint = 1 << 6;
const FLUSH_GLOBAL: c_uint = 1 << 8;
const FLUSH_PERSISTENT: c_uint = 1 << 9;
/// The access flags that a device may ignore; this one permits their effects anyway.
const OPTIONAL: c_uint = 0x3ff0_0000;
const KNOWN: c_uint = ((FLUSH_PERSISTENT << 1) - 1) | OPTIONAL;
/// The access flags of features that this device lacks.
const UNOFFERED: c_uint = ON_DEMAND | FLUSH_GLOBAL | FLUSH_PERSISTENT;

/// `IBV_REREG_MR_CHANGE_TRANSLATION`: the flag by which `ibv_rereg_mr` changes a region's memory.
const TRANSLATION: c_int = 1;
const DOMAIN: c_int = 1 << 1;
const RIGHTS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: the result of `ibv_rereg_mr` for invalid arguments.
const INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the result of `ibv_rereg_mr` if the device refuses the change.
const COMMAND: c_int = -4;

/// A memory region of a C program.
#[repr(C)]
pub(crate) struct Mr {
    raw: Raw,
    engine: &'static Engine,
    region: ForeignRegion,
    /// True if the region's addresses count from zero.
    zero_based: bool,
}

impl Mr {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or the region stays alive while the reference is in use.
    pub(crate) unsafe fn from_raw<'a>(mr: *const Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`, and the
        // pointer was derived from one to `Self`.
        unsafe { at(mr.cast::<Self>()) }
    }
}

/// Translates the access flags of a memory registration.
///
/// # Errors
/// `EINVAL` for unknown flags, and for remote writes or atomics without local writes. `EOPNOTSUPP`
/// for features that this device lacks.
fn rights(flags: c_uint) -> Result<Access, Errno> {
    if flags & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && flags & LOCAL_WRITE == 0
        || flags & !KNOWN != 0
    {
        return Err(INVALID);
    }
    if flags & UNOFFERED != 0 {
        return Err(UNSUPPORTED);
    }
    Ok(access(flags))
}

/// Translates access flags of C to the engine's rights, and accepts every combination.
pub(crate) fn access(flags: c_uint) -> Access {
    Access {
        local_write: flags & LOCAL_WRITE != 0,
        remote_write: flags & REMOTE_WRITE != 0,
        remote_read: flags & REMOTE_READ != 0,
        remote_atomic: flags & REMOTE_ATOMIC != 0,
        bind: flags & MW_BIND != 0,
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Self(match error {
            PostError::Busy => libc::EBUSY,
            PostError::Full | PostError::NoRoom => libc::ENOMEM,
            _ => libc::EINVAL,
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(error) => error.into(),
            Error::System(error) => error.into(),
        }
    }
}

/// Registers memory of the program. `iova` is the address of its first byte in work requests.
fn register(
    pd: *mut RawPd,
    addr: Opaque,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut Raw, Errno> {
    let access = rights(flags)?;
    // SAFETY: The program passes null or a live protection domain.
    let domain = unsafe { Pd::usable(pd) }?;
    // Hardware translates whole pages, so the offsets within a page are equal.
    if addr.addr() as u64 % PAGE != iova % PAGE {
        return Err(INVALID);
    }
    let zero_based = flags & ZERO_BASED != 0;
    // SAFETY: The program expects peers and requests to use the memory until it deregisters it.
    let memory = unsafe { Foreign::new(addr.cast(), len, is_written(access)) }?;
    let base = if zero_based { 0 } else { iova };
    let region = domain.domain.register_foreign(memory, base, access)?;
    let key = region.key().0;
    let raw =
        Raw { context: domain.context(), pd, addr, length: len, handle: key, lkey: key, rkey: key };
    domain.references.add();
    Ok(Box::into_raw(Box::new(Mr { raw, engine: domain.engine, region, zero_based })).cast())
}

/// The page size in bytes. The address of a region in work requests agrees with its virtual address
/// modulo this size.
const PAGE: u64 = 4096;

export! {
    /// Registers memory of the program under its own address.
    null fn ibv_reg_mr(pd: *mut RawPd, addr: Opaque, length: usize, access: c_int) -> *mut Raw {
        register(pd, addr, length, addr.addr() as u64, access as c_uint)
    }

    /// Registers memory of the program under an address of the program's choice.
    null fn ibv_reg_mr_iova(
        pd: *mut RawPd,
        addr: Opaque,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut Raw {
        register(pd, addr, length, iova, access as c_uint)
    }

    /// Registers memory of the program under an address of its choice, with flags that a device may
    /// ignore.
    null fn ibv_reg_mr_iova2(
        pd: *mut RawPd,
        addr: Opaque,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut Raw {
        register(pd, addr, length, iova, access)
    }

    /// Registers the memory that the structure `MrInit` describes.
    null fn ibv_reg_mr_ex(pd: *mut RawPd, init: *const MrInit) -> *mut Raw {
        // SAFETY: The program passes null or a valid structure.
        let init = unsafe { at(init) }?;
        if init.comp_mask & !(MrInit::IOVA | MrInit::ADDR) != 0 {
            return Err(UNSUPPORTED);
        }
        if init.comp_mask & MrInit::ADDR == 0 {
            return Err(INVALID);
        }
        let has_iova = init.comp_mask & MrInit::IOVA != 0;
        let iova = if has_iova { init.iova } else { init.addr.addr() as u64 };
        register(pd, init.addr, init.length, iova, init.access as c_uint)
    }
}

export! {
    /// Deregisters memory. No request and no peer accesses it afterwards.
    code fn ibv_dereg_mr(mr: *mut Raw) {
        // SAFETY: The program passes null or a live region.
        let region = unsafe { Mr::from_raw(mr) }?;
        let ours = region.engine.is_current();
        if ours {
            region.region.release()?;
        }
        // SAFETY: A domain stays allocated while it has regions.
        unsafe { Pd::from_raw(region.raw.pd) }?.references.remove();
        // SAFETY: The program returns the pointer that the registration leaked to it.
        let region = unsafe { Box::from_raw(mr.cast::<Mr>()) };
        if !ours {
            std::mem::forget(region);
        }
        Ok(())
    }
}

/// Changes the memory, the domain or the rights of a region.
///
/// # Safety
/// `mr` refers to a live region, and no other thread uses it during the call.
unsafe fn reregister(
    mr: *mut Mr,
    what: c_int,
    pd: *mut RawPd,
    addr: Opaque,
    length: usize,
    flags: c_uint,
) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    let mr = unsafe { &mut *mr };
    if !mr.engine.is_current() {
        return Err(INVALID);
    }
    if what == 0 {
        return Err(INVALID);
    }
    let (mut at, mut len, mut base) = (mr.raw.addr, mr.raw.length, mr.region.base());
    if what & TRANSLATION != 0 {
        (at, len) = (addr, length);
        base = if mr.zero_based { 0 } else { addr.addr() as u64 };
    }
    let access = if what & RIGHTS != 0 { rights(flags)? } else { mr.region.access() };
    // SAFETY: The program expects peers and requests to use the memory until it deregisters it.
    let memory = || unsafe { Foreign::new(at.cast(), len, is_written(access)) };
    if what == RIGHTS {
        mr.region.change_rights(memory()?, access)?;
        return Ok(());
    }
    // SAFETY: The region keeps its own domain alive. The program passes null or a live domain as
    // the other one.
    let (old, new) = unsafe {
        (Pd::from_raw(mr.raw.pd)?, Pd::usable(if what & DOMAIN == 0 { mr.raw.pd } else { pd })?)
    };
    let domain = (what & DOMAIN != 0).then_some(&new.domain);
    mr.region.change(domain, memory()?, base, access)?;
    new.references.add();
    old.references.remove();
    if what & DOMAIN != 0 {
        mr.raw.pd = pd;
    }
    let key = mr.region.key().0;
    mr.raw = Raw { addr: at, length: len, handle: key, lkey: key, rkey: key, ..mr.raw };
    Ok(())
}

export! {
    /// Changes the registration of a memory region. The region has another key afterwards, unless
    /// only its rights change. A failed call leaves the region unchanged.
    plain fn ibv_rereg_mr(
        mr: *mut Raw,
        what: c_int,
        pd: *mut RawPd,
        addr: Opaque,
        length: usize,
        access: c_int,
    ) -> c_int {
        let moves = what & TRANSLATION != 0;
        let bad = what & !(TRANSLATION | DOMAIN | RIGHTS) != 0
            || moves && (length == 0 || addr.is_null())
            || access != 0 && what & RIGHTS == 0;
        if mr.is_null() || bad {
            set_errno(INVALID);
            return Ok(INPUT);
        }
        // SAFETY: The pointer is not null; the program passes a live region that no other call
        // uses.
        Ok(match unsafe { reregister(mr.cast(), what, pd, addr, length, access as c_uint) } {
            Ok(()) => 0,
            Err(errno) => {
                set_errno(errno);
                COMMAND
            }
        })
    }
}
