//! Writes that are acknowledged when they are placed, between two engines of ours: so a signalled completion means that they
//! are in the peer's memory, as with InfiniBand, where iWARP's means no more than that TCP has them.
//!
//! ```text
//!   who has asked for the connection:  hello, with the first segment        the other: hello, with its first
//!   Write Write Write asks ─►  placed, placed, placed  ◄─ 3        completions of all three, and of what is behind them
//!                              refused                 ◄─ Terminate
//! ```
//!
//! All of it is said by Writes of no octets ([`crate::wire::write_ack`]), which do nothing to any other peer: one that does not say
//! hello with its first segment is not asked any more, and Writes to it complete when the stream has taken them. Who asks is
//! the end that has a signalled request behind Writes; a Write without a signal costs nothing, and a peer that is never asked
//! and has nothing else to say says nothing. The answer rides behind an own
//! message where the program has one for the peer in time ([`Ride`]), else it goes by itself.
//!
//! Always: a count acknowledges only Writes that were sent, else the stream ends; what is said stands between messages,
//! never within one. Not here: the wire's form.

use crate::Instant;
use crate::rdma::iwarp::tx::Out;
use crate::rdma::qp::QueuePair;
use crate::rdma::rnic::Shared;
use crate::rdma::rnic::poll::LONGEST_NS;
use crate::rdma::{Memory, QpState, Unmapped};
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::Placed;

/// While more Writes follow, a question comes behind half of what is in progress: the peer places one half while the other is
/// framed. Behind fewer Writes than these a question would cost more than it brings.
const ASK_WRITES: u64 = 32;
/// A question comes behind this many octets too: few enough that completions come while more is sent, many enough that the
/// answers cost nothing.
const ASK_OCTETS: u64 = 512 << 10;
/// How long a peer that was asked and has said nothing yet may be one of ours that has not got to it.
pub(crate) const UNSURE_NS: u64 = 200 * crate::time::MS;

/// What is known of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Peer {
    /// It has said nothing yet.
    #[default]
    Unknown,
    /// The same, for so long that nothing waits for it any more.
    Silent,
    /// It acknowledges.
    Ours,
    /// It does not.
    Foreign,
}

/// Whether the answer should wait for an own message: it should if the last one could have.
#[derive(Clone, Copy, Debug, Default)]
struct Ride {
    pays: bool,
    /// When an answer last went by itself at once.
    alone: Instant,
}

/// See the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    peer: Peer,
    /// We have to say hello first.
    hello: bool,
    /// A peer of which nothing is known was asked.
    wonders: bool,
    /// Own Writes that were framed wholly,
    framed: u64,
    /// the octets of those since the last question,
    octets: u64,
    /// and how many of them are placed.
    acked: u64,
    /// A request waits for so many of them.
    wanted: u64,
    /// For how many we asked, the last two times.
    asked: [u64; 2],
    /// The peer's Writes that are placed,
    placed: u64,
    /// those that it knows of,
    told: u64,
    /// and whether it asks.
    owed: bool,
    /// When the answer goes by itself, if it waits for an own message.
    due: Option<Instant>,
    /// Since when it is owed.
    since: Instant,
    /// An own message has left meanwhile.
    rides: bool,
    ride: Ride,
}

impl Placement {
    /// The peer is treated as one that does not acknowledge.
    pub(crate) const fn foreign(&mut self) {
        self.peer = Peer::Foreign;
        (self.hello, self.owed) = (false, false);
    }

    /// It does not.
    pub(crate) fn is_foreign(&self) -> bool {
        self.peer == Peer::Foreign
    }

    /// Writes up to this one, counted from 1, count as placed.
    pub(crate) const fn acked(&self) -> u64 {
        match self.peer {
            Peer::Ours | Peer::Unknown => self.acked,
            Peer::Silent | Peer::Foreign => u64::MAX,
        }
    }

    /// Own Writes that were framed wholly.
    pub(crate) const fn framed(&self) -> u64 {
        self.framed
    }

