//! Own addresses of an IP stack and the detection of conflicts: RARP (RFC 903), IPv4 address
//! conflict detection (RFC 5227), IPv6 duplicate address detection (RFC 4862 section 5.4).
//!
//! ```text
//!   with detect_first; IPv6 does not announce
//!   Requesting ──► Probing ──► Announcing ──► Assigned
//!                     └─► Lost                            another host has the address
//!
//!   without: in use at once; IPv6 probes meanwhile
//!   Requesting ──► Announcing ──► Assigned
//! ```
//!
//! Always: an address in use stays in use. After a conflict the stack announces it again, at most
//! every ten seconds.

use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use crate::device::Mac;
use crate::net::event::StackEvent;
use crate::net::options::{Ipv4Assignment, StackOptions};
use crate::time::SECOND;
use crate::wire::ipv6;
use crate::{Instant, Rng};

// RFC 5227 section 1.1 names these constants.
const PROBE_WAIT_NS: u64 = SECOND;
const PROBE_NUM: u8 = 3;
const PROBE_MIN_NS: u64 = SECOND;
const PROBE_MAX_NS: u64 = 2 * SECOND;
const ANNOUNCE_WAIT_NS: u64 = 2 * SECOND;
const ANNOUNCE_NUM: u8 = 2;
const ANNOUNCE_INTERVAL_NS: u64 = 2 * SECOND;
const DEFEND_INTERVAL_NS: u64 = 10 * SECOND;
/// The number of probes for an own IPv6 address (DupAddrDetectTransmits in RFC 4862 section 5.1).
const IPV6_PROBE_NUM: u8 = 1;
/// The time in nanoseconds to wait for an objection to an IPv6 probe (RETRANS_TIMER in RFC 4861
/// section 10).
const IPV6_PROBE_WAIT_NS: u64 = SECOND;
/// The time in nanoseconds between the first two RARP requests. It doubles each time, up to the
/// maximum.
const RARP_NS: u64 = SECOND / 2;
const RARP_MAX_NS: u64 = 32 * SECOND;

/// A packet that the stack has to send about an own address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Announcement {
    /// A RARP request for the own IPv4 address.
    Rarp,
    /// A probe, which asks whether another host has this IP address.
    Probe(IpAddr),
    /// An announcement that the IP address belongs to this stack.
    Announce(IpAddr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The stack has requested its IPv4 address, and no RARP server has assigned it yet.
    Requesting,
    Probing,
    Announcing,
    Assigned,
    /// Another host has the IP address, so this stack gives it up.
    Lost,
}

#[derive(Debug)]
struct Address {
    addr: IpAddr,
    state: State,
    in_use: bool,
    /// The number of packets that the stack sent about the address in its present state.
    tries: u8,
    due: Instant,
    last_defended: Option<Instant>,
}

/// The own addresses of an IP stack, and the state of their conflict detection.
#[derive(Debug)]
pub(in crate::net) struct Addresses {
    addresses: ArrayVec<Address, 3>,
    detect_first: bool,
    /// True if this stack announces and defends its addresses. False if another stack does that for
    /// the same addresses.
    respond: bool,
    announcements: VecDeque<Announcement>,
    /// The earliest `due` of all own addresses, when a timer of one expires.
    next_due: Instant,
}

impl Addresses {
    pub(super) fn new(options: &StackOptions, mac: Mac) -> Self {
        let mut this = Self {
            addresses: ArrayVec::new(),
            detect_first: options.detect_first,
            respond: options.respond,
            announcements: VecDeque::new(),
            next_due: Instant::ZERO,
        };
        match options.ipv4 {
            Ipv4Assignment::None => {}
            Ipv4Assignment::Static { addr, .. } => this.add(addr.into()),
            Ipv4Assignment::Rarp => this.addresses.push(Address {
                addr: Ipv4Addr::UNSPECIFIED.into(),
                state: State::Requesting,
                in_use: false,
                tries: 0,
                due: Instant::ZERO,
                last_defended: None,
            }),
        }
        let own = options.ipv6.map(|(addr, _)| addr);
        let link_local = Some(ipv6::link_local(mac)).filter(|link| own != Some(*link));
        own.into_iter().chain(link_local).for_each(|addr| this.add(addr.into()));
        this.schedule();
        this
    }

    fn add(&mut self, addr: IpAddr) {
        let (state, due) = match addr {
            _ if !self.respond => (State::Assigned, Instant::NEVER),
            IpAddr::V4(_) if !self.detect_first => (State::Announcing, Instant::ZERO),
            _ => (State::Probing, Instant::ZERO),
        };
        let in_use = !self.respond || !self.detect_first;
        self.addresses.push(Address { addr, state, in_use, tries: 0, due, last_defended: None });
    }

