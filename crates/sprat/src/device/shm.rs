//! The driver `shm`: Ethernet frames through the rings in shared memory that otherwise carry the
//! RPC transport's datagrams ([`crate::driver::shm`]): a network of processes of one user on one
//! machine, without root.
//!
//! ```text
//! server  a name, to which any number of clients connect: a frame goes to the connection from
//!         which its destination last sent, a group's frame to all
//! client  one connection; connects again when it ends
//! ```
//!
//! Always holds: an address stays with the living connection that used it first. A peer harms its
//! own connection alone. Not here: rings and sockets, which belong to the datagram driver, and
//! frames from one client to another.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_PARTS, Mac, Offload, RxOffload, Sent,
    send_concatenated,
};
use sprat_proto::time::MS;
use sprat_proto::{Addr, Datagrams as _, Instant, TimedDatagrams};

use super::Nic;
use crate::driver::Driver;
use crate::driver::shm::{self, Shm};
use crate::locator::Locator;
use sprat_sys::clock::Clock;
use sprat_sys::ring::MAX_PAYLOAD;

/// The most hardware addresses of peers that a `shm` device remembers.
const MOST_ADDRESSES: usize = 4096;
/// The time after which a client tries to connect again, in nanoseconds.
const AGAIN_NS: u64 = 100 * MS;

/// Options of a packet device in shared memory (`shm`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The name of the network that the device joins: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// True if the device listens at the name; otherwise it connects to it.
    pub listens: bool,
    /// The hardware address of the device; random if `None`.
    pub mac: Option<Mac>,
    /// The longest payload of a frame in bytes, up to 65,522.
    pub mtu: usize,
}

#[derive(Clone, Copy, Default, Debug)]
struct Counted {
    received: u64,
    sent: u64,
    short: u64,
    refused: u64,
    unsent: u64,
    unconnected: u64,
}

/// A packet device in shared memory (`shm`).
#[derive(Debug)]
pub struct Frames {
    shm: Shm,
    /// The locator of the device's name, for the datagram driver that has the rings.
    locator: Locator,
    info: Info,
    /// The number of a client's connection to the server; `None` if it has none.
    server: Option<u64>,
    listens: bool,
    /// The number of the connection of each hardware address. The field `last` has the address that
    /// was seen last.
    addresses: BTreeMap<Mac, u64>,
    last: Option<(Mac, u64)>,
    /// The indices of the burst's records that are frames.
    burst: ArrayVec<u8, BURST>,
    clock: Clock,
    again: Instant,
    counted: Counted,
}

