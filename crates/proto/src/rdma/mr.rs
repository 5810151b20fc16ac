//! Registered memory: protection domains, and the steering tags of regions and windows with their
//! bounds and rights.
//!
//! ```text
//!  register ────────────────────────────► valid ──deregister──► gone
//!  alloc_fast ──► free ──fast_register──► valid ──invalidate──► free ──deregister──► gone
//!  alloc_window ► free ──────bind───────► valid ──invalidate──► free ──dealloc_window► gone
//!  STag = index (24 bits, random, never 0) | key (8 bits, set by the program after an allocation)
//! ```
//!
//! Invariants:
//! - A tag is valid only for streams of its protection domain. A tag from fast registration, or a
//!   window of one queue pair, is valid for peers only on the stream of the queue pair that made
//!   it.
//! - A span that a check returns lies within the tag's bounds. A check fails after the tag's end,
//!   so a caller that checks before each copy places nothing afterwards.
//! - A region with bound windows is deregistered only together with them. A domain that is in use
//!   is not deallocated.
//! - Binding and fast registration change the key, so the owner ends such a tag by its index, under
//!   any key.
//!
//! Not here: the memory, which the caller owns. The program states the place of a fast
//! registration, and the implementation of [`Memory`](crate::rdma::Memory) checks it against its
//! regions.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::rand::Rng;
use crate::rdma::completion::Status;
use crate::rdma::error::PostError;
use crate::rdma::ids::{Pd, Qp, Stag};
use crate::rdma::memory::{Access, Span};
use crate::rdma::work::Sge;
use crate::wire::rdmap::Cause;

/// The user of a steering tag: a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagUser {
    /// The protection domain of the queue pair that uses the tag.
    pub pd: Pd,
    /// The queue pair that uses the tag.
    pub qp: Qp,
    /// The accesses that the queue pair allows its peer, under any tag.
    pub rights: Rights,
}

/// An access of a peer to local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// The peer places the payload of a Write.
    Write,
    /// The peer reads the source of a Read Request.
    Read,
    /// The peer changes a 64-bit word by an atomic operation.
    Atomic,
}

/// The accesses that a queue pair allows its peer. New queue pairs allow all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// The peer may write this end's memory.
    pub write: bool,
    /// The peer may read this end's memory.
    pub read: bool,
    /// The peer may do atomics on this end's memory.
    pub atomic: bool,
}

impl Rights {
    /// Allows the peer all accesses.
    pub const ALL: Self = Self { write: true, read: true, atomic: true };

    const fn allow(self, right: Right) -> bool {
        match right {
            Right::Write => self.write,
            Right::Read => self.read,
            Right::Atomic => self.atomic,
        }
    }
}

/// The queue pairs that a memory window is valid for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// The window is valid for all queue pairs of its protection domain ("type 1"). It can be bound
    /// again at any time, and peers cannot invalidate it.
    Domain,
    /// The window is valid for the queue pair that bound it ("type 2"), until it is invalidated.
    OneQp,
}

/// A part of the caller's registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The caller's name for the region.
    pub region: u64,
    /// The part's first byte, counted from the start of the caller's region.
    pub offset: u64,
    /// The address of the part's first byte.
    pub base: u64,
    /// The length of the memory part in bytes.
    pub len: u64,
}

impl Extent {
    /// Returns the part of `len` bytes at `addr` if it lies inside this extent.
    fn part(&self, addr: u64, len: u64) -> Option<Self> {
        let skip = addr.checked_sub(self.base)?;
        let fits = skip <= self.len && len <= self.len - skip;
        fits.then(|| Self { offset: self.offset + skip, base: addr, len, ..*self })
    }

    /// True if no address or offset of the extent wraps.
    const fn is_sound(&self) -> bool {
        self.base.checked_add(self.len).is_some() && self.offset.checked_add(self.len).is_some()
    }

    const fn span(&self) -> Span {
        Span { region: self.region, offset: self.offset, len: self.len as u32 }
    }
}

/// The span that every check returns for a length of 0, under any tag.
const NOTHING: Span = Span { region: 0, offset: 0, len: 0 };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Region,
    Fast,
    Window(WindowKind),
}

