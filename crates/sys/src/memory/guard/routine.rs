//! The instructions that may fault, between two labels, and where they continue if one does.
//!
//! ```text
//!   copy(to, from, n) -> 0 or 1        fold(to, from, n, &fold) -> 0 or 1
//!   swap(at, &old, new) -> 0: swapped, 1: faulted, 2: not `old`, which is now what it is
//! ```
//!
//! Always holds: between the labels the stack is as at the entry, so that the end, `return 1`, is
//! right from anywhere.

use super::Gone;

unsafe extern "C" {
    fn sprat_guard_copy(to: *mut u8, from: *const u8, n: usize) -> usize;
    #[cfg(target_arch = "x86_64")]
    fn sprat_guard_fold(to: *mut u8, from: *const u8, n: usize, fold: *mut Fold) -> usize;
    fn sprat_guard_swap(at: *mut u64, old: *mut u64, new: u64) -> usize;
    /// Labels at the begin and the end of the copy routine's instructions.
    static sprat_guard_begin: u8;
    static sprat_guard_end: u8;
}

/// Returns the address to continue at if the instruction at `at` faulted. `None` if it lies outside
/// the copy routine.
pub(super) fn landing(at: usize) -> Option<usize> {
    let (begin, end) = ((&raw const sprat_guard_begin).addr(), (&raw const sprat_guard_end).addr());
    (begin..end).contains(&at).then_some(end)
}

/// Copies `n` bytes by the routine whose faults are errors.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// The handler is installed, and the thread does not block its signals. What is there of the two
/// ranges may be read and written, and they do not overlap.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, n: usize) -> Result<(), Gone> {
    // SAFETY: what is not there faults between the labels, which is handled; the rest is the
    // caller's promise.
    if unsafe { sprat_guard_copy(to, from, n) } == 0 { Ok(()) } else { Err(Gone) }
}

/// Number of bytes that [`fold`] copies in one step.
#[cfg(target_arch = "x86_64")]
pub(in crate::memory) const STEP: usize = 256;

/// The parameters of [`fold`] beside the bytes, and its result.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub(in crate::memory) struct Fold {
    /// A number that is added to the first bytes: the state of the CRC, and zeros behind it.
    pub(in crate::memory) state: [u64; 8],
    /// Factors that move the low and the high half of 128 bits forward by one step.
    pub(in crate::memory) factors: [u64; 2],
    /// A block of bytes whose CRC, from state 0, equals the CRC of all copied bytes.
    pub(in crate::memory) folded: [u8; STEP],
}

/// Copies `n` bytes and folds them into [`STEP`] bytes with the same CRC, in one pass. Each byte is
/// read once.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// The rules of [`copy`], but the handler is needed only if `from` may fault. The CPU has AVX-512F
/// and VPCLMULQDQ. `n` is a multiple of [`STEP`] and not 0.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(in crate::memory) unsafe fn fold(
    to: *mut u8,
    from: *const u8,
    n: usize,
    fold: &mut Fold,
) -> Result<(), Gone> {
    // SAFETY: as in `copy`; the routine writes nothing else but `folded`.
    if unsafe { sprat_guard_fold(to, from, n, fold) } == 0 { Ok(()) } else { Err(Gone) }
}

/// Replaces the word at `at` if it is `old`; true if it was. Otherwise `old` becomes the word.
///
/// # Errors
/// [`Gone`].
///
/// # Safety
/// The rules of [`copy`]; `at` is a multiple of eight.
pub(super) unsafe fn swap(at: *mut u64, old: &mut u64, new: u64) -> Result<bool, Gone> {
    // SAFETY: as in `copy`.
    match unsafe { sprat_guard_swap(at, old, new) } {
        0 => Ok(true),
        2 => Ok(false),
        _ => Err(Gone),
    }
}

