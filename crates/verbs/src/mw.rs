//! Memory windows: ranges of regions that a work request opens to peers and another one closes.
//!
//! `ibv_bind_mw` binds a window of type 1 and chooses its next key. A work request of the program
//! (`work`) binds a window of type 2, and peers may invalidate it.

use std::ffi::c_int;

use sprat_rdma::{Data, MemoryWindow, SendRequest, WindowKind};

use crate::abi::object::{Bind, Mw as Raw, Pd as RawPd, Qp as RawQp};
use crate::engine::Engine;
use crate::entry::{INVALID, at, entry};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::work;

/// `IBV_MW_TYPE_1`: a memory window that `ibv_bind_mw` binds.
const TYPE_1: c_int = 1;
const TYPE_2: c_int = 2;
/// The bits of a memory window's key that its user chooses.
const CHOSEN: u32 = 0xff;

/// A memory window of a C program.
#[repr(C)]
struct Mw {
    raw: Raw,
    engine: &'static Engine,
    window: MemoryWindow,
}

entry! {
    /// Allocates a memory window.
    null fn ibv_alloc_mw(pd: *mut RawPd, kind: c_int) -> *mut Raw {
        // SAFETY: The program passes null or a live protection domain.
        let domain = unsafe { Pd::usable(pd) }?;
        let window = domain.domain.window(match kind {
            TYPE_1 => WindowKind::Domain,
            TYPE_2 => WindowKind::OneQp,
            _ => return Err(INVALID),
        })?;
        let key = window.tag().0;
        let raw = Raw { context: domain.context(), pd, rkey: key, handle: key, kind };
        domain.references.add();
        Ok(Box::into_raw(Box::new(Mw { raw, engine: domain.engine, window })).cast())
    }
}

entry! {
    /// Frees a memory window, bound or not.
    code fn ibv_dealloc_mw(mw: *mut Raw) {
        // SAFETY: The program passes null or a live window.
        let own = unsafe { at(mw.cast::<Mw>()) }?;
        // SAFETY: A domain stays allocated while it has windows.
        unsafe { Pd::from_raw(own.raw.pd) }?.references.remove();
        // SAFETY: The program returns the pointer that the constructor leaked to it.
        let Mw { engine, window, .. } = *unsafe { Box::from_raw(mw.cast::<Mw>()) };
        if !engine.is_current() {
            std::mem::forget(window);
        }
        Ok(())
    }

    /// Binds a memory window of type 1. verbs.h has checked its type.
    code fn ibv_bind_mw(qp: *mut RawQp, mw: *mut Raw, wanted: *mut Bind) {
        // SAFETY: The program passes null or live objects.
        let (qp, own, wanted) = unsafe { (Qp::from_raw(qp)?, at(mw.cast::<Mw>())?, at(wanted)?) };
        let info = &wanted.bind_info;
        let none = info.mr.is_null() && info.addr | info.length != 0;
        if none || own.raw.kind != TYPE_1 || !qp.engine.is_current() {
            return Err(INVALID);
        }
        let old = own.raw.rkey;
        let key = old & !CHOSEN | old.wrapping_add(1) & CHOSEN;
        // SAFETY: The region is null only with length 0; otherwise the program passes a registered
        // one.
        let op = unsafe { work::bind(key, info) }?;
        let (data, flags) = (Data::Inline(Vec::new()), work::flags(wanted.send_flags));
        qp.pair.post_send(SendRequest { id: wanted.wr_id, op, data, flags })?;
        // SAFETY: The pointer is not null, and programs do not write this field.
        unsafe { (*mw).rkey = key };
        Ok(())
    }
}
