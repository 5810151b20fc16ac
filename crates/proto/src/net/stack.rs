//! The stack: one owner of all that a device's IP layer knows. This file is its door; what arrives is in `input`, what leaves in
//! `output`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use arrayvec::ArrayVec;

use super::claims::Claims;
use super::echo::Echoes;
use super::neighbours::Neighbours;
use super::paths::Paths;
use super::reassembly::Reassembly;
use super::run::Run;
use super::short::Short;
use super::{Config, Event, Stats, V4};
use crate::device::{BURST, Device, Info, Mac};
use crate::{Instant, Rng};

/// Ports that may be bound: each datagram is compared with all of them.
const PORTS: usize = 64;
/// Events that wait for the caller.
const EVENTS: usize = 64;
/// Where the ports begin that are chosen for those who do not mind (RFC 6335).
const DYNAMIC: u16 = 49_152;

/// Why a port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// It is bound already.
    #[error("the port is in use")]
    InUse,
    /// There are as many as there may be.
    #[error("too many ports are in use")]
    TooMany,
}

/// A datagram of the burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) from: SocketAddr,
    /// The port of ours.
    pub(super) port: u16,
    pub(super) place: Place,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Where a datagram lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In a frame of the device's burst.
    Frame(usize),
    /// In what was put together of fragments.
    Whole(usize),
}

/// What is left of a joined frame: the rest of its last item, and how long each datagram is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) rest: Item,
    pub(super) segment: usize,
}

/// The IP layer of one device.
#[derive(Debug)]
pub struct Stack {
    pub(super) config: Config,
    pub(super) info: Info,
    pub(super) stats: Stats,
    pub(super) rng: Rng,
    /// The last time handed in.
    pub(super) now: Instant,
    pub(super) claims: Claims,
    pub(super) neighbours: Neighbours,
    pub(super) paths: Paths,
    /// Grows when paths must be made anew for other reasons than a neighbour's.
    pub(super) path_epoch: u32,
    pub(super) reassembly: Reassembly,
    pub(super) echoes: Echoes,
    ports: ArrayVec<u16, PORTS>,
    /// What the last datagram over IPv4 was compared with.
    pub(super) short: Option<Short>,
    events: VecDeque<Event>,
    /// Frames that wait for the device, and their octets.
    pub(super) outbox: VecDeque<Vec<u8>>,
    pub(super) outbox_bytes: usize,
    /// Since when the device has had no room for the first frame of the outbox; never if it has room.
    pub(super) outbox_stuck: Instant,
    pub(super) run: Run,
    /// Identifies fragments.
    next_ident: u32,
    /// Since when ICMP errors are counted, and how many were sent since.
    pub(super) errors: (Instant, u32),

    /// Frames of the device's burst, and how many of them are processed.
    frames: usize,
    taken: usize,
    pub(super) items: ArrayVec<Item, BURST>,
    pub(super) joined: Option<Joined>,
    pub(super) wholes: Vec<Vec<u8>>,
}

impl Stack {
    /// A stack for a device that is `info`. It says nothing before the first `tick`.
    #[must_use]
    pub fn new(config: Config, info: Info, mut rng: Rng) -> Self {
        Self {
            stats: Stats::default(),
            now: Instant::ZERO,
            claims: Claims::new(&config, info.mac),
            neighbours: Neighbours::new(&config),
            paths: Paths::new(&mut rng),
            path_epoch: 1,
            reassembly: Reassembly::new(&config),
            echoes: Echoes::new(&mut rng),
            ports: ArrayVec::new(),
            short: None,
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            outbox_stuck: Instant::NEVER,
            run: Run::new(),
            next_ident: rng.u32(),
            errors: (Instant::ZERO, 0),
            frames: 0,
            taken: 0,
            items: ArrayVec::new(),
            joined: None,
            wholes: Vec::new(),
            config,
            info,
            rng,
        }
    }

    /// What has happened so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The IPv4 address, once it may be used.
    #[must_use]
    pub fn v4(&self) -> Option<Ipv4Addr> {
        self.claims.v4()
    }

    /// True if `addr` is ours and may be used.
    #[must_use]
    pub fn has(&self, addr: IpAddr) -> bool {
        self.claims.has(addr)
    }

