//! How connections come to be: opening ours, accepting those that ask, and who is no peer of ours.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::rdma::{AcceptOptions, ConnectOptions};
use sprat_proto::rpc::notes::{Hello, Stranger};
use sprat_proto::rpc::stream::{Role, Stream};
use sprat_proto::rpc::{CloseReason, SessionId};

use super::pair::{Pair, READS, World};
use super::{CONNECT_NS, Connecting, Core, Link, Rdma, SILENCE_NS, host_port};
use crate::locator::Locator;
use crate::rdma::{Asked, Link as State};

impl Rdma {
    /// Begins to connect to the server at `to`.
    pub(super) fn open(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let (host_port, crc) = host_port(to)?;
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{to}: {e}"));
        if host_port.port == 0 {
            return Err(named(io::Error::new(io::ErrorKind::InvalidInput, "no one listens at port 0")));
        }
        let addresses: VecDeque<SocketAddr> = host_port.allowed(self.options.insecure_network)?.into();
        self.sessions += 1;
        let (serial, queue_limit) = (self.sessions, self.options.queue_limit);
        let session = |slot| SessionId::new(serial, u32::from(slot));
        let slot =
            self.place(|slot| Stream::new(slot, Role::Client(session(slot)), queue_limit)).map_err(named)?;
        let connecting = Connecting { left: addresses, until: now.after(CONNECT_NS), crc };
        if let Err(e) = self.try_addresses(now, slot, connecting) {
            self.remove(slot);
            return Err(named(e));
        }
        Ok(session(slot))
    }

    /// Gives a new connection a slot and a queue pair.
    fn place(&mut self, stream: impl FnOnce(u16) -> Stream) -> io::Result<u16> {
        if self.by_qp.len() >= self.options.connection_limit.min(super::MOST) {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        let slot = match self.free.front() {
            Some(&slot) => slot,
            None => self.links.len() as u16,
        };
        let Core { rnic, regions, .. } = &mut self.core;
        let mut world = World { rnic, regions, released: &mut self.released };
        let pair = Pair::open(slot, self.cq, &mut world).map_err(io::Error::other)?;
        if self.free.pop_front().is_none() {
            self.links.push(None);
        }
        self.by_qp.insert(pair.qp, slot);
        self.core.desk.links.insert(pair.qp, State::Idle);
        self.links[usize::from(slot)] = Some(Box::new(Link {
            pair,
            stream: stream(slot),
            connecting: None,
            held: VecDeque::new(),
            gone: false,
            dirty: false,
            owing: false,
            resumed: false,
            silent_until: Instant::NEVER,
        }));
        Ok(slot)
    }

    /// Goes on to the next addresses for the connection in `slot`.
    fn try_addresses(&mut self, now: Instant, slot: u16, mut connecting: Connecting) -> io::Result<()> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        while let Some(addr) = connecting.left.pop_front() {
            let Some(link) = self.links[usize::from(slot)].as_deref_mut() else { break };
            let options = ConnectOptions {
                ird: READS,
                ord: READS,
                private_data: Pair::hello(),
                crc: Some(connecting.crc),
                ..ConnectOptions::default()
            };
            match self.core.connect(now, link.pair.qp, addr, options, connecting.until.since(now)) {
                Ok(()) => {
                    link.connecting = Some(connecting);
                    return Ok(());
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Answers those who ask for a connection.
    pub(super) fn welcome(&mut self, now: Instant) {
        let Some((listener, _)) = self.listener else { return };
        while let Some(Asked { conn, private_data, .. }) = self.core.asked(listener) {
            let hello = Hello::parse(&private_data);
            self.counters.strangers += u64::from(hello.is_err());
            let placed = match hello {
                Ok(_) => self.place(|slot| Stream::new(slot, Role::Server, 0)).ok(),
                Err(_) => None,
            };
            let (Ok(hello), Some(slot)) = (hello, placed) else {
                // By our hello it sees which version we speak.
                let _ = self.core.rnic.reject(now, conn, &Pair::hello());
                continue;
            };
            let Some(link) = self.links[usize::from(slot)].as_deref_mut() else { continue };
            let options = AcceptOptions { ird: READS, ord: READS, private_data: Pair::hello() };
            if self.core.rnic.accept(now, conn, link.pair.qp, &options).is_err() {
                self.remove(slot);
                continue;
            }
            link.pair.greet(hello);
            link.silent_until = now.after(SILENCE_NS);
            self.first_deadline = self.first_deadline.min(link.silent_until);
        }
    }

    /// Looks at connections that stand otherwise than before.
    pub(super) fn moved(&mut self, now: Instant) {
        while let Some(qp) = self.core.desk.moved.as_mut().and_then(VecDeque::pop_front) {
            let (Some(&slot), Some(state)) = (self.by_qp.get(&qp), self.core.desk.links.get(&qp)) else {
                continue;
            };
            match state.clone() {
                State::Idle | State::Opening => {}
                State::Connected { private_data, ord, .. } => self.connected(slot, &private_data, ord),
                State::Rejected { private_data, .. } => {
                    let other = Hello::parse(&private_data) == Err(Stranger::Version);
                    self.end(slot, if other { CloseReason::Version } else { CloseReason::Unreachable });
                }
                State::Unreachable(_) => self.try_others(now, slot),
                State::Failed(_) => self.end(slot, CloseReason::Unreachable),
                State::Disconnected(_) => self.gone(slot),
            }
        }
    }

    fn connected(&mut self, slot: u16, private_data: &[u8], ord: u16) {
        let Some(link) = self.at_slot(slot) else { return };
        if let Role::Client(_) = link.stream.role() {
            match Hello::parse(private_data) {
                Ok(hello) => link.pair.greet(hello),
                Err(Stranger::Version) => return self.end(slot, CloseReason::Version),
                Err(Stranger::Other) => return self.blame(slot),
            }
        }
        link.connecting = None;
        link.pair.connected(ord);
        self.soil(slot);
    }

    fn try_others(&mut self, now: Instant, slot: u16) {
        let Some(connecting) = self.at_slot(slot).and_then(|link| link.connecting.take()) else { return };
        if connecting.until <= now || self.try_addresses(now, slot, connecting).is_err() {
            self.end(slot, CloseReason::Unreachable);
        }
    }
}
