//! A macro for structures of counters.

/// Defines a structure whose fields count events or drops, each from zero upwards.
///
/// The structure gets a method `each` that calls a function with every counter's name and value.
/// The names begin with the given prefix, so that counters of several layers can share a table.
macro_rules! counters {
    ($(#[$outer:meta])+ $Name:ident, $prefix:literal, $($(#[$doc:meta])+ $name:ident,)+) => {
        $(#[$outer])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $Name {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl $Name {
            /// Calls `each` with the name and the value of every counter of the structure.
            pub fn each(&self, each: &mut dyn FnMut(&'static str, u64)) {
                $(each(concat!($prefix, stringify!($name)), self.$name);)+
            }
        }
    };
}

pub(crate) use counters;