#[derive(Clone, Copy, Debug)]
struct Valid {
    extent: Extent,
    access: Access,
    /// The only queue pair whose peer may use the steering tag, if there is one.
    qp: Option<Qp>,
    /// The index of the region that the window is bound to, if the tag is a window's.
    parent: Option<u32>,
}

#[derive(Debug)]
struct Tag {
    stag: Stag,
    pd: Pd,
    role: Role,
    /// The number of windows that are bound to the tag's region.
    windows: u32,
    valid: Option<Valid>,
}

/// The protection domains and steering tags of an engine.
#[derive(Debug)]
pub struct Regions {
    rng: Rng,
    max_pds: usize,
    max_tags: usize,
    /// The protection domains by number, each with the count of tags, queue pairs and shared
    /// receive queues in it.
    pds: HashMap<u32, u32>,
    last_pd: u32,
    /// The steering tags of the engine by index.
    tags: HashMap<u32, Tag>,
    /// The valid tags that only one queue pair's peer may use.
    owned: BTreeSet<(Qp, u32)>,
    /// The number of times that a tag has lost its memory or changed its rights.
    changes: u64,
}

const fn index(stag: Stag) -> u32 {
    stag.0 >> 8
}

/// True if the rights are consistent: remote writes and atomics come with local writes.
const fn is_sound(access: Access) -> bool {
    access.local_write || !(access.remote_write || access.remote_atomic)
}

impl Regions {
    /// Creates an empty registry for at most `max_pds` protection domains and `max_tags` steering
    /// tags. The tags come from `rng`, so no peer can guess them.
    #[must_use]
    pub fn new(rng: Rng, max_pds: usize, max_tags: usize) -> Self {
        let (pds, tags) = (HashMap::new(), HashMap::new());
        Self { rng, max_pds, max_tags, pds, last_pd: 0, tags, owned: BTreeSet::new(), changes: 0 }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`PostError::NoRoom`].
    pub fn alloc_pd(&mut self) -> Result<Pd, PostError> {
        if self.pds.len() >= self.max_pds {
            return Err(PostError::NoRoom);
        }
        loop {
            self.last_pd = self.last_pd.wrapping_add(1);
            if !self.pds.contains_key(&self.last_pd) {
                self.pds.insert(self.last_pd, 0);
                return Ok(Pd(self.last_pd));
            }
        }
    }

