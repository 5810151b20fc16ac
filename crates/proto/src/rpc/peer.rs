//! What this endpoint knows of another host's endpoint: one entry a host pair, however many sessions join them. Address,
//! round-trip time, window, what waits to be sent there, and who opened a session lately.
//!
//! Always: a session names a peer that is in use; a peer is given back when its last session is gone.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use siphasher::sip::SipHasher13;

use super::slab::{NONE, Slab};
use crate::wire::rpc::{ECHO, Packet};
use crate::{Addr, Instant, Rng};

/// OPENs that may be unanswered towards one peer, counted from the oldest; the server remembers as many.
pub(super) const OPEN_WINDOW: usize = 64;

/// An OPEN that the server answered by a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    /// Its number among the client's OPENs to us.
    pub(super) number: u32,
    pub(super) nonce: u64,
    /// The name of the session that it got.
    pub(super) server: u32,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: Addr,
    /// Sessions of either side that name it.
    pub(super) sessions: u32,
    /// The driver said that it is gone.
    pub(super) gone: bool,
    /// Messages of one packet that wait to be sent, in order.
    pub(super) short: VecDeque<u32>,
    /// Longer ones, oldest first, with the bytes they had left when they were put here.
    pub(super) long: Vec<(u32, u32)>,
    /// True while the endpoint's list of peers with something to send has it.
    pub(super) active: bool,
    /// When the driver last took a packet of a message to it that had waited.
    pub(super) progress: Instant,
    /// Turns of long messages so far; every 16th goes to the oldest.
    pub(super) turns: u8,
    /// Client sessions, by index and epoch, that wait to be opened, and those whose OPEN is unanswered, oldest first.
    pub(super) to_open: VecDeque<(u32, u32)>,
    pub(super) opening: VecDeque<(u32, u32)>,
    /// When the wheel looks at them.
    pub(super) open_due: Instant,
    /// Client: the number of the last OPEN.
    pub(super) opens: u32,
    /// Server: the client's incarnation, the largest number among its OPENs, and those of the last 64 numbers that were
    /// answered.
    pub(super) incarnation: u64,
    pub(super) newest: u32,
    pub(super) recent: VecDeque<Recent>,
    /// Bytes of a message that it takes without a grant.
    pub(super) unscheduled: u32,
    /// Client: payload bytes of a full packet.
    pub(super) mss: u16,
    pub(super) path: Path,
    /// Probes in a row that nothing followed.
    pub(super) silent: u8,
    /// Until when no further probe is sent, because one is under way, and when that was sent.
    pub(super) probing_until: Instant,
    pub(super) probed_at: Instant,
}

