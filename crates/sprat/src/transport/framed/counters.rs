//! The counters of a transport of frames.

use sprat_proto::rpc::Event;

use crate::count::counters;

counters! {
    /// The counters that every transport of frames has, since it was opened.
    pub(crate) struct Counters {
        /// Connections opened from here.
        opened,
        /// Connections accepted.
        accepted,
        /// Connections ended, of those opened and those accepted.
        ended,
        /// Client: requests taken from the caller.
        calls,
        /// Client: replies handed to the caller.
        responses,
        /// Client: requests that failed.
        failures,
        /// Server: requests handed to the program.
        requests,
        /// Server: replies taken from the program.
        replies,
        /// Server: requests refused.
        refused,
        /// Connections ended because the peer speaks another version or another protocol.
        bad_version,
        /// Connections ended because the peer broke a rule of the frames or of their carrier.
        bad_field,
        /// Accepted connections ended because no frame arrived in time.
        silent,
        /// Accepted connections ended because a message stopped arriving, was the slowest while
        /// others waited for room, or because the peer took no reply.
        stalled,
        /// Replies that arrived after their request had failed.
        unsolicited,
    }
}

impl Counters {
    /// Counts an event that is handed up.
    pub(super) fn count(&mut self, event: &Event<'_>) {
        match event {
            Event::Request { .. } => self.requests += 1,
            Event::Response { .. } => self.responses += 1,
            Event::Failed { .. } => self.failures += 1,
            Event::Closed { .. } => {}
        }
    }
}
