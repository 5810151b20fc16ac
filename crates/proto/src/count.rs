//! Structures of counters: one for each reason to drop something, one for each event worth knowing. They only grow.

/// Defines a structure whose fields are counters, and `each`, which tells their names, behind a prefix that sets them apart
/// from those of other layers, and numbers.
macro_rules! counters {
    ($(#[$outer:meta])+ $Name:ident, $prefix:literal, $($(#[$doc:meta])+ $name:ident,)+) => {
        $(#[$outer])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $Name {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl $Name {
            /// Names and numbers.
            pub fn each(&self, each: &mut dyn FnMut(&'static str, u64)) {
                $(each(concat!($prefix, stringify!($name)), self.$name);)+
            }
        }
    };
}

pub(crate) use counters;