impl Peer {
    fn fresh(addr: Addr) -> Self {
        Self {
            addr,
            sessions: 0,
            gone: false,
            short: VecDeque::new(),
            long: Vec::new(),
            active: false,
            progress: Instant::ZERO,
            turns: 0,
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

    /// It gave a sign of life that only it can give.
    #[inline]
    pub(super) const fn heard(&mut self) {
        self.silent = 0;
        self.probing_until = Instant::ZERO;
    }

    /// True if another OPEN may go out.
    pub(super) fn may_open(&self) -> bool {
        !self.to_open.is_empty() && self.opening.len() < OPEN_WINDOW
    }
}

/// The way to a peer on a lossy driver: how long it takes and how much may be on it.
#[derive(Debug)]
pub(super) struct Path {
    /// The peer's clock as last seen, and when that was.
    peer_ts_us: u16,
    peer_ts_at: Option<Instant>,
    /// 0 until there is a sample.
    pub(super) srtt_ns: u64,
    rttvar_ns: u64,
    /// The shortest round trip seen.
    base_ns: u64,
    /// Bytes of long messages that may be unacknowledged.
    pub(super) window: u32,
    pub(super) in_flight: u32,
    /// Bytes of long messages sent since the receiver was last asked to acknowledge.
    unasked: u32,
    /// No second decrease before this.
    hold_until: Instant,
    /// When bytes of long messages were last acknowledged.
    landed_at: Instant,
}

const WINDOW_MIN: u32 = 32 << 10;
const WINDOW_MAX: u32 = 8 << 20;
const WINDOW_STEP: u32 = 16 << 10;
/// An echo is good while the 16-bit clock cannot have wrapped unnoticed.
const ECHO_LIMIT_US: u64 = 30_000;

impl Path {
    const fn new() -> Self {
        Self {
            peer_ts_us: 0,
            peer_ts_at: None,
            srtt_ns: 0,
            rttvar_ns: 0,
            base_ns: u64::MAX,
            window: WINDOW_MAX,
            in_flight: 0,
            unasked: 0,
            hold_until: Instant::ZERO,
            landed_at: Instant::ZERO,
        }
    }

    /// A packet arrived that its sender stamped `ts_us`; `echo_us` is our own stamp, if it came back.
    pub(super) fn arrived(
        &mut self,
        now: Instant,
        ts_us: u16,
        echo_us: Option<u16>,
        target_ns: u64,
    ) {
        self.peer_ts_us = ts_us;
        self.peer_ts_at = Some(now);
        let Some(echo_us) = echo_us else { return };
        let rtt_us = stamp_us(now).wrapping_sub(echo_us);
        if u64::from(rtt_us) < 2 * ECHO_LIMIT_US {
            self.sample(now, u64::from(rtt_us).max(1) * crate::time::US, target_ns);
        }
    }

    /// What to answer to the peer's clock, if its last stamp is fresh enough.
    #[inline]
    fn echo_us(&self, now: Instant) -> Option<u16> {
        let held_us = now.since(self.peer_ts_at?) / crate::time::US;
        (held_us < ECHO_LIMIT_US).then(|| self.peer_ts_us.wrapping_add(held_us as u16))
    }

    /// Our clock for a packet, and the peer's back, if there is one.
    #[inline]
    pub(super) fn stamps(&self, now: Instant) -> (u16, Option<u16>) {
        (stamp_us(now), self.echo_us(now))
    }

    /// Puts them into a packet.
    #[inline]
    pub(super) fn stamp(&self, now: Instant, packet: &mut Packet) {
        let (ts_us, echo_us) = self.stamps(now);
        packet.ts_us = ts_us;
        if let Some(echo_us) = echo_us {
            packet.flags |= ECHO;
            packet.ts_echo_us = echo_us;
        }
    }

    /// How long to wait for an answer before asking: RFC 6298's estimate with a floor.
    pub(super) fn pto_ns(&self, floor_ns: u64) -> u64 {
        self.srtt_ns + (4 * self.rttvar_ns).max(floor_ns)
    }

    /// True if another full packet of a long message may go out.
    pub(super) const fn has_room(&self) -> bool {
        self.in_flight < self.window
    }

    /// True if the next `len` bytes must ask for an acknowledgement: twice a window, and with what fills it. Grants alone
    /// come too seldom for a small window, and not at all once everything is granted.
    pub(super) const fn asks(&self, len: u32) -> bool {
        self.unasked.saturating_add(len) >= self.window / 2
            || self.in_flight.saturating_add(len) >= self.window
    }

    /// `len` bytes of a long message went out for the first time.
    pub(super) const fn sent(&mut self, len: u32) {
        self.unasked = if self.asks(len) { 0 } else { self.unasked + len };
        self.in_flight = self.in_flight.saturating_add(len);
    }

    /// Bytes of long messages were acknowledged or given up.
    pub(super) fn landed(&mut self, now: Instant, bytes: u32) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if bytes > 0 {
            self.landed_at = now;
        }
    }

    /// True if nothing of long messages was acknowledged for `pto_ns`: what is in flight then has arrived or is lost.
    pub(super) fn stands_still(&self, now: Instant, pto_ns: u64) -> bool {
        now.since(self.landed_at) >= pto_ns
    }

    /// Packets of a long message were lost.
    pub(super) fn lost(&mut self, now: Instant) {
        if now >= self.hold_until {
            self.window = (self.window / 2).max(WINDOW_MIN);
            self.hold_until = now.after(self.srtt_ns);
        }
    }

    fn sample(&mut self, now: Instant, rtt_ns: u64, target_ns: u64) {
        self.base_ns = self.base_ns.min(rtt_ns);
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt_ns;
            self.rttvar_ns = rtt_ns / 2;
            return;
        }
        // RFC 6298 2.3, with its gains of 1/4 and 1/8.
        self.rttvar_ns = (3 * self.rttvar_ns + self.srtt_ns.abs_diff(rtt_ns)) / 4;
        self.srtt_ns = (7 * self.srtt_ns + rtt_ns) / 8;
        let queued_ns = rtt_ns - self.base_ns;
        if queued_ns <= target_ns {
            self.window = (self.window + WINDOW_STEP).min(WINDOW_MAX);
        } else if now >= self.hold_until {
            // Swift's decrease: in proportion to the excess, at most by half, once a round trip.
            let excess = (queued_ns - target_ns).saturating_mul(1000) / queued_ns;
            let keep = 1000 - (excess * 8 / 10).min(500);
            self.window = ((u64::from(self.window) * keep / 1000) as u32).max(WINDOW_MIN);
            self.hold_until = now.after(self.srtt_ns);
        }
    }
}

