//! Structures of counters that can be told by name.

/// Defines a structure whose fields are counters, and `each`, which tells them all.
macro_rules! counters {
    ($(#[$outer:meta])+ $seen:vis struct $Name:ident { $($(#[$doc:meta])* $name:ident,)+ }) => {
        $(#[$outer])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $seen struct $Name {
            $($(#[$doc])* $seen $name: u64,)+
        }

        impl $Name {
            /// Names and numbers.
            $seen fn each(&self, each: &mut dyn FnMut(&'static str, u64)) {
                $(each(stringify!($name), self.$name);)+
            }
        }
    };
}

pub(crate) use counters;
