//! Connections of the RDMA transport: opened, accepted or refused, and closed.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::rdma::{AcceptOptions, ConnectOptions};
use sprat_proto::rpc::CloseReason;
use sprat_proto::rpc::over_qp::{Hello, HelloError};
use sprat_proto::rpc::stream::Role;

use super::pair::{MAX_READS, Pair};
use super::{Rdma, Wire};
use crate::transport::framed::{CONNECT_NS, Connecting};
use sprat_rdma::engine::{ConnectionState as State, PendingRequest};

impl Rdma {
    /// Begins to connect to a server at the first address of `left` that takes a connection.
    pub(super) fn open(
        &mut self,
        now: Instant,
        crc: bool,
        left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        let wire = self.wire(crc)?;
        let slot = self.insert_opened(wire);
        if let Err(e) =
            self.try_addresses(now, slot, Connecting { left, until: now.after(CONNECT_NS) })
        {
            self.remove(slot);
            return Err(e);
        }
        Ok(slot)
    }

    /// Makes the queue pair of the connection that gets the next slot, with a CRC if `crc`.
    fn wire(&mut self, crc: bool) -> io::Result<Wire> {
        let slot = self.next_slot();
        let (pairs, mut released) = (&mut self.carrier, VecDeque::new());
        let pair = Pair::open(slot, pairs.cq, &mut pairs.engine(&mut released))
            .map_err(io::Error::other)?;
        pairs.by_qp.insert(pair.qp, slot);
        pairs.core.events().connections.insert(pair.qp, State::Idle);
        Ok(Wire { pair, crc, deferred: VecDeque::new(), ended: false, resumed: false })
    }

    /// Begins to connect `slot` to the next address of `connecting` where that is possible.
    fn try_addresses(
        &mut self,
        now: Instant,
        slot: u16,
        mut connecting: Connecting,
    ) -> io::Result<()> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        while let Some(addr) = connecting.left.pop_front() {
            let Some((link, shared)) = self.link_and_shared(slot) else { break };
            let options = ConnectOptions {
                ird: MAX_READS,
                ord: MAX_READS,
                private_data: Pair::hello(),
                crc: Some(link.wire.crc),
                // A peer with credits never sends without a receive: no retry is needed.
                rnr_timeout_ns: Some(0),
                ..ConnectOptions::default()
            };
            let left_ns = connecting.until.since(now);
            match shared.carrier.core.connect(now, link.wire.pair.qp, addr, options, left_ns) {
                Ok(()) => {
                    link.connecting = Some(connecting);
                    return Ok(());
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Accepts or rejects the connection requests that have arrived.
    pub(super) fn accept_requests(&mut self, now: Instant) {
        let Some((listener, _)) = self.carrier.listener else { return };
        while let Some(PendingRequest { conn, private_data, .. }) =
            self.carrier.core.next_request(listener)
        {
            let hello = Hello::parse(&private_data).ok();
            let wire = match hello {
                Some(_) if !self.is_full() => self.wire(true).ok(),
                _ => None,
            };
            let (Some(hello), Some(mut wire)) = (hello, wire) else {
                self.carrier.counters.bad_hello += u64::from(hello.is_none());
                self.carrier.counters.refused_full += u64::from(hello.is_some());
                // The rejected peer learns our version from our hello.
                let _ = self.carrier.core.rnic().reject(now, conn, &Pair::hello());
                continue;
            };
            let options = AcceptOptions {
                ird: MAX_READS,
                ord: MAX_READS,
                private_data: Pair::hello(),
                rnr_timeout_ns: Some(0),
                ..AcceptOptions::default()
            };
            if self.carrier.core.rnic().accept(now, conn, wire.pair.qp, &options).is_err() {
                self.free_pair(wire);
                continue;
            }
            wire.pair.hello_arrived(hello);
            self.insert_accepted(now, wire);
        }
    }

    /// Handles the connections whose state in the engine has changed.
    pub(super) fn connection_events(&mut self, now: Instant) {
        while let Some(qp) =
            self.carrier.core.events().changed.as_mut().and_then(VecDeque::pop_front)
        {
            let pairs = &mut self.carrier;
            let (Some(&slot), Some(state)) =
                (pairs.by_qp.get(&qp), pairs.core.events().connections.get(&qp))
            else {
                continue;
            };
            match state.clone() {
                State::Idle | State::Opening => {}
                State::Connected { private_data, ord, .. } => {
                    self.connected(slot, &private_data, ord)
                }
                State::Rejected { private_data, .. } => {
                    pairs.counters.rejected += 1;
                    if Hello::parse(&private_data) == Err(HelloError::Version) {
                        self.end(slot, CloseReason::Version);
                    } else {
                        let why = "the server refuses the connection: it is full, or not Sprat";
                        self.open_failed(
                            slot,
                            io::Error::new(io::ErrorKind::ConnectionRefused, why),
                        );
                    }
                }
                State::Unreachable(cause) => self.try_others(now, slot, cause.into()),
                State::Failed(_) => {
                    let why = "what listens there does not speak MPA (iWARP)";
                    self.open_failed(slot, io::Error::new(io::ErrorKind::InvalidData, why));
                }
                State::Disconnected(_) => self.pair_ended(slot),
            }
        }
    }

    fn connected(&mut self, slot: u16, private_data: &[u8], ord: u16) {
        let Some(link) = self.link(slot) else { return };
        if let Role::Client(_) = link.stream.role() {
            match Hello::parse(private_data) {
                Ok(hello) => link.wire.pair.hello_arrived(hello),
                Err(HelloError::Version) => return self.end(slot, CloseReason::Version),
                Err(HelloError::Invalid) => return self.protocol_error(slot),
            }
        }
        link.connecting = None;
        link.wire.pair.connected(ord);
        self.mark_dirty(slot);
    }

    /// Tries the next addresses for the connection in `slot`, after one failed with `cause`.
    fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some(connecting) = self.link(slot).and_then(|link| link.connecting.take()) else {
            return;
        };
        if connecting.until <= now || connecting.left.is_empty() {
            return self.open_failed(slot, cause);
        }
        if let Err(e) = self.try_addresses(now, slot, connecting) {
            self.open_failed(slot, e);
        }
    }

    /// Destroys the queue pair of a connection.
    pub(super) fn free_pair(&mut self, wire: Wire) {
        let qp = wire.pair.qp;
        self.carrier.by_qp.remove(&qp);
        self.carrier.core.events().connections.remove(&qp);
        let (pairs, released) = self.carrier_and_released();
        wire.pair.close(&mut pairs.engine(released));
    }
}
