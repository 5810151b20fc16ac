//! Protection domains and the memory that is registered in them.
//!
//! Always holds: a region's memory is mapped as long as anything of the engine may name it, and
//! once a region is dropped nothing is placed in it or read from it, whatever the peer sends.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{Access, Pd, PostError, Remote, Sge, Stag};

use super::handle::Handle;
use super::{Error, OutOfBounds, ended};
use sprat_sys::memory::{Foreign, Region};

/// A protection domain. A clone is the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) inner: Arc<Domain>,
}

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) handle: Arc<Handle>,
    pub(super) pd: Pd,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Everything that was made in it holds it, so it is not in use.
        ended(self.handle.shared.act(|core, _| core.rnic().dealloc_pd(self.pd)));
    }
}

impl ProtectionDomain {
    pub(super) fn new(handle: Arc<Handle>) -> Result<Self, PostError> {
        let pd = handle.shared.act(|core, _| core.rnic().alloc_pd())?;
        Ok(Self { inner: Arc::new(Domain { handle, pd }) })
    }

    /// Allocates `len` bytes of zeros and registers them with these rights.
    ///
    /// # Errors
    /// There is no memory, the rights exclude each other, or there are too many regions.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let memory = Arc::new(Region::anonymous(len.max(1))?);
        let number = self.insert(&memory)?;
        let pd = self.inner.pd;
        let stag = self
            .inner
            .handle
            .shared
            .act(|core, _| core.rnic().register(pd, number, BASE, len as u64, access));
        match stag {
            Ok(stag) => Ok(MemoryRegion {
                domain: Arc::clone(&self.inner),
                memory,
                len,
                number,
                stag: Some(stag),
            }),
            Err(e) => {
                self.inner.handle.shared.with(|core| core.regions().remove(number));
                Err(e.into())
            }
        }
    }

    /// Allocates `len` bytes of zeros that no peer reaches: for fast registrations of parts of
    /// them.
    ///
    /// # Errors
    /// There is no memory, or there are too many regions.
    pub fn allocate(&self, len: usize) -> Result<MemoryRegion, Error> {
        let memory = Arc::new(Region::anonymous(len.max(1))?);
        let number = self.insert(&memory)?;
        Ok(MemoryRegion { domain: Arc::clone(&self.inner), memory, len, number, stag: None })
    }

    fn insert(&self, memory: &Arc<Region>) -> Result<u64, PostError> {
        let memory = Arc::clone(memory);
        self.inner.handle.shared.with(|core| core.regions().insert(memory)).ok_or(PostError::NoRoom)
    }

    /// Allocates a memory window, which names nothing until it is bound ([`super::SendOp::Bind`]):
    /// for all queue pairs of the domain, or for the one that binds it.
    ///
    /// # Errors
    /// The device has too many regions and windows.
    pub fn window(&self, kind: WindowKind) -> Result<MemoryWindow, PostError> {
        let pd = self.inner.pd;
        let stag = self.inner.handle.shared.act(|core, _| core.rnic().alloc_window(pd, kind))?;
        Ok(MemoryWindow { domain: Arc::clone(&self.inner), stag })
    }

    /// Allocates a steering tag that names nothing until a work request registers memory under it
    /// ([`super::SendOp::FastRegister`]).
    ///
    /// # Errors
    /// The device has too many regions and windows.
    pub fn fast_region(&self) -> Result<FastRegion, PostError> {
        let pd = self.inner.pd;
        let stag = self.inner.handle.shared.act(|core, _| core.rnic().alloc_fast(pd))?;
        Ok(FastRegion { domain: Arc::clone(&self.inner), stag })
    }
}

/// The address of a region's first byte. Addresses are offsets, so that a peer learns nothing of
/// this process's own addresses.
const BASE: u64 = 0;

/// A region of registered memory.
///
/// Dropping it takes effect at once, whatever is in flight: requests that name it fail, and peers
/// that name it get an error for an unknown tag. Windows that are bound to it are unbound.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<Domain>,
    memory: Arc<Region>,
    len: usize,
    number: u64,
    stag: Option<Stag>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.domain.handle.shared.act(|core, _| {
            if let Some(stag) = self.stag {
                ended(core.rnic().force_deregister(stag));
            }
            core.regions().remove(self.number);
        });
    }
}

impl MemoryRegion {
    /// The region's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region's key, local and remote in one; `None` if the region was only allocated.
    #[must_use]
    pub fn key(&self) -> Option<Stag> {
        self.stag
    }

    /// The region's number, as fast registrations name it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The bytes in `range` of the region as an element of a work request. The engine checks that
    /// they are in the region when it uses them.
    #[must_use]
    pub fn sge(&self, range: Range<usize>) -> Sge {
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge {
            stag: self.stag.unwrap_or_default(),
            addr: BASE.saturating_add(range.start as u64),
            len,
        }
    }

    /// The key and address with which a peer reaches the region's bytes from `offset` on.
    #[must_use]
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { stag: self.stag.unwrap_or_default(), addr: BASE.saturating_add(offset as u64) }
    }

    fn check(&self, offset: usize, n: usize) -> Result<(), OutOfBounds> {
        if offset <= self.len && n <= self.len - offset { Ok(()) } else { Err(OutOfBounds) }
    }

    /// Copies bytes out of the region. While a peer writes them, the result is any mixture.
    ///
    /// # Errors
    /// The bytes are not all in the region; nothing was copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        self.memory.copy_out(offset, bytes);
        Ok(())
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// The bytes do not all fit into the region; nothing was copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        self.memory.copy_in(offset, bytes);
        Ok(())
    }

    /// The 8 bytes at `offset` of the region, a multiple of 8, as an atomic number in the machine's
    /// byte order: for words that peers change by atomics, and to read what they write.
    ///
    /// # Errors
    /// The bytes are not aligned, or not all in the region.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        Ok(self.memory.word(offset))
    }
}

