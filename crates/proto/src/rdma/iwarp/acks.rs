//! The state of acknowledged Writes. Two engines of this kind acknowledge Writes when they are
//! placed, so a signaled completion means that the data is in the peer's memory, as with
//! InfiniBand. Plain iWARP only tells that TCP has the data.
//!
//! ```text
//!   initiator: hello, with its first segment           responder: hello, with its first segment
//!   Write Write Write request ─►  placed ×3  ◄─ ack 3   three completions, and those behind them
//!                                 refused    ◄─ Terminate
//! ```
//!
//! All of this travels as empty Writes ([`crate::wire::write_ack`]), which have no effect on other
//! peers. A peer whose first segment is no hello gets no more requests, and Writes to it complete
//! when the stream has taken them. An end requests an acknowledgement when it has a signaled
//! request behind Writes. A Write without a signal costs nothing, and a peer without requests and
//! without own segments sends nothing. An acknowledgement waits for an own message to follow it if
//! the program sends one soon ([`Piggyback`]); otherwise it goes alone.
//!
//! Invariant: a count acknowledges only Writes that were framed, otherwise the stream ends; an
//! acknowledgement stands between messages, never within one.
//!
//! Not here: the format on the wire, and the steps (`write_ack`).

use crate::Instant;
use crate::wire::write_ack::WriteAck;

/// While more Writes follow, the engine requests an acknowledgement behind half of the requests in
/// progress, so that the peer places one half while this end frames the other. For fewer Writes
/// than this constant, a request for an acknowledgement costs more than it gains.
const REQUEST_WRITES: u64 = 32;

/// The engine also requests an acknowledgement of Writes after this many bytes: few enough that
/// completions come during a transfer, and many enough that acknowledgements cost nothing.
const REQUEST_BYTES: u64 = 512 << 10;

/// The time after which a peer counts as silent if it has received a request for an acknowledgement
/// and has sent nothing.
pub(crate) const UNSURE_NS: u64 = 200 * crate::time::MS;

/// The engine's knowledge of the peer: it acknowledges Writes, does not, or has sent nothing yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Peer {
    /// The peer has not sent a segment yet, so it may acknowledge Writes or not.
    #[default]
    Unknown,
    /// The peer has sent nothing for so long that no completion of a Write waits for it any more.
    Silent,
    /// The peer acknowledges Writes.
    Acknowledging,
    /// The peer does not acknowledge Writes.
    Plain,
}

/// The decision to hold an acknowledgement of Writes until this end sends a message of its own. It
/// pays if the last acknowledgement could have waited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piggyback {
    pub(crate) pays: bool,
    /// The time at which an acknowledgement was last sent at once and alone, without a message
    /// behind it.
    pub(crate) alone: Instant,
}

/// The acknowledgements of Writes in both directions of a queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteAcks {
    pub(crate) peer: Peer,
    /// True if this end must still send its hello.
    pub(crate) hello: bool,
    /// True if the first request for an acknowledgement to an unknown peer was framed.
    pub(crate) first_request: bool,
    /// The number of this end's Writes that are framed.
    pub(crate) framed: u64,
    /// The bytes of this end's Writes since its last request for an acknowledgement.
    pub(crate) bytes: u64,
    /// The number of this end's Writes that the peer has placed.
    pub(crate) acked: u64,
    /// The number of this end's Writes whose acknowledgement a signaled work request waits for.
    pub(crate) wanted: u64,
    /// The counts of this end's Writes up to which its last two requests for an acknowledgement
    /// asked.
    pub(crate) asked: [u64; 2],
    /// The number of the peer's Writes that are placed in this end's memory.
    pub(crate) placed: u64,
    /// The number of the peer's Writes that this end has acknowledged.
    pub(crate) reported: u64,
    /// True if the peer has requested an acknowledgement that this end has not sent yet.
    pub(crate) pending: bool,
    /// The time at which a held acknowledgement leaves even without a message behind it.
    pub(crate) due: Option<Instant>,
    /// The time at which the peer's request for an acknowledgement arrived.
    pub(crate) requested_at: Instant,
    /// True if this end framed a message after the peer's request for an acknowledgement.
    pub(crate) message_framed: bool,
    pub(crate) ride: Piggyback,
}

impl WriteAcks {
    /// Treats the peer as one that does not acknowledge Writes.
    pub(crate) const fn set_plain(&mut self) {
        self.peer = Peer::Plain;
        (self.hello, self.pending) = (false, false);
    }

    /// True if the peer does not acknowledge Writes.
    pub(crate) fn peer_is_plain(&self) -> bool {
        self.peer == Peer::Plain
    }

    /// The number of this end's Writes that count as placed in the peer's memory.
    pub(crate) const fn acked(&self) -> u64 {
        match self.peer {
            Peer::Acknowledging | Peer::Unknown => self.acked,
            Peer::Silent | Peer::Plain => u64::MAX,
        }
    }

    /// The number of this end's Writes that are framed.
    pub(crate) const fn framed(&self) -> u64 {
        self.framed
    }

