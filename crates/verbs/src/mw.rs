//! Memory windows: parts of regions that are opened to peers by a work request, and closed by another.
//!
//! A window of type 1 is bound by `ibv_bind_mw`, which chooses its key: the next one. One of type 2 is bound by a request of
//! the program's own (`work`), and peers may invalidate it.

use std::ffi::c_int;

use sprat::verbs::{Data, MemoryWindow, SendRequest, WindowKind};

use crate::abi::object::{Bind, Mw as Seen, Pd as SeenPd, Qp as SeenQp};
use crate::engine::Engine;
use crate::entry::{INVALID, at, entry};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::work;

/// `enum ibv_mw_type`.
const TYPE_1: c_int = 1;
const TYPE_2: c_int = 2;
/// The bits of a key that its user chooses.
const CHOSEN: u32 = 0xff;

/// A window.
#[repr(C)]
struct Mw {
    seen: Seen,
    engine: &'static Engine,
    window: MemoryWindow,
}

entry! {
    /// `ibv_alloc_mw`.
    null fn alloc(pd: *mut SeenPd, kind: c_int) -> *mut Seen {
        // SAFETY: null, or a domain that is allocated.
        let domain = unsafe { Pd::to_use(pd) }?;
        let window = domain.domain.window(match kind {
            TYPE_1 => WindowKind::Domain,
            TYPE_2 => WindowKind::OneQp,
            _ => return Err(INVALID),
        })?;
        let key = window.tag().0;
        let seen = Seen { context: domain.context(), pd, rkey: key, handle: key, kind };
        domain.users.enter();
        Ok(Box::into_raw(Box::new(Mw { seen, engine: domain.engine, window })).cast())
    }
}

entry! {
    /// `ibv_dealloc_mw`: bound or not.
    code fn dealloc(mw: *mut Seen) {
        // SAFETY: null, or a window that is allocated.
        let own = unsafe { at(mw.cast::<Mw>()) }?;
        // SAFETY: a domain stays while there are windows in it.
        unsafe { Pd::from_seen(own.seen.pd) }?.users.leave();
        // SAFETY: the pointer that was given up when it was made, which the program gives back.
        let Mw { engine, window, .. } = *unsafe { Box::from_raw(mw.cast::<Mw>()) };
        if !engine.is_ours() {
            std::mem::forget(window);
        }
        Ok(())
    }

    /// `ibv_bind_mw`: verbs.h has seen that it is one of type 1.
    code fn bind(qp: *mut SeenQp, mw: *mut Seen, wanted: *mut Bind) {
        // SAFETY: null, or objects that are there.
        let (qp, own, wanted) = unsafe { (Qp::from_seen(qp)?, at(mw.cast::<Mw>())?, at(wanted)?) };
        let info = &wanted.bind_info;
        let none = info.mr.is_null() && info.addr | info.length != 0;
        if none || own.seen.kind != TYPE_1 || !qp.engine.is_ours() {
            return Err(INVALID);
        }
        let old = own.seen.rkey;
        let key = old & !CHOSEN | old.wrapping_add(1) & CHOSEN;
        // SAFETY: not null or of no length, so it is a region that is registered.
        let op = unsafe { work::bind(key, info) }?;
        let (data, flags) = (Data::Inline(Vec::new()), work::flags(wanted.send_flags));
        qp.pair.post_send(SendRequest { id: wanted.wr_id, op, data, flags })?;
        // SAFETY: not null; a field that the program leaves to us.
        unsafe { (*mw).rkey = key };
        Ok(())
    }
}