/// A memory window: part of a region, opened to a peer by a work request and closed by another, or
/// by dropping the window.
#[derive(Debug)]
pub struct MemoryWindow {
    domain: Arc<Domain>,
    stag: Stag,
}

impl MemoryWindow {
    /// The window's tag as it was allocated. The lowest byte is the key, which each bind may
    /// choose: a new one keeps old users out.
    #[must_use]
    pub fn tag(&self) -> Stag {
        self.stag
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        ended(self.domain.handle.shared.act(|core, _| core.rnic().dealloc_window(self.stag)));
    }
}

/// A tag for fast registration. Dropping it ends the registration, and unbinds the windows that are
/// bound to it.
#[derive(Debug)]
pub struct FastRegion {
    domain: Arc<Domain>,
    stag: Stag,
}

impl FastRegion {
    /// The region's tag as it was allocated. The lowest byte is the key, which each registration
    /// may choose.
    #[must_use]
    pub fn tag(&self) -> Stag {
        self.stag
    }
}

impl Drop for FastRegion {
    fn drop(&mut self) {
        ended(self.domain.handle.shared.act(|core, _| core.rnic().force_deregister(self.stag)));
    }
}

/// True if these access rights let memory be written, directly or through a window.
/// [`Foreign::new`] then needs `writable`.
#[must_use]
pub const fn is_written(access: Access) -> bool {
    access.local_write || access.remote_write || access.remote_atomic || access.bind
}

impl ProtectionDomain {
    /// Registers memory that belongs to the program, under `base` as the address of its first byte.
    /// If the program unmaps or protects the memory later, the request or the peer that reaches it
    /// gets an error.
    ///
    /// # Errors
    /// `EFAULT` if the memory may not be written although the rights need it; rights that exclude
    /// each other; too many regions.
    pub fn register_foreign(
        &self,
        memory: Foreign,
        base: u64,
        access: Access,
    ) -> Result<ForeignRegion, Error> {
        check(&memory, access)?;
        let (pd, len) = (self.inner.pd, memory.len() as u64);
        let (number, stag) = self.inner.handle.shared.with(|core| {
            let number = core.regions().insert_foreign(memory).ok_or(PostError::NoRoom)?;
            let stag = core.rnic().register(pd, number, base, len, access);
            stag.map(|stag| (number, stag)).inspect_err(|_| {
                core.regions().remove(number);
            })
        })?;
        Ok(ForeignRegion { domain: Arc::clone(&self.inner), number, stag, base, access })
    }
}

/// Checks that the program's memory is writable if the rights need it.
fn check(memory: &Foreign, access: Access) -> Result<(), Error> {
    if is_written(access) && !memory.is_writable() {
        return Err(Errno::FAULT.into());
    }
    Ok(())
}

/// A region of registered memory that belongs to the program. The program reads and writes it
/// directly, not through this object. Dropping the region ends the registration, and unbinds the
/// windows that are bound to it.
#[derive(Debug)]
pub struct ForeignRegion {
    domain: Arc<Domain>,
    number: u64,
    stag: Stag,
    base: u64,
    access: Access,
}

impl ForeignRegion {
    /// The region's key, local and remote in one.
    #[must_use]
    pub fn key(&self) -> Stag {
        self.stag
    }

    /// The address of the region's first byte for work requests and peers.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The access rights of the region.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Registers the region's memory under a new key, in another domain if `domain` names one, and
    /// ends the old registration.
    ///
    /// # Errors
    /// The errors of [`ProtectionDomain::register_foreign`], and [`PostError::Busy`] while windows
    /// are bound to the region: nothing has changed then.
    pub fn change(
        &mut self,
        domain: Option<&ProtectionDomain>,
        memory: Foreign,
        base: u64,
        access: Access,
    ) -> Result<(), Error> {
        let own = || ProtectionDomain { inner: Arc::clone(&self.domain) };
        let domain = domain.cloned().unwrap_or_else(own);
        let new = domain.register_foreign(memory, base, access)?;
        self.release()?;
        drop(std::mem::replace(self, new));
        Ok(())
    }

    /// Changes the access rights of the region, whose key stays the same. `memory` is the
    /// registered memory once more, since the new rights may need it to be writable.
    ///
    /// # Errors
    /// The errors of [`ForeignRegion::change`]: nothing has changed then. `EINVAL` if the length
    /// differs.
    pub fn change_rights(&mut self, memory: Foreign, access: Access) -> Result<(), Error> {
        check(&memory, access)?;
        self.domain.handle.shared.act(|core, _| {
            if !core.regions().is_foreign(self.number, memory.len()) {
                return Err(Errno::INVAL.into());
            }
            core.rnic().change_rights(self.stag, access)?;
            core.regions().replace_foreign(self.number, memory);
            Ok::<(), Error>(())
        })?;
        self.access = access;
        Ok(())
    }

    /// Ends the registration of the region: the engine reads and writes nothing there from now on.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to the region: it stays registered.
    /// [`PostError::Invalid`] if the registration has already ended.
    pub fn release(&self) -> Result<(), PostError> {
        self.domain.handle.shared.act(|core, _| {
            core.rnic().deregister(self.stag)?;
            core.regions().remove(self.number);
            Ok(())
        })
    }
}

impl Drop for ForeignRegion {
    fn drop(&mut self) {
        self.domain.handle.shared.act(|core, _| {
            // Without its memory it was ended by `release`.
            if core.regions().remove(self.number) {
                ended(core.rnic().force_deregister(self.stag));
            }
        });
    }
}