impl Frames {
    /// Opens a packet device in shared memory. A client may be opened before the server listens.
    ///
    /// # Errors
    /// The name or the MTU is impossible; a server of that name lives; a system call failed.
    pub fn open(options: &Options) -> io::Result<Self> {
        if !(576..=MAX_PAYLOAD - HEADER).contains(&options.mtu) {
            let what = format!(
                "an MTU of {}: it must be from 576 to {}",
                options.mtu,
                MAX_PAYLOAD - HEADER
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let locator = Locator::new("fast+shm", &[("name", &options.name)])?;
        locator.kind()?;
        let mac = options.mac.map_or_else(super::random_mac, Ok)?;
        let rings = shm::Options { frames: true, ..shm::Options::default() };
        let shm = if options.listens { Shm::listen(&locator, rings)? } else { Shm::client(rings)? };
        let mut this = Self {
            shm,
            locator,
            info: Info::without_offloads(mac, options.mtu),
            server: None,
            listens: options.listens,
            addresses: BTreeMap::new(),
            last: None,
            burst: ArrayVec::new(),
            clock: Clock::new(),
            again: Instant::ZERO,
            counted: Counted::default(),
        };
        this.connect();
        Ok(this)
    }

    /// Connects to the server if this is a client without a connection and [`AGAIN_NS`] has passed.
    fn connect(&mut self) {
        if self.listens || self.server.is_some() {
            return;
        }
        let now = self.clock.now();
        if now >= self.again {
            self.again = now.after(AGAIN_NS);
            // A server that is missing may start later.
            self.server = match self.shm.resolve(&self.locator) {
                Ok(Addr::Local(id)) => Some(id),
                _ => None,
            };
        }
    }

    /// Removes connections that have ended, with their addresses.
    fn forget(&mut self) {
        while let Some(Addr::Local(gone)) = self.shm.gone() {
            self.addresses.retain(|_, at| *at != gone);
            self.last = None;
            if self.server == Some(gone) {
                self.server = None;
            }
        }
    }

    /// Records that the source address of record `i` is at the connection that the record came
    /// from.
    #[inline]
    fn learn(&mut self, i: usize) {
        let (from, bytes) = self.shm.record(i);
        let source = bytes[6..].first_chunk().map(|mac| Mac(*mac)).unwrap_or_default();
        if self.last != Some((source, from)) {
            self.learn_other(source, from);
        }
    }

    #[inline(never)]
    fn learn_other(&mut self, source: Mac, from: u64) {
        if source.is_unicast() && self.addresses.len() < MOST_ADDRESSES {
            let at = *self.addresses.entry(source).or_insert(from);
            self.last = Some((source, at));
        }
    }

    /// Returns the number of the connection that a frame to `mac` goes to. `None` means all.
    #[inline]
    fn lookup(&self, mac: Mac) -> Option<u64> {
        match self.last {
            _ if self.server.is_some() => self.server,
            Some((last, at)) if last == mac => Some(at),
            _ => self.addresses.get(&mac).copied(),
        }
    }

    #[inline]
    fn sent(&mut self, sent: Sent) -> Sent {
        match sent {
            Sent::Full => return Sent::Full,
            Sent::Gone => self.counted.unconnected += 1,
            Sent::Yes => self.counted.sent += 1,
        }
        Sent::Yes
    }

    #[inline]
    fn put(&mut self, to: u64, parts: &[&[u8]]) -> Sent {
        let sent = self.shm.send(Addr::Local(to), parts);
        self.sent(sent)
    }

    /// Puts a frame into the rings of all connections, as a hub does. A connection without room
    /// loses it.
    fn flood(&mut self, parts: &[&[u8]]) -> Sent {
        let peers: Vec<u64> = self.shm.peers().collect();
        self.counted.unconnected += u64::from(peers.is_empty());
        for peer in peers {
            if self.put(peer, parts) == Sent::Full {
                self.counted.unsent += 1;
            }
        }
        Sent::Yes
    }
}

impl Device for Frames {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        let n = self.shm.recv_burst();
        for i in 0..n {
            if self.shm.record(i).1.len() < HEADER {
                self.counted.short += 1;
                continue;
            }
            self.burst.push(i as u8);
            if self.listens {
                self.learn(i);
            }
        }
        if n == 0 {
            self.forget();
            if self.server.is_none() {
                self.connect();
            }
        }
        self.counted.received += self.burst.len() as u64;
        self.burst.len()
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        // The bytes came through memory alone; but the peer may have got them from a wire.
        (self.shm.record(usize::from(self.burst[i])).1, RxOffload::default())
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if offload != Offload::None
            || parts.len() > MAX_PARTS
            || !(HEADER..=self.info.max_send).contains(&len)
        {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        let mac =
            parts.first().and_then(|p| p.first_chunk()).map(|mac| Mac(*mac)).unwrap_or_default();
        match self.lookup(mac) {
            Some(to) => match self.put(to, parts) {
                // The stack's outbox comes this way, in which a frame that waits for one peer holds
                // up those to the others.
                Sent::Full if self.listens && self.shm.peers().nth(1).is_some() => {
                    self.counted.unsent += 1;
                    Sent::Yes
                }
                sent => sent,
            },
            None => self.flood(parts),
        }
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        let fits = headers.len() >= HEADER && headers.len() + len <= self.info.max_send;
        match self.lookup(headers.destination()) {
            Some(to) if fits && offload == Offload::None => {
                let sent = self.shm.send_with_headers(to, headers, parts, len);
                self.sent(sent)
            }
            // A frame to all or to none is not worth a faster path.
            _ => send_concatenated(self, headers, parts, offload),
        }
    }

    fn flush(&mut self) {
        self.shm.flush();
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("frames_received", self.counted.received);
        each("frames_sent", self.counted.sent);
        each("frames_bad", self.counted.short);
        each("frames_refused", self.counted.refused);
        each("frames_unsent", self.counted.unsent);
        each("frames_unconnected", self.counted.unconnected);
        TimedDatagrams::counters(&self.shm, each);
    }
}

impl Nic for Frames {
    fn fd(&self) -> BorrowedFd<'_> {
        self.shm.fd()
    }

    fn arm(&mut self) -> bool {
        self.shm.arm()
    }

    fn disarm(&mut self) {
        self.shm.disarm();
        self.forget();
        self.connect();
    }

    fn carries(&mut self) -> bool {
        self.shm.peers().next().is_some()
    }

    fn has_rx_timestamps(&self) -> bool {
        false
    }

    fn queues(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests;
