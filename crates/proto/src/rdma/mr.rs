//! Registered memory: protection domains, and the steering tags of regions and windows with their bounds and rights.
//!
//! ```text
//!  register ────────────────────────────► valid ──deregister──► gone
//!  alloc_fast ──► free ──fast_register──► valid ──invalidate──► free ──deregister──► gone
//!  alloc_window ► free ──────bind───────► valid ──invalidate──► free ──dealloc_window► gone
//!  STag = index (24 bits, drawn at random, never 0) | key (8 bits, the program's own after an allocation)
//! ```
//!
//! What always holds:
//! - A tag answers only to streams of its protection domain; one made valid by a work request for fast registration or for a
//!   window of one queue pair answers peers on that queue pair's stream alone.
//! - A span handed out lies within the tag's bounds, to the byte. With a tag's end its check fails: who checks before each
//!   copy places nothing afterwards.
//! - A region that windows are bound to goes only with them, and a domain that anything is in not at all.
//! - Binding and fast registration change the key, so the owner ends such a tag by its index, whatever the key is by now.
//!
//! Not here: the memory itself, which is the caller's. A fast registration's place in it is taken as the program says:
//! whoever implements [`super::Memory`] answers for the ends of his regions.

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

/// Who uses a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The queue pair's protection domain.
    pub pd: Pd,
    /// The queue pair.
    pub qp: Qp,
    /// What its peer may do, with whatever tag.
    pub rights: Rights,
}

/// What a peer wants to do with memory of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Place the payload of a Write.
    Write,
    /// Fetch what a Read Request asks for.
    Read,
    /// Change a word.
    Atomic,
}

/// What a queue pair's peer may do with memory of ours. New queue pairs allow everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Writes.
    pub write: bool,
    /// Reads.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Self = Self { write: true, read: true, atomic: true };

    const fn allow(self, right: Right) -> bool {
        match right {
            Right::Write => self.write,
            Right::Read => self.read,
            Right::Atomic => self.atomic,
        }
    }
}

/// Whom a window serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// All queue pairs of the domain ("type 1"). Bound anew at any time; peers cannot invalidate it.
    Domain,
    /// The queue pair that bound it ("type 2"), until it is invalidated.
    OneQp,
}

/// A part of the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The caller's region,
    pub region: u64,
    /// where in it,
    pub offset: u64,
    /// the address of its first byte,
    pub base: u64,
    /// and its bytes.
    pub len: u64,
}

impl Extent {
    /// The part of `len` bytes at `addr`, if it is inside.
    fn part(&self, addr: u64, len: u64) -> Option<Self> {
        let skip = addr.checked_sub(self.base)?;
        let fits = skip <= self.len && len <= self.len - skip;
        fits.then(|| Self { offset: self.offset + skip, base: addr, len, ..*self })
    }

    /// None of its sums wraps.
    const fn is_sound(&self) -> bool {
        self.base.checked_add(self.len).is_some() && self.offset.checked_add(self.len).is_some()
    }

    const fn span(&self) -> Span {
        Span { region: self.region, offset: self.offset, len: self.len as u32 }
    }
}

/// No bytes: what every check grants where nothing is to be copied, whatever the tag.
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
    /// The only queue pair whose peer it answers.
    qp: Option<Qp>,
    /// The index of the region that a window is bound to.
    parent: Option<u32>,
}

#[derive(Debug)]
struct Tag {
    stag: Stag,
    pd: Pd,
    role: Role,
    /// How many windows are bound to it.
    windows: u32,
    valid: Option<Valid>,
}

/// Everything that is registered.
#[derive(Debug)]
pub struct Regions {
    rng: Rng,
    max_pds: usize,
    max_tags: usize,
    /// Domains by number, with how many tags, queue pairs and shared receive queues are in each.
    pds: HashMap<u32, u32>,
    last_pd: u32,
    /// Tags by index.
    tags: HashMap<u32, Tag>,
    /// Valid tags that one queue pair owns.
    owned: BTreeSet<(Qp, u32)>,
}

const fn index(stag: Stag) -> u32 {
    stag.0 >> 8
}

/// Whoever may be written to from afar must be writable at all.
const fn is_sound(access: Access) -> bool {
    access.local_write || !(access.remote_write || access.remote_atomic)
}

