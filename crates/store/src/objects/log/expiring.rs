//! The times at which objects of the log expire: the earliest one of each segment.

use super::Log;
use crate::objects::segment::Location;
use crate::types::WallTime;

impl Log {
    /// Notes the time at which the object at `at` expires.
    #[inline]
    pub fn expires(&mut self, at: Location, expires: WallTime) {
        if expires != WallTime::NEVER {
            let earliest = &mut self.slots[at.slot()].expires;
            *earliest = expires.min(*earliest);
            self.has_expiring = true;
        }
    }

    /// Returns false if no object of the log expires.
    #[must_use]
    #[inline]
    pub fn has_expiring(&self) -> bool {
        self.has_expiring
    }

    /// Returns the earliest time at which an object of the segment in `slot` may expire.
    #[must_use]
    pub fn earliest_expiry(&self, slot: usize) -> WallTime {
        self.slots[slot].expires
    }

    /// Sets the earliest time at which an object of the segment in `slot` expires, after all its
    /// entries were read.
    pub(in crate::objects) fn set_earliest_expiry(&mut self, slot: usize, expires: WallTime) {
        self.slots[slot].expires = expires;
    }

    /// Finds out whether an object of the log expires, after all segments were read.
    pub(in crate::objects) fn note_expiring(&mut self) {
        self.has_expiring = self.slots.iter().any(|segment| segment.expires != WallTime::NEVER);
    }
}