    /// A Write was framed wholly.
    pub(crate) const fn wrote(&mut self, octets: u32) {
        self.framed += 1;
        self.octets += octets as u64;
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
    pub(crate) fn is_ours(&self) -> bool {
        self.peer == Peer::Ours
    }

    /// The peer has said nothing, and is waited for no longer; true if it was.
    pub(crate) fn gives_up(&mut self) -> bool {
        let unknown = self.peer == Peer::Unknown;
        if unknown {
            self.peer = Peer::Silent;
        }
        unknown
    }

    /// The peer's first segment says what it is. True if that was to be found out.
    pub(crate) fn meet(&mut self, said: Option<Placed>, answers: bool) -> bool {
        if matches!(self.peer, Peer::Ours | Peer::Foreign) {
            return false;
        }
        if said.is_some_and(|said| said.hello) {
            self.peer = Peer::Ours;
            self.hello = answers;
        } else {
            self.foreign();
        }
        true
    }

    /// An answer has to be sent before the end.
    pub(crate) const fn is_owed(&self) -> bool {
        self.owed
    }

    /// What is to be said before a Terminate, so that the peer knows which Writes were right; or, where `asked`, only if it
    /// has asked.
    pub(crate) fn last_words(&self, asked: bool) -> Option<Placed> {
        let news = self.owed || !asked && (self.hello || self.placed > self.told);
        (self.peer == Peer::Ours && news).then_some(Placed {
            hello: self.hello,
            asks: false,
            count: self.placed,
        })
    }

    /// There are Writes to ask for.
    fn asks(&self) -> bool {
        let may_be_ours = matches!(self.peer, Peer::Ours | Peer::Unknown);
        may_be_ours && self.wanted > self.asked[1] && self.wanted > self.acked
    }

    /// Something has to be said before the next own message.
    fn must_speak(&self, queued: usize) -> bool {
        (self.owed && self.rides)
            || (self.asks() && (self.is_half(queued) || self.octets >= ASK_OCTETS))
    }

    /// Half of the requests in progress, `queued` of them, are framed since the last question.
    fn is_half(&self, queued: usize) -> bool {
        self.framed - self.asked[1] >= ASK_WRITES.max(queued as u64 / 2)
    }

    /// A peer of which nothing is known was asked for the first time.
    pub(crate) const fn begins_to_wonder(&mut self) -> bool {
        core::mem::replace(&mut self.wonders, false)
    }
}

impl QueuePair {
    /// An own message was sent wholly.
    pub(crate) fn message_left(&mut self, now: Instant) {
        let it = &mut self.placement;
        if it.owed {
            it.rides = true;
        } else if it.ride.alone > Instant::ZERO {
            it.ride.pays |= now.since(it.ride.alone) < LONGEST_NS;
            it.ride.alone = Instant::ZERO;
        }
    }

    /// Says what has to be said before the next own message; false if that is nothing.
    pub(crate) fn speak_first<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Unmapped> {
        let (it, queued) = (&self.placement, self.send.len());
        let greets = it.hello && (self.send.has_work() || !self.answers.is_empty());
        if greets || it.must_speak(queued) {
            self.speak(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// Says what there is to say when no own message is left to be sent; false if that is nothing, or can wait.
    pub(crate) fn speak_last<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Unmapped> {
        let it = &self.placement;
        let asks = it.asks() && it.asked[0] <= it.acked;
        let (speaks, owed) = (asks || it.must_speak(self.send.len()), it.owed);
        if speaks || (owed && !self.waits_for_a_ride(shared)) {
            self.speak(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// The answer that is owed waits for an own message.
    fn waits_for_a_ride(&mut self, shared: &mut Shared) -> bool {
        let it = &mut self.placement;
        let due = it.since.after(LONGEST_NS);
        if !it.ride.pays || shared.now >= due || self.state != QpState::Ready {
            return false;
        }
        if it.due.is_none() {
            it.due = Some(due);
            shared.rides.push_back((due, self.number));
        }
        true
    }

    fn speak<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<(), Unmapped> {
        let queued = self.send.len();
        let it = &mut self.placement;
        let asks = it.asks();
        out.record.push |= asks && it.is_half(queued);
        let said = Placed { hello: it.hello, asks, count: it.placed };
        out.frame(&said.header(), &[])?;
        if it.owed {
            let waited = it.due.take().is_some();
            if waited && shared.rides.front().is_some_and(|(_, qp)| *qp == self.number) {
                shared.rides.pop_front();
            }
            if it.rides {
                it.ride.pays = true;
            } else {
                it.ride = Ride { pays: false, alone: shared.now };
            }
        }
        (it.hello, it.owed, it.rides, it.told) = (false, false, false, it.placed);
        if asks {
            it.wonders = it.peer == Peer::Unknown && it.asked[1] == 0;
            it.asked = [it.asked[1], it.framed];
            it.octets = 0;
        }
        Ok(())
    }

    /// Says hello with the first segment.
    pub(crate) fn hello<M: Memory>(&mut self, out: &mut Out<'_, M>) -> Result<(), Unmapped> {
        self.placement.hello = false;
        out.frame(&Placed { hello: true, ..Placed::default() }.header(), &[])
    }

    /// The peer says something.
    pub(crate) fn heard(&mut self, said: Placed, shared: &mut Shared) -> Result<(), Cause> {
        let it = &mut self.placement;
        if it.peer != Peer::Ours {
            return Ok(());
        }
        if said.count > it.framed {
            return Err(Cause::OPERATION);
        }
        if said.asks && !it.owed {
            (it.owed, it.rides, it.since) = (true, false, shared.now);
        }
        it.passed(said.count);
        self.release(shared);
        Ok(())
    }
}
