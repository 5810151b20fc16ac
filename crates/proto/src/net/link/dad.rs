//! Our own addresses, and who else claims them: RARP (RFC 903), address conflict detection (RFC 5227), duplicate address
//! detection (RFC 4862 section 5.4).
//!
//! ```text
//!   Learning ──► Probing ──► Announcing ──► Held        careful; IPv6 does not announce
//!                   └─► Lost                            somebody has it already
//!   Announcing ──► Held                                 otherwise: in use at once; IPv6 probes meanwhile
//! ```
//!
//! Always: an address that was in use stays so: it is announced anew when somebody else claims it, at most every ten seconds.

use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::{Config, Event, V4};
use crate::device::Mac;
use crate::time::SECOND;
use crate::wire::ipv6;
use crate::{Instant, Rng};

/// RFC 5227 section 1.1.
const PROBE_WAIT_NS: u64 = SECOND;
const PROBES: u8 = 3;
const PROBE_MIN_NS: u64 = SECOND;
const PROBE_MAX_NS: u64 = 2 * SECOND;
const ANNOUNCE_WAIT_NS: u64 = 2 * SECOND;
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_NS: u64 = 2 * SECOND;
const DEFEND_NS: u64 = 10 * SECOND;
/// RFC 4862 section 5.1 and RFC 4861 section 10: one question, and so long for an answer.
const DETECT_NS: u64 = SECOND;
/// RARP is asked again after this, and then after twice as long, up to the limit.
const LEARN_NS: u64 = SECOND / 2;
const LEARN_MAX_NS: u64 = 32 * SECOND;

/// What is to be said about an own address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Say {
    /// Which address is mine?
    Learn,
    /// Has anybody this address?
    Probe(IpAddr),
    /// It is mine.
    Announce(IpAddr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Learning,
    Probing,
    Announcing,
    Held,
    Lost,
}

#[derive(Debug)]
struct Claim {
    addr: IpAddr,
    state: State,
    /// It may be used.
    used: bool,
    tries: u8,
    due: Instant,
    defended: Option<Instant>,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Claims {
    claims: ArrayVec<Claim, 3>,
    careful: bool,
    /// What we say is heard by others; false where another stack speaks for the same addresses.
    loud: bool,
    says: VecDeque<Say>,
    /// When the first claim wants something.
    next: Instant,
}

impl Claims {
    pub(super) fn new(config: &Config, mac: Mac) -> Self {
        let mut claims = Self {
            claims: ArrayVec::new(),
            careful: config.careful,
            loud: config.answer,
            says: VecDeque::new(),
            next: Instant::ZERO,
        };
        match config.v4 {
            V4::None => {}
            V4::Fixed { addr, .. } => claims.add(addr.into()),
            V4::Learnt => claims.claims.push(Claim {
                addr: Ipv4Addr::UNSPECIFIED.into(),
                state: State::Learning,
                used: false,
                tries: 0,
                due: Instant::ZERO,
                defended: None,
            }),
        }
        let own = config.v6.map(|(addr, _)| addr);
        let link = Some(ipv6::link_local(mac)).filter(|link| own != Some(*link));
        own.into_iter().chain(link).for_each(|addr| claims.add(addr.into()));
        claims.schedule();
        claims
    }

    fn add(&mut self, addr: IpAddr) {
        let quiet = !self.loud;
        let state = match addr {
            _ if quiet => State::Held,
            IpAddr::V4(_) if !self.careful => State::Announcing,
            _ => State::Probing,
        };
        let due = if quiet { Instant::NEVER } else { Instant::ZERO };
        let used = quiet || !self.careful;
        self.claims.push(Claim { addr, state, used, tries: 0, due, defended: None });
    }

    /// True if `addr` is ours and in use.
    #[inline]
    pub(super) fn has(&self, addr: IpAddr) -> bool {
        self.claims.iter().any(|c| c.used && c.addr == addr)
    }

    /// True if `addr` is ours or may become so.
    pub(super) fn wants(&self, addr: IpAddr) -> bool {
        self.claims
            .iter()
            .any(|c| !matches!(c.state, State::Learning | State::Lost) && c.addr == addr)
    }

    /// True if `group` is where those are asked who have an address that is ours or may become so.
    pub(super) fn wants_group(&self, group: Ipv6Addr) -> bool {
        let asked =
            |c: &Claim| matches!(c.addr, IpAddr::V6(addr) if ipv6::solicited(addr) == group);
        self.claims.iter().any(|c| c.state != State::Lost && asked(c))
    }

    /// The IPv4 address that may be used.
    pub(super) fn v4(&self) -> Option<Ipv4Addr> {
        self.claims.iter().filter(|c| c.used).find_map(|c| match c.addr {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        })
    }

