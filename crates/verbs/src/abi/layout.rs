//! The macro that declares a C structure together with a table of its layout.

use std::ffi::c_void;

/// A field of a C structure: its name, and its offset and size in bytes.
pub type Field = (&'static str, usize, usize);

/// The layout of one C structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name of the structure in C, `struct …` or `union …`.
    pub c: &'static str,
    /// The size of the C structure in bytes.
    pub size: usize,
    /// The alignment of the C structure in bytes.
    pub align: usize,
    /// All fields of the structure that have a name in C.
    pub fields: &'static [Field],
}

/// A function that this device does not offer. Programs test the pointer for null.
pub type Absent = Option<extern "C" fn()>;

/// A pointer to memory that this library does not read.
pub type Opaque = *mut c_void;

/// Declares C structures and the table of their layouts.
///
/// `"struct x" Name { field "c name": Type }` declares a field. The name in C is omitted if it
/// equals the field's, and is empty if C has none.
macro_rules! layouts {
    ($(
        $(#[$doc:meta])*
        $c:literal $name:ident {
            $($(#[$field_doc:meta])* $field:ident $($c_field:literal)?: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the manual pages of verbs say what each field is")]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )*
        /// The layouts of the C structures that this file declares.
        pub const LAYOUTS: &[$crate::abi::layout::Layout] = &[$($crate::abi::layout::Layout {
            c: $c,
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$((
                $crate::abi::layout::layouts!(@name $field $($c_field)?),
                std::mem::offset_of!($name, $field),
                $crate::abi::layout::size_at(|s: &$name| &raw const s.$field),
            ),)*],
        },)*];
    };
    (@name $field:ident $c_field:literal) => { $c_field };
    (@name $field:ident) => { stringify!($field) };
}
pub(crate) use layouts;

/// The size of the field to which the function returns a pointer. The function is never called.
#[must_use]
pub const fn size_at<S, F>(_: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}
