//! Copies to and from memory that another process may be writing at the same moment.
//!
//! The compiler must neither split, repeat nor drop such an access, and must not reason from an
//! earlier read. So the moves are inline assembly, opaque to it. A byte may be moved twice where
//! two moves overlap (the tail of a block); the private copy then holds one of the values, and the
//! callers read only that copy.

/// The least length in bytes at which one `rep movsb` is at least as fast as a loop of vector
/// moves.
#[cfg(target_arch = "x86_64")]
const REP_FROM: usize = 1024;

/// Copies `n` bytes from `src` to `dst`.
///
/// # Safety
/// `src` must be readable and `dst` writable for `n` bytes, and the two must not overlap. Either
/// may be shared with other processes that write to it meanwhile: the bytes are then any mixture of
/// old and new ones.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: every move below lies within the first `n` bytes of both sides, which the caller
    // vouches for.
    unsafe {
        if (64..=192).contains(&n) {
            // Most records: three moves at most, and no loop.
            move64(dst, src);
            if n > 128 {
                move64(dst.add(64), src.add(64));
            }
            move64(dst.add(n - 64), src.add(n - 64));
        } else if n >= REP_FROM {
            rep(dst, src, n);
        } else if n >= 64 {
            let mut i = 0;
            while i + 64 <= n {
                move64(dst.add(i), src.add(i));
                i += 64;
            }
            if i < n {
                move64(dst.add(n - 64), src.add(n - 64));
            }
        } else if n >= 16 {
            move16(dst, src);
            if n > 32 {
                move16(dst.add(16), src.add(16));
                move16(dst.add(n - 32), src.add(n - 32));
            }
            move16(dst.add(n - 16), src.add(n - 16));
        } else {
            copy_few(dst, src, n);
        }
    }
}

/// Copies `n` bytes, fewer than 16, from `src` to `dst`.
///
/// # Safety
/// The conditions are those of [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_few(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: every move below lies within the first `n` bytes of both sides, which the caller
    // vouches for.
    unsafe {
        if n >= 8 {
            move8(dst, src);
            move8(dst.add(n - 8), src.add(n - 8));
        } else if n >= 4 {
            move4(dst, src);
            move4(dst.add(n - 4), src.add(n - 4));
        } else {
            for i in 0..n {
                dst.add(i).write_volatile(src.add(i).read_volatile());
            }
        }
    }
}

/// Copies `n` bytes from `src` to `dst` by `rep movsb`.
///
/// # Safety
/// The conditions are those of [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rep(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: moves `n` bytes forward (the ABI keeps the direction flag clear), which the caller
    // vouches for.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") n => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies 64 bytes from `src` to `dst`.
///
/// # Safety
/// The conditions are those of [`copy`] with 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move64(dst: *mut u8, src: *const u8) {
    // SAFETY: SSE2 is part of the architecture; 64 bytes of each side, which the caller vouches
    // for.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, [{s}]", "movdqu {b}, [{s} + 16]",
            "movdqu {c}, [{s} + 32]", "movdqu {e}, [{s} + 48]",
            "movdqu [{d}], {a}", "movdqu [{d} + 16], {b}",
            "movdqu [{d} + 32], {c}", "movdqu [{d} + 48], {e}",
            s = in(reg) src, d = in(reg) dst,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies 16 bytes from `src` to `dst`.
///
/// # Safety
/// The conditions are those of [`copy`] with 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move16(dst: *mut u8, src: *const u8) {
    // SAFETY: SSE2 is part of the architecture; 16 bytes of each side, which the caller vouches
    // for.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, [{s}]", "movdqu [{d}], {a}",
            s = in(reg) src, d = in(reg) dst, a = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies 8 bytes from `src` to `dst`.
///
/// # Safety
/// The conditions are those of [`copy`] with 8 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move8(dst: *mut u8, src: *const u8) {
    // SAFETY: 8 bytes of each side, which the caller vouches for.
    unsafe {
        core::arch::asm!(
            "mov {a}, [{s}]", "mov [{d}], {a}",
            s = in(reg) src, d = in(reg) dst, a = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies 4 bytes from `src` to `dst`.
///
/// # Safety
/// The conditions are those of [`copy`] with 4 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn move4(dst: *mut u8, src: *const u8) {
    // SAFETY: 4 bytes of each side, which the caller vouches for.
    unsafe {
        core::arch::asm!(
            "mov {a:e}, [{s}]", "mov [{d}], {a:e}",
            s = in(reg) src, d = in(reg) dst, a = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `n` bytes from `src` to `dst`: the portable version, by words where both sides allow it.
///
/// # Safety
/// `src` must be readable and `dst` writable for `n` bytes, and the two must not overlap. Either
/// may be shared with other processes that write to it meanwhile: the bytes are then any mixture of
/// old and new ones.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    let mut i = 0;
    // SAFETY: every move below lies within the first `n` bytes of both sides, which the caller
    // vouches for; words are moved only where both addresses are multiples of eight.
    unsafe {
        if (dst as usize ^ src as usize) & 7 == 0 {
            while i < n && (src as usize + i) & 7 != 0 {
                dst.add(i).write_volatile(src.add(i).read_volatile());
                i += 1;
            }
            while i + 8 <= n {
                dst.add(i).cast::<u64>().write_volatile(src.add(i).cast::<u64>().read_volatile());
                i += 8;
            }
        }
        while i < n {
            dst.add(i).write_volatile(src.add(i).read_volatile());
            i += 1;
        }
    }
}