impl Regions {
    /// Nothing registered, and never more than so many domains and tags. Tags come from `rng`, so that no peer can guess
    /// them.
    #[must_use]
    pub fn new(rng: Rng, max_pds: usize, max_tags: usize) -> Self {
        let (pds, tags) = (HashMap::new(), HashMap::new());
        Self { rng, max_pds, max_tags, pds, last_pd: 0, tags, owned: BTreeSet::new() }
    }

    /// Makes a protection domain.
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

    /// Ends a protection domain.
    ///
    /// # Errors
    /// [`PostError::Busy`] while anything is in it, [`PostError::Invalid`] if there is none.
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

    /// Something more is in the domain: a queue pair, a shared receive queue.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain.
    pub fn hold_pd(&mut self, pd: Pd) -> Result<(), PostError> {
        let users = self.pds.get_mut(&pd.0).ok_or(PostError::Invalid)?;
        *users += 1;
        Ok(())
    }

    /// What [`Self::hold_pd`] has counted is gone.
    pub fn release_pd(&mut self, pd: Pd) {
        if let Some(users) = self.pds.get_mut(&pd.0) {
            *users = users.saturating_sub(1);
        }
    }

    /// A queue pair is gone, and with it what peers could reach through it alone, windows on such a region included.
    pub fn release_qp(&mut self, qp: Qp) {
        while let Some(&(_, at)) = self.owned.range((qp, 0)..=(qp, u32::MAX)).next() {
            self.unbind_all(at);
            self.revoke(at);
            self.owned.remove(&(qp, at));
        }
    }

    /// Registers `len` bytes from the start of the caller's `region`; the first has the address `base`.
    ///
    /// # Errors
    /// [`PostError::Rights`] for a range that wraps, or remote writes or atomics without local writes;
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
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

