//! Time as the protocols see it: nanoseconds since an arbitrary start, passed in by the caller.

use core::fmt;

/// The number of nanoseconds in one microsecond.
pub const US: u64 = 1_000;
/// The number of nanoseconds in one millisecond.
pub const MS: u64 = 1_000_000;
/// The number of nanoseconds in one second.
pub const SECOND: u64 = 1_000_000_000;

/// A point in time, in nanoseconds since a start that all callers of one state machine share.
///
/// A duration is a `u64` of nanoseconds in a variable whose name ends in `_ns`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant at which time starts, 0 ns.
    pub const ZERO: Self = Self(0);
    /// The instant of a deadline that never expires.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the instant `ns` nanoseconds after the start of time.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the start of time.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the instant `ns` nanoseconds later, or [`Instant::NEVER`] if it is out of range.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Returns the nanoseconds from `earlier` to `self`, or 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / SECOND, self.0 % SECOND)
    }
}
