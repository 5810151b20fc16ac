//! Sequence numbers: 32 bits that wrap (RFC 9293 section 3.4).

use core::ops::{Add, Sub};

/// A sequence number. Two of one connection compare by the shorter way around the circle, so that
/// an order among numbers holds within 2³¹.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    /// Returns the distance from `from` on to this number, or 0 if this number is before `from`.
    #[inline]
    #[must_use]
    pub(super) const fn since(self, from: Self) -> u32 {
        let distance = self.0.wrapping_sub(from.0);
        if distance as i32 >= 0 { distance } else { 0 }
    }

    /// Returns true if this number is before `other`.
    #[inline]
    #[must_use]
    pub(super) const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns true if this number is `other` or after it.
    #[inline]
    #[must_use]
    pub(super) const fn reaches(self, other: Self) -> bool {
        !self.is_before(other)
    }

    /// Returns the later one of two numbers.
    #[inline]
    #[must_use]
    pub(super) const fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// Returns the earlier one of two numbers.
    #[inline]
    #[must_use]
    pub(super) const fn min(self, other: Self) -> Self {
        if self.is_before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    #[inline]
    fn add(self, len: u32) -> Self {
        Self(self.0.wrapping_add(len))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    #[inline]
    fn sub(self, len: u32) -> Self {
        Self(self.0.wrapping_sub(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_around_the_circle() {
        for start in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 5] {
            let (a, b) = (Seq(start), Seq(start) + 10);
            assert!(a.is_before(b) && !b.is_before(a) && b.reaches(a) && a.reaches(a));
            assert_eq!((b.since(a), a.since(b), b - 10), (10, 0, a));
            assert_eq!((a.max(b), a.min(b), b.max(a), b.min(a)), (b, a, b, a));
        }
    }
}
