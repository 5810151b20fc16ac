//! The error that the caller of a C function provides, and the outcome that goes into it.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::ptr;

use crate::status::{Failure, Status};

/// The bytes of an error's text, with the zero byte at its end.
const MESSAGE_SIZE: usize = 1000;

/// The description of a failure, `sprat_error`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Error {
    pub status: i32,
    pub maybe_executed: i32,
    pub version: u64,
    pub message: [u8; MESSAGE_SIZE],
}

/// The fields of [`Error`] before its text.
#[repr(C)]
struct Head {
    status: i32,
    maybe_executed: i32,
    version: u64,
}

/// An error that the caller lends. Its text may be initialised up to its zero byte only.
#[repr(transparent)]
pub(crate) struct ErrorIn(*const Error);

impl ErrorIn {
    /// Returns the address of the text, or `missing` for the null pointer.
    pub(crate) fn message(&self, missing: &'static CStr) -> *const c_char {
        if self.0.is_null() {
            return missing.as_ptr();
        }
        self.0.cast::<c_char>().wrapping_byte_add(offset_of!(Error, message))
    }
}

/// The place for an error, whose memory the caller need not initialise. May be null.
#[repr(transparent)]
pub(crate) struct ErrorOut(*mut Error);

impl ErrorOut {
    /// Writes that the call succeeded.
    #[inline]
    pub(crate) fn clear(&self) {
        self.write(Head { status: Status::Ok as i32, maybe_executed: 0, version: 0 }, "");
    }

    /// Writes a failure.
    #[cold]
    pub(crate) fn set(&self, failure: &Failure) {
        let Failure { status, maybe_executed, version, message } = failure;
        let head = Head {
            status: *status as i32,
            maybe_executed: i32::from(*maybe_executed),
            version: *version,
        };
        self.write(head, message);
    }

    #[inline]
    fn write(&self, head: Head, message: &str) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: The caller of the C function guarantees room for an `Error`, which begins with
        // these fields.
        unsafe { self.0.cast::<Head>().write(head) };
        let message = &message[..message.floor_char_boundary(MESSAGE_SIZE - 1)];
        // SAFETY: The text lies in the same structure.
        let to = unsafe { ptr::addr_of_mut!((*self.0).message) }.cast::<u8>();
        // SAFETY: The text has room for `MESSAGE_SIZE` bytes, one more than these at least.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), to, message.len()) };
        // SAFETY: The byte behind them lies within that room.
        unsafe { to.add(message.len()).write(0) };
    }
}
