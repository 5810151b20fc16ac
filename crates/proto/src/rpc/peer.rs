//! The peers: the endpoints at other addresses. One entry for each address is shared by all
//! sessions with it. An entry holds the path, the transmit queues and the state of the handshakes.
//!
//! Always: a session names a peer that is in use; a peer is freed when its last session has ended.

use alloc::collections::VecDeque;

use super::path::Path;
use super::session::{HALF, ahead};
use super::slab::{NONE, Slab};
use super::srpt_queue::SrptQueue;
use crate::rand::KeyedHash;
use crate::{Addr, Instant, Rng};

/// The maximum of unanswered OPENs to one peer, counted from the oldest. The server remembers as
/// many.
pub(super) const OPEN_WINDOW: usize = 64;

/// An OPEN that the server accepted, with the session that it opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedOpen {
    /// The OPEN's number; a client numbers its OPENs to one server.
    pub(super) number: u32,
    pub(super) nonce: u64,
    /// The name of the session that the server opened for the OPEN.
    pub(super) server: u32,
}

/// A peer: the other endpoint at one address.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: Addr,
    /// The number of sessions, of the client half or the server half, with the peer.
    pub(super) sessions: u32,
    /// True if the driver reported that the peer is gone.
    pub(super) gone: bool,
    /// The slots that have a single-packet message for the peer, in order, each with its ticket. An
    /// entry whose ticket differs from the slot's is stale.
    pub(super) short: VecDeque<(u32, u64)>,
    /// The number of stale entries of `short`, the queue of single-packet messages.
    pub(super) stale: usize,
    pub(super) next_ticket: u64,
    /// The slots that have a long message to send to the peer.
    pub(super) long: SrptQueue,
    /// True while the endpoint's list of peers with something to send holds the peer.
    pub(super) active: bool,
    /// True if the driver was full towards this peer at the last attempt. Messages then wait in the
    /// peer's queues, in order.
    pub(super) blocked: bool,
    /// The time when the driver last took a queued packet to the peer.
    pub(super) progress: Instant,
    /// The client's sessions that wait for their OPEN to be sent, by index and epoch.
    pub(super) to_open: VecDeque<(u32, u32)>,
    /// The client's sessions whose OPEN is unanswered, by index and epoch, the oldest first.
    pub(super) opening: VecDeque<(u32, u32)>,
    /// The time when the timing wheel fires for the peer's `opening` sessions.
    pub(super) open_due: Instant,
    /// Client: the number of the last OPEN that was sent to the peer.
    pub(super) opens: u32,
    /// Server: the incarnation of the client, which it sends in each OPEN.
    pub(super) incarnation: u64,
    /// Server: the largest number among the OPENs that the client sent.
    pub(super) newest: u32,
    /// Server: the accepted OPENs among the last 64 numbers of the client's OPENs.
    pub(super) recent: VecDeque<AcceptedOpen>,
    /// The number of bytes of a message that the peer receives without a grant.
    pub(super) unscheduled: u32,
    /// Client: the number of payload bytes in a full packet to the peer.
    pub(super) mss: u16,
    pub(super) path: Path,
    /// The number of probes in a row that the peer has not answered.
    pub(super) silent: u8,
    /// The time before which no further probe goes to the peer, because one is unanswered.
    pub(super) probing_until: Instant,
    /// The time of the last probe to the peer.
    pub(super) probed_at: Instant,
}

impl Peer {
    fn fresh(addr: Addr) -> Self {
        Self {
            addr,
            sessions: 0,
            gone: false,
            short: VecDeque::new(),
            stale: 0,
            next_ticket: 0,
            long: SrptQueue::default(),
            active: false,
            blocked: false,
            progress: Instant::ZERO,
            to_open: VecDeque::new(),
            opening: VecDeque::new(),
            open_due: Instant::NEVER,
            opens: 0,
            incarnation: 0,
            newest: 0,
            recent: VecDeque::new(),
            unscheduled: 0,
            mss: 0,
            path: Path::new(),
            silent: 0,
            probing_until: Instant::ZERO,
            probed_at: Instant::ZERO,
        }
    }

    /// Records that an authentic packet arrived from the peer.
    #[inline]
    pub(super) const fn record_activity(&mut self) {
        self.silent = 0;
        self.probing_until = Instant::ZERO;
    }

    /// True if another OPEN may be sent to the peer.
    pub(super) fn may_open(&self) -> bool {
        !self.to_open.is_empty() && self.opening.len() < OPEN_WINDOW
    }
}

/// All peers of an endpoint. The hash of an address is keyed, so an attacker cannot choose
/// colliding addresses.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) slab: Slab<Peer>,
    by_addr: hashbrown::HashMap<Addr, u32, KeyedHash>,
    last: u32,
    /// The largest number of an OPEN to a peer that was freed. A new peer's numbers begin behind
    /// it: the server at its address may remember earlier ones, and would take equal ones for
    /// copies of them.
    opens: u32,
}

impl Peers {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let hash = KeyedHash::new(rng);
        Self {
            slab: Slab::new(),
            by_addr: hashbrown::HashMap::with_hasher(hash),
            last: NONE,
            opens: 0,
        }
    }

    pub(super) fn find(&self, addr: Addr) -> Option<u32> {
        if self.slab.get(self.last).is_some_and(|p| p.addr == addr && !p.gone) {
            return Some(self.last);
        }
        self.by_addr.get(&addr).copied()
    }

    /// Adds a session to the peer at `addr`, which is created if there is none.
    pub(super) fn add_session(&mut self, addr: Addr) -> u32 {
        let i = self.find(addr).unwrap_or_else(|| {
            let i = self.slab.alloc(|_| Peer::fresh(addr));
            self.slab[i] = Peer { opens: self.opens, ..Peer::fresh(addr) };
            self.by_addr.insert(addr, i);
            i
        });
        self.slab[i].sessions += 1;
        self.last = i;
        i
    }

    /// Removes a session from a peer's count of sessions.
    pub(super) fn remove_session(&mut self, i: u32) {
        self.slab[i].sessions -= 1;
        self.free_if_unused(i);
    }

    /// Frees a peer that has no sessions and is not in the list of peers with something to send.
    pub(super) fn free_if_unused(&mut self, i: u32) {
        let peer = &mut self.slab[i];
        if peer.sessions == 0 && !peer.active {
            debug_assert!(peer.long.is_empty());
            let (addr, opens) = (peer.addr, peer.opens);
            *peer = Peer::fresh(addr);
            // `find` must not return a free entry.
            peer.gone = true;
            if self.by_addr.get(&addr) == Some(&i) {
                self.by_addr.remove(&addr);
            }
            self.opened(opens);
            self.slab.free(i);
        }
    }

    /// Records that the driver lost the peer at `addr`; no new session joins it. True if there is
    /// such a peer.
    pub(super) fn set_gone(&mut self, addr: Addr) -> bool {
        let Some(i) = self.by_addr.remove(&addr) else { return false };
        self.slab[i].gone = true;
        self.opened(self.slab[i].opens);
        true
    }

    /// Lets the numbers of OPENs to later peers begin behind `opens`.
    fn opened(&mut self, opens: u32) {
        if ahead(opens, self.opens) < HALF {
            self.opens = opens;
        }
    }
}