    /// True if nothing that arrived waits here to be asked for, and nothing waits for the device.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.taken == self.frames
            && self.joined.is_none()
            && self.outbox.is_empty()
            && self.run.is_empty()
    }

    // Input.

    /// Receives one burst of frames and deals with them; while some of the last burst are not processed it receives nothing.
    /// Returns how many datagrams there are for [`Stack::datagram`], at most [`BURST`].
    #[inline]
    pub fn input<D: Device>(&mut self, now: Instant, device: &mut D) -> usize {
        self.items.clear();
        if self.taken == self.frames && self.joined.is_none() {
            self.frames = device.recv_burst();
            self.taken = 0;
            if !self.wholes.is_empty() {
                self.wholes.clear();
            }
            if self.frames == 0 {
                return 0;
            }
            self.stats.received += self.frames as u64;
        }
        self.now = now;
        self.split();
        let mut more = false;
        while self.taken < self.frames && !self.items.is_full() && self.joined.is_none() {
            let (frame, arrival) = device.frame(self.taken);
            more |= self.frame(now, self.taken, frame, arrival);
            self.taken += 1;
        }
        self.stats.datagrams_in += self.items.len() as u64;
        if !self.outbox.is_empty()
            || more && !(self.neighbours.is_quiet() && self.claims.is_quiet())
        {
            self.output(now, device);
        }
        self.items.len()
    }

    /// Datagram `i` of the last `input`: the port of ours, who sent it, and its payload.
    ///
    /// # Panics
    /// If `i` is not below what that `input` returned, or `device` is another one.
    #[inline]
    pub fn datagram<'b, D: Device>(
        &'b self,
        i: usize,
        device: &'b D,
    ) -> (u16, SocketAddr, &'b [u8]) {
        let item = &self.items[i];
        let bytes = match item.place {
            Place::Frame(frame) => device.frame(frame).0,
            Place::Whole(whole) => &self.wholes[whole],
        };
        (item.port, item.from, &bytes[item.start..item.end])
    }

    /// What happened beside datagrams; call until `None` after `input` and `tick`.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn happened(&mut self, event: Event) {
        if self.events.len() == EVENTS {
            self.stats.drop_event += 1;
            return;
        }
        self.events.push_back(event);
    }

    // Time.

    /// When `tick` wants to be called, and `output` after it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let next =
            self.claims.deadline().min(self.neighbours.deadline()).min(self.reassembly.deadline());
        (next < Instant::NEVER).then_some(next)
    }

    /// It is `now`: addresses are claimed, silent neighbours asked again, fragments given up.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        for event in self.claims.tick(now, &mut self.rng) {
            self.path_epoch = self.path_epoch.wrapping_add(1);
            self.happened(event);
        }
        self.neighbours.tick(now, &mut self.stats);
        self.reassembly.tick(now, &mut self.stats);
    }

    // Commands.

    /// Datagrams for `port` are handed up from now on; 0: for a port that nobody uses, which is returned.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, port: u16) -> Result<u16, BindError> {
        if self.ports.is_full() {
            return Err(BindError::TooMany);
        }
        let mut chosen = port;
        while port == 0 && (chosen == 0 || self.is_bound(chosen)) {
            chosen = DYNAMIC + self.rng.below(u64::from(u16::MAX - DYNAMIC) + 1) as u16;
        }
        if self.is_bound(chosen) {
            return Err(BindError::InUse);
        }
        self.ports.push(chosen);
        Ok(chosen)
    }

    /// Datagrams for `port` are no longer handed up.
    pub fn unbind(&mut self, port: u16) {
        self.short = None;
        self.ports.retain(|p| *p != port);
    }

    /// The neighbour `addr` has the hardware address `mac`: he is never asked.
    pub fn neighbour(&mut self, now: Instant, addr: IpAddr, mac: Mac) {
        self.neighbours.fix(now, addr.to_canonical(), mac, &mut self.stats);
    }

    /// Sends an echo request with `len` octets of data; [`Event::Echo`] has the number that this returns.
    ///
    /// # Errors
    /// [`super::PingError`].
    pub fn ping(&mut self, now: Instant, to: IpAddr, len: usize) -> Result<u16, super::PingError> {
        self.now = now;
        self.ask_echo(now, to.to_canonical(), len)
    }

    // What the other files share.

    #[inline]
    pub(super) fn is_bound(&self, port: u16) -> bool {
        self.ports.contains(&port)
    }

    #[inline]
    pub(super) const fn epoch(&self) -> u32 {
        self.neighbours.epoch().wrapping_add(self.path_epoch)
    }

    pub(super) const fn ident(&mut self) -> u32 {
        self.next_ident = self.next_ident.wrapping_add(1);
        self.next_ident
    }

    /// True if `to` is reached without a router from `own`.
    pub(super) fn is_neighbour(&self, own: IpAddr, to: IpAddr) -> bool {
        match (own, to) {
            (IpAddr::V4(own), IpAddr::V4(to)) => {
                let V4::Fixed { prefix, .. } = self.config.v4 else { return true };
                let differ = (own.to_bits() ^ to.to_bits()).leading_zeros();
                differ >= u32::from(prefix.min(32))
            }
            (IpAddr::V6(own), IpAddr::V6(to)) => {
                let prefix = self.config.v6.map_or(0, |(_, prefix)| prefix);
                let differ = (own.to_bits() ^ to.to_bits()).leading_zeros();
                to.is_unicast_link_local() || differ >= u32::from(prefix.min(128))
            }
            _ => false,
        }
    }
}