// A store behind `rep movsb` is not visible before its stores, whose own order is not defined.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.sprat_guard, \"ax\", @progbits",
    ".hidden sprat_guard_copy, sprat_guard_fold, sprat_guard_swap",
    ".globl sprat_guard_copy, sprat_guard_fold, sprat_guard_swap",
    ".hidden sprat_guard_begin, sprat_guard_end",
    ".globl sprat_guard_begin, sprat_guard_end",
    ".type sprat_guard_copy, @function",
    ".type sprat_guard_fold, @function",
    ".type sprat_guard_swap, @function",
    ".p2align 6",
    "sprat_guard_begin:",
    "sprat_guard_copy:",
    "cmp rdx, 16",
    "jb 5f",
    "mov rcx, rdx",
    "cmp rdx, 1024",
    "jae 4f",
    "sub rcx, 64",
    "jb 2f",
    "1:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movdqu [rdi], xmm0",
    "movdqu [rdi + 16], xmm1",
    "movdqu [rdi + 32], xmm2",
    "movdqu [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rcx, 64",
    "jae 1b",
    "2:",
    "add rcx, 64",
    "jz 9f",
    "3:",
    "cmp rcx, 16",
    "jbe 8f",
    "movdqu xmm0, [rsi]",
    "movdqu [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rcx, 16",
    "jmp 3b",
    "4:",
    "sub rcx, 16",
    "rep movsb",
    "mov ecx, 16",
    // The last sixteen, of which some may have been copied already.
    "8:",
    "movdqu xmm0, [rsi + rcx - 16]",
    "movdqu [rdi + rcx - 16], xmm0",
    "9:",
    "xor eax, eax",
    "ret",
    "5:",
    "test dl, 8",
    "jz 6f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "6:",
    "test dl, 4",
    "jz 6f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "6:",
    "test dl, 2",
    "jz 6f",
    "movzx eax, word ptr [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "6:",
    "test dl, 1",
    "jz 9b",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "xor eax, eax",
    "ret",
    // Registers from 16 on share no part with those of older vector instructions. So nothing has
    // to be cleared at the end, nor after a fault.
    ".p2align 6",
    "sprat_guard_fold:",
    "vbroadcasti32x4 zmm16, [rcx + 64]",
    "vmovdqu64 zmm20, [rsi]",
    "vmovdqu64 zmm21, [rsi + 64]",
    "vmovdqu64 zmm22, [rsi + 128]",
    "vmovdqu64 zmm23, [rsi + 192]",
    "vmovdqu64 [rdi], zmm20",
    "vmovdqu64 [rdi + 64], zmm21",
    "vmovdqu64 [rdi + 128], zmm22",
    "vmovdqu64 [rdi + 192], zmm23",
    "vpxorq zmm20, zmm20, [rcx]",
    "sub rdx, 256",
    "jz 3f",
    ".p2align 5",
    "2:",
    "add rsi, 256",
    "add rdi, 256",
    "vmovdqu64 zmm24, [rsi]",
    "vmovdqu64 zmm25, [rsi + 64]",
    "vmovdqu64 zmm26, [rsi + 128]",
    "vmovdqu64 zmm27, [rsi + 192]",
    // A page ahead: the CPU itself fetches ahead within a page only.
    "prefetcht0 [rsi + 4096]",
    "prefetcht0 [rsi + 4160]",
    "prefetcht0 [rsi + 4224]",
    "prefetcht0 [rsi + 4288]",
    "vpclmulqdq zmm17, zmm20, zmm16, 0x00",
    "vpclmulqdq zmm20, zmm20, zmm16, 0x11",
    "vpclmulqdq zmm18, zmm21, zmm16, 0x00",
    "vpclmulqdq zmm21, zmm21, zmm16, 0x11",
    "vmovdqu64 [rdi], zmm24",
    "vmovdqu64 [rdi + 64], zmm25",
    "vpternlogq zmm20, zmm17, zmm24, 0x96",
    "vpternlogq zmm21, zmm18, zmm25, 0x96",
    "vpclmulqdq zmm17, zmm22, zmm16, 0x00",
    "vpclmulqdq zmm22, zmm22, zmm16, 0x11",
    "vpclmulqdq zmm18, zmm23, zmm16, 0x00",
    "vpclmulqdq zmm23, zmm23, zmm16, 0x11",
    "vmovdqu64 [rdi + 128], zmm26",
    "vmovdqu64 [rdi + 192], zmm27",
    "vpternlogq zmm22, zmm17, zmm26, 0x96",
    "vpternlogq zmm23, zmm18, zmm27, 0x96",
    "sub rdx, 256",
    "jnz 2b",
    "3:",
    "vmovdqu64 [rcx + 80], zmm20",
    "vmovdqu64 [rcx + 144], zmm21",
    "vmovdqu64 [rcx + 208], zmm22",
    "vmovdqu64 [rcx + 272], zmm23",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "sprat_guard_swap:",
    "mov rax, [rsi]",
    "lock cmpxchg [rdi], rdx",
    "jne 7f",
    "xor eax, eax",
    "ret",
    "7:",
    "mov [rsi], rax",
    "mov eax, 2",
    "ret",
    "sprat_guard_end:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

// Stores are seen in any order here: the barrier puts the last ones behind the others.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.sprat_guard, \"ax\", @progbits",
    ".hidden sprat_guard_copy",
    ".hidden sprat_guard_swap",
    ".hidden sprat_guard_begin",
    ".hidden sprat_guard_end",
    ".globl sprat_guard_copy",
    ".globl sprat_guard_swap",
    ".globl sprat_guard_begin",
    ".globl sprat_guard_end",
    ".type sprat_guard_copy, %function",
    ".type sprat_guard_swap, %function",
    ".p2align 6",
    "sprat_guard_begin:",
    "sprat_guard_copy:",
    "cbz x2, 9f",
    "1:",
    "cmp x2, #64",
    "b.ls 2f",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "sub x2, x2, #64",
    "b 1b",
    "2:",
    "cmp x2, #16",
    "b.ls 3f",
    "ldr q0, [x1], #16",
    "str q0, [x0], #16",
    "sub x2, x2, #16",
    "b 2b",
    "3:",
    "dmb ishst",
    "tbz x2, #4, 4f",
    "ldr q0, [x1]",
    "str q0, [x0]",
    "b 9f",
    "4:",
    "tbz x2, #3, 5f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "5:",
    "tbz x2, #2, 6f",
    "ldr w3, [x1], #4",
    "str w3, [x0], #4",
    "6:",
    "tbz x2, #1, 7f",
    "ldrh w3, [x1], #2",
    "strh w3, [x0], #2",
    "7:",
    "tbz x2, #0, 9f",
    "ldrb w3, [x1]",
    "dmb ishst",
    "strb w3, [x0]",
    "9:",
    "mov x0, #0",
    "ret",
    ".p2align 4",
    "sprat_guard_swap:",
    "ldr x3, [x1]",
    "1:",
    "ldaxr x4, [x0]",
    "cmp x4, x3",
    "b.ne 2f",
    "stlxr w5, x2, [x0]",
    "cbnz w5, 1b",
    "mov x0, #0",
    "ret",
    "2:",
    "clrex",
    "str x4, [x1]",
    "mov x0, #2",
    "ret",
    "sprat_guard_end:",
    "mov x0, #1",
    "ret",
    ".popsection",
);
