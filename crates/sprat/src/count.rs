//! Structures of counters, each of which has a name and a value.

/// Defines a structure whose fields are counters. Its method `each` reports the name and the value
/// of every counter.
macro_rules! counters {
    ($(#[$outer:meta])+ $seen:vis struct $Name:ident { $($(#[$doc:meta])* $name:ident,)+ }) => {
        $(#[$outer])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $seen struct $Name {
            $($(#[$doc])* $seen $name: u64,)+
        }

        impl $Name {
            /// Calls `each` with the name and the value of every counter.
            $seen fn each(&self, each: &mut dyn FnMut(&'static str, u64)) {
                $(each(stringify!($name), self.$name);)+
            }
        }
    };
}

pub(crate) use counters;
