//! How a C structure is written in Rust so that a test can compare its layout with C's.

use std::ffi::c_void;

/// A field: its name, offset and size in bytes.
pub type Field = (&'static str, usize, usize);

/// A structure as laid out here.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name in C, `struct …` or `union …`.
    pub c: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes that its address is a multiple of.
    pub align: usize,
    /// All fields that C has a name for.
    pub fields: &'static [Field],
}

/// A function of an interface that we do not offer: null, and programs see that it is.
pub type Absent = Option<extern "C" fn()>;

/// A pointer to what only C looks into.
pub type Opaque = *mut c_void;

/// Defines structures, and the table of their layouts. `"struct x" Name { field "c name": Type }`: the name in C is given
/// where it is not the field's own, and empty where C has none.
macro_rules! layouts {
    ($($(#[$doc:meta])* $c:literal $name:ident { $($(#[$field_doc:meta])* $field:ident $($c_field:literal)?: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            #[allow(missing_docs, reason = "the manual pages of verbs say what each field is")]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )*
        /// How the structures of this file are laid out.
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

/// The size of what a function finds in a structure, without calling it.
#[must_use]
pub const fn size_at<S, F>(_: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}
