//! The counters of a memif device, and their names.

/// Counters of a memif device.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) links: u64,
    pub(super) links_ended: u64,
    pub(super) links_refused: u64,
    pub(super) links_broken: u64,
    pub(super) rx_bad: u64,
    pub(super) tx_full: u64,
    pub(super) tx_invalid: u64,
    pub(super) tx_unconnected: u64,
}

impl Counts {
    /// Calls `each` with the name and the value of every counter of the device.
    pub(super) fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("links", self.links);
        each("links_ended", self.links_ended);
        each("links_refused", self.links_refused);
        each("links_broken", self.links_broken);
        each("frames_bad", self.rx_bad);
        each("frames_unsent", self.tx_full);
        each("frames_refused", self.tx_invalid);
        each("frames_unconnected", self.tx_unconnected);
    }
}