    /// Deallocates a protection domain.
    ///
    /// # Errors
    /// [`PostError::Busy`] while objects are in it; [`PostError::Invalid`] if there is no such
    /// domain.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), PostError> {
        match self.pds.get(&pd.0) {
            None => Err(PostError::Invalid),
            Some(0) => {
                self.pds.remove(&pd.0);
                Ok(())
            }
            Some(_) => Err(PostError::Busy),
        }
    }

    /// Counts one more queue pair or shared receive queue in a protection domain.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain.
    pub fn add_pd_user(&mut self, pd: Pd) -> Result<(), PostError> {
        let users = self.pds.get_mut(&pd.0).ok_or(PostError::Invalid)?;
        *users += 1;
        Ok(())
    }

    /// Counts one object less in a protection domain.
    pub fn remove_pd_user(&mut self, pd: Pd) {
        if let Some(users) = self.pds.get_mut(&pd.0) {
            *users = users.saturating_sub(1);
        }
    }

    /// Invalidates the steering tags that only the peer of a destroyed queue pair could use, and
    /// unbinds their windows.
    pub fn release_qp(&mut self, qp: Qp) {
        while let Some(&(_, at)) = self.owned.range((qp, 0)..=(qp, u32::MAX)).next() {
            self.unbind_all(at);
            self.revoke(at);
            self.owned.remove(&(qp, at));
        }
    }

    /// Registers `len` bytes from the start of the caller's `region`. The first byte has the
    /// address `base`.
    ///
    /// # Errors
    /// [`PostError::Rights`] if the range wraps, or for remote writes or atomics without local
    /// writes; [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn register(
        &mut self,
        pd: Pd,
        region: u64,
        base: u64,
        len: u64,
        access: Access,
    ) -> Result<Stag, PostError> {
        let extent = Extent { region, offset: 0, base, len };
        if !extent.is_sound() || !is_sound(access) {
            return Err(PostError::Rights);
        }
        self.insert(pd, Role::Region, Some(Valid { extent, access, qp: None, parent: None }))
    }

    /// Sets the access rights of a memory region. Its tag stays the same.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such region; [`PostError::Busy`] while windows are
    /// bound to it; [`PostError::Rights`] for remote writes or atomics without local writes. The
    /// region is then unchanged.
    pub fn change_rights(&mut self, stag: Stag, access: Access) -> Result<(), PostError> {
        let is_it = |t: &&mut Tag| t.role == Role::Region && t.stag == stag;
        let tag = self.tags.get_mut(&index(stag)).filter(is_it).ok_or(PostError::Invalid)?;
        if tag.windows > 0 {
            return Err(PostError::Busy);
        }
        if !is_sound(access) {
            return Err(PostError::Rights);
        }
        tag.valid = tag.valid.map(|valid| Valid { access, ..valid });
        self.changes += 1;
        Ok(())
    }

    /// The number of times that a tag has lost its memory or changed its rights. While it stays the
    /// same, so does the memory of each valid tag.
    #[inline]
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Allocates a tag for [`Self::fast_register`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_fast(&mut self, pd: Pd) -> Result<Stag, PostError> {
        self.insert(pd, Role::Fast, None)
    }

    /// Allocates a memory window for [`Self::bind`].
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowKind) -> Result<Stag, PostError> {
        self.insert(pd, Role::Window(kind), None)
    }

    /// Deregisters a region or a tag for fast registration, valid or not. No check passes
    /// afterwards. A tag for fast registration is found under any key that it has had.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it; [`PostError::Invalid`] if there is no
    /// such tag.
    pub fn deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        let at = self.region_at(stag)?;
        if self.tags.get(&at).is_some_and(|t| t.windows > 0) {
            return Err(PostError::Busy);
        }
        self.remove(at);
        Ok(())
    }

    /// Deregisters a region or a tag for fast registration and unbinds its windows.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such tag.
    pub fn force_deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        let at = self.region_at(stag)?;
        self.unbind_all(at);
        self.remove(at);
        Ok(())
    }

    /// Deallocates a window, bound or not, under any key that it has had.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such window.
    pub fn dealloc_window(&mut self, stag: Stag) -> Result<(), PostError> {
        let is_window = |t: &&Tag| matches!(t.role, Role::Window(_));
        self.tags.get(&index(stag)).filter(is_window).ok_or(PostError::Invalid)?;
        self.remove(index(stag));
        Ok(())
    }

    /// Makes a steering tag for fast registration valid, with the key in `stag`. Peers may use it
    /// only on the stream of the queue pair `by`.
    ///
    /// # Errors
    /// [`Status::Bind`] if there is no such tag in the domain, if it is already valid, or if the
    /// range or the rights are not sound.
    pub fn fast_register(
        &mut self,
        by: TagUser,
        stag: Stag,
        extent: Extent,
        access: Access,
    ) -> Result<(), Status> {
        let tag = self.tags.get_mut(&index(stag)).ok_or(Status::Bind)?;
        let free = tag.role == Role::Fast && tag.valid.is_none() && tag.pd == by.pd;
        if !free || !extent.is_sound() || !is_sound(access) {
            return Err(Status::Bind);
        }
        tag.stag = stag;
        tag.valid = Some(Valid { extent, access, qp: Some(by.qp), parent: None });
        self.owned.insert((by.qp, index(stag)));
        Ok(())
    }

    /// Binds a window to `len` bytes at `addr` of a region, with the key in `window`. A `len` of 0
    /// unbinds the window.
    ///
    /// # Errors
    /// [`Status::Bind`] if the window or the region is not in the domain, if the region does not
    /// allow binding or the writes, if the range is outside of the region, or if a window of one
    /// queue pair is already bound.
    pub fn bind(
        &mut self,
        by: TagUser,
        window: Stag,
        region: Stag,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Status> {
        let at = index(window);
        let tag = self.tags.get(&at).filter(|t| t.pd == by.pd).ok_or(Status::Bind)?;
        let Role::Window(kind) = tag.role else { return Err(Status::Bind) };
        let owner = (kind == WindowKind::OneQp).then_some(by.qp);
        if tag.valid.is_some_and(|v| v.qp.is_some() && (len > 0 || v.qp != owner)) {
            return Err(Status::Bind);
        }
        let valid = match len {
            0 => None,
            _ => Some(self.window_on(by.pd, region, addr, len, access)?),
        };
        self.revoke(at);
        if let Some(parent) = valid.and_then(|v| v.parent).and_then(|p| self.tags.get_mut(&p)) {
            parent.windows += 1;
        }
        if let Some(tag) = self.tags.get_mut(&at) {
            tag.stag = window;
            tag.valid = valid.map(|v| Valid { qp: owner, ..v });
        }
        if let (Some(qp), Some(_)) = (owner, valid) {
            self.owned.insert((qp, at));
        }
        Ok(())
    }

    /// Returns the extent and the rights of a window that is bound to a part of a region.
    fn window_on(
        &self,
        pd: Pd,
        region: Stag,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Valid, Status> {
        let tag = self.tags.get(&index(region)).filter(|t| t.stag == region && t.pd == pd);
        let tag = tag.filter(|t| !matches!(t.role, Role::Window(_))).ok_or(Status::Bind)?;
        let valid = tag.valid.filter(|v| v.access.bind).ok_or(Status::Bind)?;
        let writes = access.remote_write || access.remote_atomic;
        let extent = valid.extent.part(addr, len).filter(|_| valid.access.local_write || !writes);
        let access = Access { local_write: false, bind: false, ..access };
        Ok(Valid {
            extent: extent.ok_or(Status::Bind)?,
            access,
            qp: None,
            parent: Some(index(region)),
        })
    }

    /// Invalidates a fast registration, or a window of one queue pair, for the local program.
    ///
    /// # Errors
    /// [`Status::Bind`] if there is no such tag in the domain, if another queue pair made it valid,
    /// or if windows are bound to it.
    pub fn invalidate(&mut self, by: TagUser, stag: Stag) -> Result<(), Status> {
        let tag = self.tags.get(&index(stag)).filter(|t| t.stag == stag && t.pd == by.pd);
        let tag = tag.filter(|t| matches!(t.role, Role::Fast | Role::Window(WindowKind::OneQp)));
        let tag = tag.filter(|t| t.windows == 0).ok_or(Status::Bind)?;
        if tag.valid.is_some_and(|v| v.qp != Some(by.qp)) {
            return Err(Status::Bind);
        }
        self.revoke(index(stag));
        Ok(())
    }

    /// Invalidates a steering tag at the peer's request. The tag must be valid on this stream only
    /// and give the peer a right.
    ///
    /// # Errors
    /// [`Cause::CANNOT_INVALIDATE`].
    pub fn remote_invalidate(&mut self, by: TagUser, stag: Stag) -> Result<(), Cause> {
        let tag = self
            .tags
            .get(&index(stag))
            .filter(|t| t.stag == stag && t.pd == by.pd && t.windows == 0);
        let valid = tag.and_then(|t| t.valid).filter(|v| v.qp == Some(by.qp));
        let remote = |a: Access| a.remote_write || a.remote_read || a.remote_atomic;
        valid.filter(|v| remote(v.access)).ok_or(Cause::CANNOT_INVALIDATE)?;
        self.revoke(index(stag));
        Ok(())
    }

    /// Returns the memory that an element of a work request names. `write` is true for a sink. A
    /// length of 0 needs no tag.
    ///
    /// # Errors
    /// [`Status::LocalProtection`] if no region of the domain has the tag, if the range is outside
    /// of it, or if it allows no local writes.
    #[inline]
    pub fn local(&self, pd: Pd, sge: Sge, write: bool) -> Result<Span, Status> {
        if sge.len == 0 {
            return Ok(NOTHING);
        }
        let tag = self.tags.get(&index(sge.stag)).filter(|t| t.stag == sge.stag && t.pd == pd);
        let valid =
            tag.filter(|t| !matches!(t.role, Role::Window(_))).and_then(|t| t.valid.as_ref());
        let valid =
            valid.filter(|v| !write || v.access.local_write).ok_or(Status::LocalProtection)?;
        valid.extent.part(sge.addr, sge.len.into()).map(|e| e.span()).ok_or(Status::LocalProtection)
    }

    /// Returns the `len` bytes of memory that a peer names. A length of 0 needs no tag (RFC 5040
    /// section 5.2.1, RFC 5041 section 5.2). The word of an atomic must lie at a multiple of 8.
    ///
    /// # Errors
    /// The [`Cause`] to answer with. Writes use DDP's codes, and a missing right counts as an
    /// invalid tag, since DDP has no other code for it. The other accesses use RDMAP's codes.
    #[inline]
    pub fn remote(
        &self,
        by: TagUser,
        stag: Stag,
        addr: u64,
        len: u32,
        right: Right,
    ) -> Result<Span, Cause> {
        if len == 0 {
            return Ok(NOTHING);
        }
        let cause = |tagged, other| if right == Right::Write { tagged } else { other };
        let tag = self.tags.get(&index(stag)).filter(|t| t.stag == stag);
        let found = tag.and_then(|t| Some((t.pd, t.valid.as_ref()?)));
        let (pd, valid) = found.ok_or_else(|| cause(Cause::TAGGED_STAG, Cause::INVALID_STAG))?;
        if pd != by.pd || valid.qp.is_some_and(|qp| qp != by.qp) {
            return Err(cause(Cause::TAGGED_NOT_ASSOCIATED, Cause::NOT_ASSOCIATED));
        }
        let allowed = match right {
            Right::Write => valid.access.remote_write,
            Right::Read => valid.access.remote_read,
            Right::Atomic => valid.access.remote_atomic,
        };
        if !allowed || !by.rights.allow(right) {
            return Err(cause(Cause::TAGGED_STAG, Cause::ACCESS));
        }
        // A range that wraps is also out of bounds. The more specific code goes first.
        if addr.checked_add(len.into()).is_none() {
            return Err(cause(Cause::TAGGED_WRAP, Cause::TO_WRAP));
        }
        let part = valid.extent.part(addr, len.into());
        let part = part.ok_or_else(|| cause(Cause::TAGGED_BOUNDS, Cause::BOUNDS))?;
        if right == Right::Atomic && (len != 8 || !addr.is_multiple_of(8)) {
            return Err(Cause::STREAM);
        }
        Ok(part.span())
    }

    /// Inserts a new steering tag under a random index.
    fn insert(&mut self, pd: Pd, role: Role, valid: Option<Valid>) -> Result<Stag, PostError> {
        if self.tags.len() >= self.max_tags {
            return Err(PostError::NoRoom);
        }
        self.add_pd_user(pd)?;
        loop {
            let stag = Stag(self.rng.u32());
            if index(stag) != 0 && !self.tags.contains_key(&index(stag)) {
                self.tags.insert(index(stag), Tag { stag, pd, role, windows: 0, valid });
                return Ok(stag);
            }
        }
    }

    /// Returns the index of a region or of a tag for fast registration. A region's key never
    /// changes.
    fn region_at(&self, stag: Stag) -> Result<u32, PostError> {
        let is_it = |t: &&Tag| t.role == Role::Fast || t.role == Role::Region && t.stag == stag;
        self.tags.get(&index(stag)).filter(is_it).map(|_| index(stag)).ok_or(PostError::Invalid)
    }

    /// Removes the steering tag at an index.
    fn remove(&mut self, at: u32) {
        self.revoke(at);
        if let Some(tag) = self.tags.remove(&at) {
            self.remove_pd_user(tag.pd);
        }
    }

    /// Unbinds the windows that are bound to the region at an index.
    fn unbind_all(&mut self, at: u32) {
        if self.tags.get(&at).is_some_and(|t| t.windows > 0) {
            // This is rare, so a scan over all tags is cheap enough.
            let on_it = |t: &Tag| t.valid.is_some_and(|v| v.parent == Some(at));
            let windows =
                self.tags.iter().filter(|(_, t)| on_it(t)).map(|(&i, _)| i).collect::<Vec<_>>();
            windows.into_iter().for_each(|w| self.revoke(w));
        }
    }

    /// Invalidates the steering tag at an index.
    fn revoke(&mut self, at: u32) {
        let Some(valid) = self.tags.get_mut(&at).and_then(|t| t.valid.take()) else { return };
        self.changes += 1;
        if let Some(qp) = valid.qp {
            self.owned.remove(&(qp, at));
        }
        if let Some(parent) = valid.parent.and_then(|p| self.tags.get_mut(&p)) {
            parent.windows = parent.windows.saturating_sub(1);
        }
    }
}
