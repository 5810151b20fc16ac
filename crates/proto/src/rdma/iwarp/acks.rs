//! Writes that are acknowledged when they are placed, between two engines of ours: so a signalled completion means that they
//! are in the peer's memory, as with InfiniBand, where iWARP's means no more than that TCP has them.
//!
//! ```text
//!   who has asked for the connection:  hello, with the first segment        the other: hello, with its first
//!   Write Write Write asks ─►  placed, placed, placed  ◄─ 3        completions of all three, and of what is behind them
//!                              refused                 ◄─ Terminate
//! ```
//!
//! All of it is said by Writes of no bytes ([`crate::wire::write_ack`]), which do nothing to any other peer: one that does not say
//! hello with its first segment is not asked any more, and Writes to it complete when the stream has taken them. Who asks is
//! the end that has a signalled request behind Writes; a Write without a signal costs nothing, and a peer that is never asked
//! and has nothing else to say says nothing. The answer rides behind an own
//! message where the program has one for the peer in time ([`Piggyback`]), else it goes by itself.
//!
//! Always: a count acknowledges only Writes that were sent, else the stream ends; what is said stands between messages,
//! never within one. Not here: the wire's form.

use crate::Instant;
use crate::wire::write_ack::WriteAck;

/// While more Writes follow, a question comes behind half of what is in progress: the peer places one half while the other is
/// framed. Behind fewer Writes than these a question would cost more than it brings.
const ASK_WRITES: u64 = 32;

/// A question comes behind this many bytes too: few enough that completions come while more is sent, many enough that the
/// answers cost nothing.
const ACK_BYTES: u64 = 512 << 10;

/// How long a peer that was asked and has said nothing yet may be one of ours that has not got to it.
pub(crate) const UNSURE_NS: u64 = 200 * crate::time::MS;

/// What is known of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Peer {
    /// It has said nothing yet.
    #[default]
    Unknown,
    /// The same, for so long that nothing waits for it any more.
    Silent,
    /// It acknowledges.
    Acknowledging,
    /// It does not.
    Plain,
}

/// Whether the answer should wait for an own message: it should if the last one could have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piggyback {
    pub(crate) pays: bool,
    /// When an answer last went by itself at once.
    pub(crate) alone: Instant,
}

/// See the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteAcks {
    pub(crate) peer: Peer,
    /// We have to say hello first.
    pub(crate) hello: bool,
    /// A peer of which nothing is known was asked.
    pub(crate) wonders: bool,
    /// Own Writes that were framed wholly,
    pub(crate) framed: u64,
    /// the bytes of those since the last question,
    pub(crate) bytes: u64,
    /// and how many of them are placed.
    pub(crate) acked: u64,
    /// A request waits for so many of them.
    pub(crate) wanted: u64,
    /// For how many we asked, the last two times.
    pub(crate) asked: [u64; 2],
    /// The peer's Writes that are placed,
    pub(crate) placed: u64,
    /// those that it knows of,
    pub(crate) told: u64,
    /// and whether it asks.
    pub(crate) owed: bool,
    /// When the answer goes by itself, if it waits for an own message.
    pub(crate) due: Option<Instant>,
    /// Since when it is owed.
    pub(crate) since: Instant,
    /// An own message has left meanwhile.
    pub(crate) ack_timers: bool,
    pub(crate) ride: Piggyback,
}

impl WriteAcks {
    /// The peer is treated as one that does not acknowledge.
    pub(crate) const fn foreign(&mut self) {
        self.peer = Peer::Plain;
        (self.hello, self.owed) = (false, false);
    }

    /// It does not.
    pub(crate) fn peer_is_plain(&self) -> bool {
        self.peer == Peer::Plain
    }

    /// Writes up to this one, counted from 1, count as placed.
    pub(crate) const fn acked(&self) -> u64 {
        match self.peer {
            Peer::Acknowledging | Peer::Unknown => self.acked,
            Peer::Silent | Peer::Plain => u64::MAX,
        }
    }

    /// Own Writes that were framed wholly.
    pub(crate) const fn framed(&self) -> u64 {
        self.framed
    }

    /// A Write was framed wholly.
    pub(crate) const fn wrote(&mut self, bytes: u32) {
        self.framed += 1;
        self.bytes += bytes as u64;
    }

    /// A request waits for all Writes that were framed.
    pub(crate) const fn want(&mut self) {
        self.wanted = self.framed;
    }

    /// The peer has done what comes behind the first `writes` Writes: they are placed.
    pub(crate) const fn passed(&mut self, writes: u64) {
        if writes > self.acked {
            self.acked = writes;
        }
    }

    /// A Write of the peer's was placed wholly.
    pub(crate) const fn took(&mut self) {
        self.placed += 1;
    }

    /// The peer acknowledges.
    pub(crate) fn peer_acknowledges(&self) -> bool {
        self.peer == Peer::Acknowledging
    }

    /// The peer has said nothing, and is waited for no longer; true if it was.
    pub(crate) fn stop_waiting(&mut self) -> bool {
        let unknown = self.peer == Peer::Unknown;
        if unknown {
            self.peer = Peer::Silent;
        }
        unknown
    }

    /// The peer's first segment says what it is. True if that was to be found out.
    pub(crate) fn learn_peer(&mut self, said: Option<WriteAck>, answers: bool) -> bool {
        if matches!(self.peer, Peer::Acknowledging | Peer::Plain) {
            return false;
        }
        if said.is_some_and(|said| said.hello) {
            self.peer = Peer::Acknowledging;
            self.hello = answers;
        } else {
            self.foreign();
        }
        true
    }

    /// An answer has to be sent before the end.
    pub(crate) const fn is_pending(&self) -> bool {
        self.owed
    }

    /// What is to be said before a Terminate, so that the peer knows which Writes were right; or, where `asked`, only if it
    /// has asked.
    pub(crate) fn last_words(&self, asked: bool) -> Option<WriteAck> {
        let news = self.owed || !asked && (self.hello || self.placed > self.told);
        (self.peer == Peer::Acknowledging && news).then_some(WriteAck {
            hello: self.hello,
            ack_request: false,
            count: self.placed,
        })
    }

    /// There are Writes to ask for.
    pub(crate) fn asks(&self) -> bool {
        let may_be_ours = matches!(self.peer, Peer::Acknowledging | Peer::Unknown);
        may_be_ours && self.wanted > self.asked[1] && self.wanted > self.acked
    }

    /// Something has to be said before the next own message.
    pub(crate) fn is_due(&self, queued: usize) -> bool {
        (self.owed && self.ack_timers)
            || (self.asks() && (self.half_is_framed(queued) || self.bytes >= ACK_BYTES))
    }

    /// Half of the requests in progress, `queued` of them, are framed since the last question.
    pub(crate) fn half_is_framed(&self, queued: usize) -> bool {
        self.framed - self.asked[1] >= ASK_WRITES.max(queued as u64 / 2)
    }

    /// A peer of which nothing is known was asked for the first time.
    pub(crate) const fn take_first_request(&mut self) -> bool {
        core::mem::replace(&mut self.wonders, false)
    }
}