    /// Gives a region other rights; its tag stays.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is none; [`PostError::Busy`] while windows are bound to it; [`PostError::Rights`] for
    /// remote writes or atomics without local writes. Nothing has changed then.
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
        Ok(())
    }

    /// Makes a tag that [`Self::fast_register`] will make valid.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_fast(&mut self, pd: Pd) -> Result<Stag, PostError> {
        self.insert(pd, Role::Fast, None)
    }

    /// Makes a window that [`Self::bind`] will make valid.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is no such domain; [`PostError::NoRoom`].
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowKind) -> Result<Stag, PostError> {
        self.insert(pd, Role::Window(kind), None)
    }

    /// Ends a region, or a tag for fast registration, valid or not. Nothing is placed through it any more. A tag for fast
    /// registration is found by any key that it has had.
    ///
    /// # Errors
    /// [`PostError::Busy`] while windows are bound to it, [`PostError::Invalid`] if there is none.
    pub fn deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        let at = self.region_at(stag)?;
        if self.tags.get(&at).is_some_and(|t| t.windows > 0) {
            return Err(PostError::Busy);
        }
        self.remove(at);
        Ok(())
    }

    /// Ends a region, or a tag for fast registration, and unbinds the windows that are bound to it.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is none.
    pub fn force_deregister(&mut self, stag: Stag) -> Result<(), PostError> {
        let at = self.region_at(stag)?;
        self.unbind_all(at);
        self.remove(at);
        Ok(())
    }

    /// Ends a window, bound or not. Any key that it has had finds it.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if there is none.
    pub fn dealloc_window(&mut self, stag: Stag) -> Result<(), PostError> {
        let is_window = |t: &&Tag| matches!(t.role, Role::Window(_));
        self.tags.get(&index(stag)).filter(is_window).ok_or(PostError::Invalid)?;
        self.remove(index(stag));
        Ok(())
    }

    /// Makes a tag for fast registration valid, with the key that `stag` has. Peers reach it through `by` alone.
    ///
    /// # Errors
    /// [`Status::Bind`]: there is no such tag in the domain, it is valid already, or range or rights are not sound.
    pub fn fast_register(
        &mut self,
        by: Stream,
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

    /// Binds a window to `len` bytes at `addr` of a region, with the key that `window` has; `len` 0 unbinds it.
    ///
    /// # Errors
    /// [`Status::Bind`]: window or region are not of the domain, the region may not be bound to or not written to, the range
    /// is not in it, or a window of one queue pair is bound already.
    pub fn bind(
        &mut self,
        by: Stream,
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

    /// What a window on that part of a region is good for.
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

    /// Makes a fast registration or a window of one queue pair invalid, on behalf of the program.
    ///
    /// # Errors
    /// [`Status::Bind`]: there is no such tag in the domain, another queue pair made it valid, or windows are bound to it.
    pub fn invalidate(&mut self, by: Stream, stag: Stag) -> Result<(), Status> {
        let tag = self.tags.get(&index(stag)).filter(|t| t.stag == stag && t.pd == by.pd);
        let tag = tag.filter(|t| matches!(t.role, Role::Fast | Role::Window(WindowKind::OneQp)));
        let tag = tag.filter(|t| t.windows == 0).ok_or(Status::Bind)?;
        if tag.valid.is_some_and(|v| v.qp != Some(by.qp)) {
            return Err(Status::Bind);
        }
        self.revoke(index(stag));
        Ok(())
    }

    /// Makes a tag invalid on behalf of the peer: only one that was made for this stream and that the peer could use.
    ///
    /// # Errors
    /// [`Cause::CANNOT_INVALIDATE`].
    pub fn remote_invalidate(&mut self, by: Stream, stag: Stag) -> Result<(), Cause> {
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

    /// Where an element of a work request lies; `write`: it is a sink. No bytes need no tag.
    ///
    /// # Errors
    /// [`Status::LocalProtection`]: no region of this domain has the tag, the range is not in it, or it must not be written.
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

    /// Where `len` bytes lie that a peer names; no bytes need no tag (RFC 5040 section 5.2.1, RFC 5041 section 5.2). The
    /// word of an atomic must be at an address that 8 divides.
    ///
    /// # Errors
    /// The [`Cause`] to answer with: that of DDP for Writes, where a missing right counts as a tag that is not valid, since
    /// DDP has no other code for it; that of RDMAP for the others.
    #[inline]
    pub fn remote(
        &self,
        by: Stream,
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
        // What wraps is outside too: the code that says more goes first.
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

    /// A new tag under an index that nobody can guess.
    fn insert(&mut self, pd: Pd, role: Role, valid: Option<Valid>) -> Result<Stag, PostError> {
        if self.tags.len() >= self.max_tags {
            return Err(PostError::NoRoom);
        }
        self.hold_pd(pd)?;
        loop {
            let stag = Stag(self.rng.u32());
            if index(stag) != 0 && !self.tags.contains_key(&index(stag)) {
                self.tags.insert(index(stag), Tag { stag, pd, role, windows: 0, valid });
                return Ok(stag);
            }
        }
    }

    /// The index of a region or of a tag for fast registration, on behalf of its owner. A region's key never changes.
    fn region_at(&self, stag: Stag) -> Result<u32, PostError> {
        let is_it = |t: &&Tag| t.role == Role::Fast || t.role == Role::Region && t.stag == stag;
        self.tags.get(&index(stag)).filter(is_it).map(|_| index(stag)).ok_or(PostError::Invalid)
    }

    /// Takes the tag at an index away.
    fn remove(&mut self, at: u32) {
        self.revoke(at);
        if let Some(tag) = self.tags.remove(&at) {
            self.release_pd(tag.pd);
        }
    }

    /// Unbinds the windows that are bound to the tag at an index.
    fn unbind_all(&mut self, at: u32) {
        if self.tags.get(&at).is_some_and(|t| t.windows > 0) {
            // Rare enough for a look at every tag.
            let on_it = |t: &Tag| t.valid.is_some_and(|v| v.parent == Some(at));
            let windows =
                self.tags.iter().filter(|(_, t)| on_it(t)).map(|(&i, _)| i).collect::<Vec<_>>();
            windows.into_iter().for_each(|w| self.revoke(w));
        }
    }

    /// Makes the tag at an index invalid.
    fn revoke(&mut self, at: u32) {
        let Some(valid) = self.tags.get_mut(&at).and_then(|t| t.valid.take()) else { return };
        if let Some(qp) = valid.qp {
            self.owned.remove(&(qp, at));
        }
        if let Some(parent) = valid.parent.and_then(|p| self.tags.get_mut(&p)) {
            parent.windows = parent.windows.saturating_sub(1);
        }
    }
}
