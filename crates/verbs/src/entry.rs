//! The boundary between C and Rust: it turns errors into errno by each function's convention and
//! stops panics.
//!
//! ```text
//!   export! { code     fn ibv_x(a: A)            { … Ok(()) } }  0, or an errno, also in errno
//!   export! { minus    fn ibv_x(a: A) -> c_int   { … Ok(n)  } }  n, or -1 and errno
//!   export! { null     fn ibv_x(a: A) -> *mut T  { … Ok(p)  } }  p, or NULL and errno
//!   export! { plain    fn ibv_x(a: A) -> T       { … Ok(t)  } }  t, or its default, and errno
//!   export! { blocking fn ibv_x(a: A) -> c_int   { … Ok(n)  } }  as minus; the body repeats while
//!                                                                it is AGAIN; a cancelled thread
//!                                                                ends between two runs
//! ```

use std::ffi::c_int;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::log;

/// An errno value, the error of a C function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

/// `EINVAL`: an argument of the C call is invalid.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// The result of a wait in which nothing arrived within an interval. A `blocking` entry then
/// repeats its body; C never sees this value.
pub(crate) const AGAIN: Errno = Errno(libc::ETIME);
/// `EOPNOTSUPP`: the RDMA device lacks the operation.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        let by_kind = || match error.kind() {
            ErrorKind::WouldBlock => libc::EAGAIN,
            ErrorKind::TimedOut => AGAIN.0,
            ErrorKind::Interrupted => libc::EINTR,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::PermissionDenied => libc::EACCES,
            ErrorKind::ConnectionReset => libc::ECONNRESET,
            ErrorKind::QuotaExceeded => libc::ENOMEM,
            ErrorKind::AddrInUse => libc::EADDRINUSE,
            ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
            ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
            _ => libc::EIO,
        };
        Self(error.raw_os_error().unwrap_or_else(by_kind))
    }
}

/// Pointer types that have a null value.
pub(crate) trait Null {
    /// The null pointer of this type.
    const NULL: Self;
}

impl<T> Null for *mut T {
    const NULL: Self = std::ptr::null_mut();
}

impl<T> Null for *const T {
    const NULL: Self = std::ptr::null();
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: The C library returns this thread's `errno`, which lives as long as the thread.
    unsafe { *libc::__errno_location() = errno.0 };
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Ends this thread if another thread has cancelled it.
#[inline]
pub(crate) fn test_cancel() {
    // SAFETY: Cancellation unwinds the stack from here. The Rust frames above have nothing to drop:
    // a `blocking` entry calls this before anything is on its stack.
    unsafe { pthread_testcancel() };
}

/// Runs `body`, the implementation of the C function `name`. A panic is a bug: it is printed on
/// standard error and becomes `EIO`.
pub(crate) fn run<T>(name: &str, body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)));
    if let Err(errno) = result
        && errno != AGAIN
    {
        failed(name, errno);
    }
    result
}

/// Logs a failed call of a C function. A call that found nothing (`EAGAIN`, or `ENOENT` from a
/// poll) is logged at level debug.
#[cold]
fn failed(name: &str, errno: Errno) {
    let (name, why) =
        (name.trim_start_matches("sprat_"), std::io::Error::from_raw_os_error(errno.0));
    if matches!(errno.0, libc::EAGAIN | libc::ENOENT) {
        log!(Debug, "{name}: {why}");
    } else {
        log!(Error, "{name}: {why}");
    }
}

/// Runs `body`, the implementation of a C function. Returns a failure as its number and in errno,
/// since programs read either.
#[inline]
pub(crate) fn run_code(name: &str, body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match run(name, body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// Runs `body`, the implementation of a C function. Reports a failure by the value `failed` and in
/// errno.
pub(crate) fn run_errno<T>(name: &str, failed: T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    run(name, body).unwrap_or_else(|errno| {
        set_errno(errno);
        failed
    })
}

/// Converts a pointer of the C caller to a reference.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or refers to a `T` that stays alive and unwritten while the reference is in
/// use.
pub(crate) unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: The caller guarantees it.
    unsafe { pointer.as_ref() }.ok_or(INVALID)
}

/// Writes a value to the C caller's memory.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or a `T` may be written there.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(INVALID);
    }
    // SAFETY: The caller guarantees it.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes the first `room` bytes of a structure to the C caller's memory, and zeros if the
/// structure is shorter. The caller's headers determine how many bytes it knows.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or `room` bytes may be written there.
pub(crate) unsafe fn put_part<T: Copy>(
    pointer: *mut T,
    room: usize,
    value: &T,
) -> Result<(), Errno> {
    if pointer.is_null() {
        return Err(INVALID);
    }
    let known = room.min(size_of::<T>());
    // SAFETY: The value has `known` bytes, and the caller guarantees room for them. Padding may be
    // uninitialised, which a copy permits.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), pointer.cast(), known)
    };
    // SAFETY: The caller guarantees `room` bytes, of which `known` are written.
    unsafe { pointer.cast::<u8>().add(known).write_bytes(0, room - known) };
    Ok(())
}

/// Declares C functions that the libraries export under their names. The module documentation lists
/// the kinds.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        $kind:ident fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $crate::entry::entry! {
            $(#[$doc])*
            // SAFETY: The name is listed in `symbols.txt`, and the version script exports it from
            // one library only.
            #[unsafe(no_mangle)]
            $kind fn $name($($arg: $type),*) $(-> $result)? $body
        }
    )*};
}
pub(crate) use export;

/// Declares functions that C calls through a pointer. The kinds are those of [`export!`].
macro_rules! entry {
    ($(
        $(#[$meta:meta])*
        code fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
            $crate::entry::run_code(stringify!($name), || $body)
        }
    )*};
    ($(
        $(#[$meta:meta])*
        minus fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::entry::run_errno(stringify!($name), -1, || $body)
        }
    )*};
    ($(
        $(#[$meta:meta])*
        blocking fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            loop {
                // The stack holds nothing to drop here, so a cancelled thread leaks nothing.
                $crate::entry::test_cancel();
                match $crate::entry::run(stringify!($name), || $body) {
                    Ok(done) => return done,
                    Err($crate::entry::AGAIN) => {}
                    Err(errno) => {
                        $crate::entry::set_errno(errno);
                        return -1;
                    }
                }
            }
        }
    )*};
    ($(
        $(#[$meta:meta])*
        null fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::entry::run_errno(stringify!($name), $crate::entry::Null::NULL, || $body)
        }
    )*};
    ($(
        $(#[$meta:meta])*
        plain fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            $crate::entry::run_errno(stringify!($name), Default::default(), || $body)
        }
    )*};
}
pub(crate) use entry;