    /// The IPv6 address from which others are reached: that of the configuration, otherwise the link's own. Who was called by one
    /// of them answers from it.
    pub(super) fn v6(&self) -> Option<Ipv6Addr> {
        self.claims.iter().filter(|c| c.used).find_map(|c| match c.addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(addr) => Some(addr),
        })
    }

    /// A RARP server says which address is ours.
    pub(super) fn learnt(&mut self, addr: Ipv4Addr) -> Option<Event> {
        let usable = !addr.is_unspecified()
            && !addr.is_multicast()
            && !addr.is_broadcast()
            && !addr.is_loopback();
        let claim =
            self.claims.iter_mut().find(|c| c.state == State::Learning).filter(|_| usable)?;
        let state = if self.careful { State::Probing } else { State::Announcing };
        let used = !self.careful;
        *claim =
            Claim { addr: addr.into(), state, used, tries: 0, due: Instant::ZERO, defended: None };
        self.schedule();
        used.then_some(Event::Ready(addr.into()))
    }

    /// Somebody at `mac` speaks or asks as if `addr` were his.
    pub(super) fn disputed(&mut self, now: Instant, addr: IpAddr, mac: Mac) -> Option<Event> {
        let claim =
            self.claims.iter_mut().find(|c| c.addr == addr && c.state != State::Learning)?;
        let lost = !claim.used;
        if lost {
            (claim.state, claim.due) = (State::Lost, Instant::NEVER);
        } else if self.loud && claim.defended.is_none_or(|at| now.since(at) >= DEFEND_NS) {
            claim.defended = Some(now);
            self.says.push_back(Say::Announce(addr));
        }
        self.schedule();
        Some(Event::Conflict { addr, mac, lost })
    }

    /// What is to be said; call until `None`.
    pub(super) fn say(&mut self) -> Option<Say> {
        self.says.pop_front()
    }

    /// True if `say` has nothing.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.says.is_empty()
    }

    /// When `tick` wants to be called.
    #[inline]
    pub(super) const fn deadline(&self) -> Instant {
        self.next
    }

    fn schedule(&mut self) {
        self.next = self.claims.iter().map(|c| c.due).min().unwrap_or(Instant::NEVER);
    }

    /// It is `now`. Returns what became usable.
    pub(super) fn tick(&mut self, now: Instant, rng: &mut Rng) -> ArrayVec<Event, 3> {
        let mut events = ArrayVec::new();
        for claim in self.claims.iter_mut().filter(|c| now >= c.due) {
            match claim.state {
                State::Learning => {
                    self.says.push_back(Say::Learn);
                    let wait = (LEARN_NS << claim.tries.min(6)).min(LEARN_MAX_NS);
                    claim.due = now.after(wait + rng.below(wait / 4));
                    claim.tries = claim.tries.saturating_add(1);
                }
                State::Probing => events.extend(claim.probe(now, &mut self.says, rng)),
                State::Announcing => {
                    self.says.push_back(Say::Announce(claim.addr));
                    claim.tries += 1;
                    claim.due = now.after(ANNOUNCE_NS);
                    if claim.tries >= ANNOUNCEMENTS {
                        (claim.state, claim.due) = (State::Held, Instant::NEVER);
                    }
                }
                State::Held | State::Lost => claim.due = Instant::NEVER,
            }
        }
        self.schedule();
        events
    }
}

impl Claim {
    /// The next probe of a tentative address, or its end: nobody has objected.
    fn probe(&mut self, now: Instant, says: &mut VecDeque<Say>, rng: &mut Rng) -> Option<Event> {
        let v4 = self.addr.is_ipv4();
        let probes = if v4 { PROBES } else { 1 };
        // Hosts that start together shall not ask together: the first probe waits, except where the address is in use already.
        if self.tries == 0 && v4 {
            (self.tries, self.due) = (1, now.after(1 + rng.below(PROBE_WAIT_NS)));
            return None;
        }
        let sent = if v4 { self.tries - 1 } else { self.tries };
        if sent < probes {
            says.push_back(Say::Probe(self.addr));
            self.tries += 1;
            let between = PROBE_MIN_NS + rng.below(PROBE_MAX_NS - PROBE_MIN_NS);
            let wait = match (v4, sent + 1 < probes) {
                (true, true) => between,
                (true, false) => ANNOUNCE_WAIT_NS,
                (false, _) => DETECT_NS,
            };
            self.due = now.after(wait);
            return None;
        }
        let was_used = core::mem::replace(&mut self.used, true);
        (self.state, self.due, self.tries) =
            if v4 { (State::Announcing, now, 0) } else { (State::Held, Instant::NEVER, 0) };
        (!was_used).then_some(Event::Ready(self.addr))
    }
}
