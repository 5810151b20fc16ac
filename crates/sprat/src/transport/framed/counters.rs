//! The counters of a transport of frames.

use sprat_proto::rpc::Event;

use crate::count::counters;

counters! {
    /// The counters that every transport of frames has, since it was opened.
    pub(crate) struct Counters {
        /// Connections that this side opened.
        opened,
        /// Connections that this side accepted.
        accepted,
        /// Connections that ended, opened or accepted ones.
        ended,
        /// Requests that this client took from its caller.
        calls,
        /// Replies that this client handed to its caller.
        responses,
        /// Requests of this client that failed.
        failures,
        /// Requests that this server handed to the program.
        requests,
        /// Replies that this server took from the program.
        replies,
        /// Requests that this server refused.
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
        /// Replies that arrived after their request had failed, at the client.
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