    /// Returns true if `addr` is an own address in use.
    #[inline]
    pub(in crate::net) fn has(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.in_use && a.addr == addr)
    }

    /// Returns true if `addr` is an own address in use or one that detection may still confirm.
    pub(super) fn is_candidate(&self, addr: IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|a| !matches!(a.state, State::Requesting | State::Lost) && a.addr == addr)
    }

    /// Returns true if `group` is the solicited-node group of an own address in use or one that
    /// detection may still confirm.
    pub(super) fn is_candidate_group(&self, group: Ipv6Addr) -> bool {
        let in_group =
            |a: &Address| matches!(a.addr, IpAddr::V6(addr) if ipv6::solicited(addr) == group);
        self.addresses.iter().any(|a| a.state != State::Lost && in_group(a))
    }

    /// Returns the IPv4 address that the stack has in use.
    pub(in crate::net) fn v4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().filter(|a| a.in_use).find_map(|a| match a.addr {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        })
    }

    /// Returns the IPv6 source address for packets of this stack: the configured one if it is in
    /// use, otherwise the link-local one.
    pub(in crate::net) fn v6(&self) -> Option<Ipv6Addr> {
        self.addresses.iter().filter(|a| a.in_use).find_map(|a| match a.addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(addr) => Some(addr),
        })
    }

    /// Takes the IPv4 address that a RARP server assigns, if the stack has requested one and a host
    /// can have it.
    pub(super) fn assigned(&mut self, addr: Ipv4Addr) -> Option<StackEvent> {
        let usable = !addr.is_unspecified()
            && !addr.is_multicast()
            && !addr.is_broadcast()
            && !addr.is_loopback();
        let requested =
            self.addresses.iter_mut().find(|a| a.state == State::Requesting).filter(|_| usable)?;
        let state = if self.detect_first { State::Probing } else { State::Announcing };
        let in_use = !self.detect_first;
        let (addr, due) = (addr.into(), Instant::ZERO);
        *requested = Address { addr, state, in_use, tries: 0, due, last_defended: None };
        self.schedule();
        in_use.then_some(StackEvent::AddressReady(addr))
    }

    /// Handles an address conflict: the host at `mac` uses `addr` or probes for it. The stack
    /// defends an address in use, and gives up one whose detection is not complete.
    pub(super) fn conflict(&mut self, now: Instant, addr: IpAddr, mac: Mac) -> Option<StackEvent> {
        let own =
            self.addresses.iter_mut().find(|a| a.addr == addr && a.state != State::Requesting)?;
        let lost = !own.in_use;
        let may_defend = || own.last_defended.is_none_or(|at| now.since(at) >= DEFEND_INTERVAL_NS);
        if lost {
            (own.state, own.due) = (State::Lost, Instant::NEVER);
        } else if self.respond && may_defend() {
            own.last_defended = Some(now);
            self.announcements.push_back(Announcement::Announce(addr));
        }
        self.schedule();
        Some(StackEvent::AddressConflict { addr, mac, lost })
    }

    /// Takes the next probe, announcement or RARP request to send about an own address.
    pub(super) fn next_announcement(&mut self) -> Option<Announcement> {
        self.announcements.pop_front()
    }

    /// Returns true if `next_announcement` has a packet to send.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        !self.announcements.is_empty()
    }

    /// Returns the time at which the next timer of an own address expires, when to call `tick`.
    #[inline]
    pub(in crate::net) const fn deadline(&self) -> Instant {
        self.next_due
    }

    fn schedule(&mut self) {
        self.next_due = self.addresses.iter().map(|a| a.due).min().unwrap_or(Instant::NEVER);
    }

    /// Handles expired timers of own addresses. Returns an event for each address that may be used
    /// from now on.
    pub(in crate::net) fn tick(&mut self, now: Instant, rng: &mut Rng) -> ArrayVec<StackEvent, 3> {
        let mut events = ArrayVec::new();
        for own in self.addresses.iter_mut().filter(|a| now >= a.due) {
            match own.state {
                State::Requesting => {
                    self.announcements.push_back(Announcement::Rarp);
                    let wait = (RARP_NS << own.tries.min(6)).min(RARP_MAX_NS);
                    own.due = now.after(wait + rng.below(wait / 4));
                    own.tries = own.tries.saturating_add(1);
                }
                State::Probing => events.extend(own.probe(now, &mut self.announcements, rng)),
                State::Announcing => {
                    self.announcements.push_back(Announcement::Announce(own.addr));
                    own.tries += 1;
                    own.due = now.after(ANNOUNCE_INTERVAL_NS);
                    if own.tries >= ANNOUNCE_NUM {
                        (own.state, own.due) = (State::Assigned, Instant::NEVER);
                    }
                }
                State::Assigned | State::Lost => own.due = Instant::NEVER,
            }
        }
        self.schedule();
        events
    }
}

impl Address {
    /// Sends the next probe for an own address, or ends probing if no host has objected to the last
    /// one.
    fn probe(
        &mut self,
        now: Instant,
        announcements: &mut VecDeque<Announcement>,
        rng: &mut Rng,
    ) -> Option<StackEvent> {
        let v4 = self.addr.is_ipv4();
        let probes = if v4 { PROBE_NUM } else { IPV6_PROBE_NUM };
        // RFC 5227 section 2.1.1: a random delay before the first IPv4 probe keeps hosts that start
        // together from probing together. It counts as a try.
        if self.tries == 0 && v4 {
            (self.tries, self.due) = (1, now.after(1 + rng.below(PROBE_WAIT_NS)));
            return None;
        }
        let sent = if v4 { self.tries - 1 } else { self.tries };
        if sent < probes {
            announcements.push_back(Announcement::Probe(self.addr));
            self.tries += 1;
            let between = PROBE_MIN_NS + rng.below(PROBE_MAX_NS - PROBE_MIN_NS);
            let wait = match (v4, sent + 1 < probes) {
                (true, true) => between,
                (true, false) => ANNOUNCE_WAIT_NS,
                (false, _) => IPV6_PROBE_WAIT_NS,
            };
            self.due = now.after(wait);
            return None;
        }
        let was_in_use = core::mem::replace(&mut self.in_use, true);
        (self.state, self.due, self.tries) =
            if v4 { (State::Announcing, now, 0) } else { (State::Assigned, Instant::NEVER, 0) };
        (!was_in_use).then_some(StackEvent::AddressReady(self.addr))
    }
}