/// The low 16 bits of a clock in microseconds.
#[inline]
pub(super) fn stamp_us(now: Instant) -> u16 {
    (now.as_ns() / crate::time::US) as u16
}

/// All peers, and where to find one by address. The hash is keyed: an attacker cannot choose colliding addresses.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) slab: Slab<Peer>,
    by_addr: hashbrown::HashMap<Addr, u32, Keyed>,
    last: u32,
}

#[derive(Clone, Debug)]
struct Keyed(u64, u64);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

impl Peers {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let keyed = Keyed(rng.u64(), rng.u64());
        Self { slab: Slab::new(), by_addr: hashbrown::HashMap::with_hasher(keyed), last: NONE }
    }

    pub(super) fn find(&self, addr: Addr) -> Option<u32> {
        if self.slab.get(self.last).is_some_and(|p| p.addr == addr && !p.gone) {
            return Some(self.last);
        }
        self.by_addr.get(&addr).copied()
    }

    /// The entry of `addr`, made if there is none; the caller adds its session.
    pub(super) fn join(&mut self, addr: Addr) -> u32 {
        let i = self.find(addr).unwrap_or_else(|| {
            let i = self.slab.alloc(|_| Peer::fresh(addr));
            self.slab[i] = Peer::fresh(addr);
            self.by_addr.insert(addr, i);
            i
        });
        self.slab[i].sessions += 1;
        self.last = i;
        i
    }

    /// A session of this peer is gone.
    pub(super) fn leave(&mut self, i: u32) {
        self.slab[i].sessions -= 1;
        self.sweep(i);
    }

    /// Gives the entry back if nobody needs it.
    pub(super) fn sweep(&mut self, i: u32) {
        let peer = &mut self.slab[i];
        if peer.sessions == 0 && !peer.active {
            debug_assert!(peer.short.is_empty() && peer.long.is_empty());
            let addr = peer.addr;
            *peer = Peer::fresh(addr);
            // An entry in use is found by its address; one that is free must not be.
            peer.gone = true;
            if self.by_addr.get(&addr) == Some(&i) {
                self.by_addr.remove(&addr);
            }
            self.slab.free(i);
        }
    }

    /// The driver lost this peer: no new session joins it.
    pub(super) fn lose(&mut self, addr: Addr) -> Option<u32> {
        let i = self.by_addr.remove(&addr)?;
        self.slab[i].gone = true;
        Some(i)
    }
}
