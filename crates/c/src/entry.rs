//! The boundary between C and Rust: it turns failures into statuses and stops panics.
//!
//! ```text
//!   export! { fn sprat_x(a: A) { … Ok(()) } }          a status, and the error as last argument
//!   export! { plain(b) fn sprat_x(a: A) -> T { … } }   a value without an error, `b` after a panic
//! ```

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::ErrorOut;
use crate::status::{Failure, Status};

/// Runs `body`, the implementation of a C function. Returns its status, and describes a failure in
/// `error`. A panic is a bug and becomes [`Status::Internal`].
#[inline]
pub(crate) fn run(error: &ErrorOut, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body));
    match result.unwrap_or_else(|payload| Err(Failure::panicked(&*payload))) {
        Ok(()) => {
            error.clear();
            Status::Ok as c_int
        }
        Err(failure) => {
            error.set(&failure);
            failure.status as c_int
        }
    }
}

/// Runs `body`, the implementation of a C function that reports no error. Returns `otherwise` after
/// a panic, which is a bug.
#[inline]
pub(crate) fn plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Declares C functions that the library exports under their names. The module documentation lists
/// the kinds.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "C has neither slices nor methods")]
        // SAFETY: The prefix keeps the name apart from those of other libraries.
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name(
            $($arg: $type,)*
            error: $crate::error::ErrorOut,
        ) -> std::ffi::c_int {
            $crate::entry::run(&error, || $body)
        }
    )*};
    ($(
        $(#[$doc:meta])*
        plain($otherwise:expr) fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty
            $body:block
    )*) => {$(
        $(#[$doc])*
        // SAFETY: The prefix keeps the name apart from those of other libraries.
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> $result {
            $crate::entry::plain($otherwise, || $body)
        }
    )*};
}
pub(crate) use export;