    /// Counts a Write that this end has framed.
    pub(crate) const fn write_framed(&mut self, bytes: u32) {
        self.framed += 1;
        self.bytes += bytes as u64;
    }

    /// Makes a signaled work request wait until the peer acknowledges all framed Writes.
    pub(crate) const fn await_framed(&mut self) {
        self.wanted = self.framed;
    }

    /// Counts this end's first `writes` Writes as placed, since the peer has executed a later
    /// request.
    pub(crate) const fn ack_up_to(&mut self, writes: u64) {
        if writes > self.acked {
            self.acked = writes;
        }
    }

    /// Counts a Write of the peer that is placed.
    pub(crate) const fn write_placed(&mut self) {
        self.placed += 1;
    }

    /// True if the peer acknowledges Writes.
    pub(crate) fn peer_acknowledges(&self) -> bool {
        self.peer == Peer::Acknowledging
    }

    /// Stops waiting for acknowledgements of Writes from a peer that has sent nothing. Returns true
    /// if a work request waited.
    pub(crate) fn stop_waiting(&mut self) -> bool {
        let unknown = self.peer == Peer::Unknown;
        if unknown {
            self.peer = Peer::Silent;
        }
        unknown
    }

    /// Learns from the peer's first segment if the peer acknowledges Writes. Returns true if that
    /// was unknown.
    pub(crate) fn learn_peer(&mut self, ack: Option<WriteAck>, answers: bool) -> bool {
        if matches!(self.peer, Peer::Acknowledging | Peer::Plain) {
            return false;
        }
        if ack.is_some_and(|ack| ack.hello) {
            self.peer = Peer::Acknowledging;
            self.hello = answers;
        } else {
            self.set_plain();
        }
        true
    }

    /// True if the peer's request for an acknowledgement must be answered before the stream ends.
    pub(crate) const fn is_pending(&self) -> bool {
        self.pending
    }

    /// The last acknowledgement of the peer's Writes before the stream ends. Before a Terminate it
    /// tells the peer which Writes were right. With `asked`, only an acknowledgement that the peer
    /// requested counts.
    pub(crate) fn final_ack(&self, asked: bool) -> Option<WriteAck> {
        let news = self.pending || !asked && (self.hello || self.placed > self.reported);
        (self.peer == Peer::Acknowledging && news).then_some(WriteAck {
            hello: self.hello,
            ack_request: false,
            count: self.placed,
        })
    }

    /// True if this end should request an acknowledgement of its Writes.
    pub(crate) fn asks(&self) -> bool {
        let may_be_ours = matches!(self.peer, Peer::Acknowledging | Peer::Unknown);
        may_be_ours && self.wanted > self.asked[1] && self.wanted > self.acked
    }

    /// True if an acknowledgement, or a request for one, must leave before this end's next message.
    pub(crate) fn is_due(&self, queued: usize) -> bool {
        (self.pending && self.message_framed)
            || (self.asks() && (self.half_is_framed(queued) || self.bytes >= REQUEST_BYTES))
    }

    /// True if this end, which has no message to send, should request an acknowledgement of its
    /// Writes. A program that posts one by one leaves it without a message behind each post. So a
    /// second request, while the first has no answer, waits for a quarter of the `queued` work
    /// requests, and there is no third.
    pub(crate) fn asks_when_idle(&self, queued: usize) -> bool {
        let since = self.framed - self.asked[1];
        let answered = self.asked[1] <= self.acked;
        let second = self.asked[0] <= self.acked && since >= queued as u64 / 4;
        self.asks() && (answered || second)
    }

    /// True if this end has framed half of its `queued` work requests since its last request for an
    /// acknowledgement.
    pub(crate) fn half_is_framed(&self, queued: usize) -> bool {
        self.framed - self.asked[1] >= REQUEST_WRITES.max(queued as u64 / 2)
    }

    /// Returns true once, after the first request for an acknowledgement to an unknown peer.
    pub(crate) const fn take_first_request(&mut self) -> bool {
        core::mem::replace(&mut self.first_request, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_request_waits_for_a_quarter_of_the_writes_in_progress() {
        let acks = |asked: [u64; 2], acked: u64, framed: u64| WriteAcks {
            peer: Peer::Acknowledging,
            wanted: framed,
            framed,
            asked,
            acked,
            ..WriteAcks::default()
        };
        assert!(acks([0, 0], 0, 1).asks_when_idle(128), "the first");
        assert!(!acks([0, 1], 0, 32).asks_when_idle(128));
        assert!(acks([0, 1], 0, 33).asks_when_idle(128), "a quarter");
        assert!(acks([0, 1], 0, 2).asks_when_idle(2), "few in progress");
        assert!(!acks([1, 33], 0, 128).asks_when_idle(128), "both without an answer");
        assert!(acks([1, 33], 33, 34).asks_when_idle(128), "both answered");
        assert!(!acks([0, 1], 0, 1).asks_when_idle(2), "nothing new");
    }
}
