//! How connections come to be: opening ours, accepting those that ask, and who is no peer of ours;
//! and how they go.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::rdma::{AcceptOptions, ConnectOptions};
use sprat_proto::rpc::CloseReason;
use sprat_proto::rpc::notes::{Hello, Stranger};
use sprat_proto::rpc::stream::Role;

use super::pair::{Pair, READS};
use super::{Rdma, Wire};
use crate::transport::framed::{CONNECT_NS, Connecting};
use sprat_rdma::engine::{ConnectionState as State, PendingRequest};

impl Rdma {
    /// Begins to connect to a server at the first of `left`.
    pub(super) fn open(
        &mut self,
        now: Instant,
        crc: bool,
        left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        let wire = self.wire(crc)?;
        let slot = self.place_opened(wire);
        if let Err(e) =
            self.try_addresses(now, slot, Connecting { left, until: now.after(CONNECT_NS) })
        {
            self.remove(slot);
            return Err(e);
        }
        Ok(slot)
    }

    /// A queue pair for the connection that is placed next.
    fn wire(&mut self, crc: bool) -> io::Result<Wire> {
        let slot = self.next_slot();
        let (pairs, mut released) = (&mut self.carrier, VecDeque::new());
        let pair = Pair::open(slot, pairs.cq, &mut pairs.world(&mut released))
            .map_err(io::Error::other)?;
        pairs.by_qp.insert(pair.qp, slot);
        pairs.core.events().connections.insert(pair.qp, State::Idle);
        Ok(Wire { pair, crc, held: VecDeque::new(), gone: false, resumed: false })
    }

    /// Goes on to the next addresses for the connection in `slot`.
    fn try_addresses(
        &mut self,
        now: Instant,
        slot: u16,
        mut connecting: Connecting,
    ) -> io::Result<()> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        while let Some(addr) = connecting.left.pop_front() {
            let Some((link, around)) = self.around(slot) else { break };
            let options = ConnectOptions {
                ird: READS,
                ord: READS,
                private_data: Pair::hello(),
                crc: Some(link.wire.crc),
                // By its credits a peer knows how many receives are posted.
                rnr_timeout_ns: Some(0),
                ..ConnectOptions::default()
            };
            let left_ns = connecting.until.since(now);
            match around.carrier.core.connect(now, link.wire.pair.qp, addr, options, left_ns) {
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
                self.carrier.counters.strangers += u64::from(hello.is_none());
                self.carrier.counters.crowded += u64::from(hello.is_some());
                // By our hello it sees which version we speak.
                let _ = self.carrier.core.rnic().reject(now, conn, &Pair::hello());
                continue;
            };
            let options = AcceptOptions {
                ird: READS,
                ord: READS,
                private_data: Pair::hello(),
                rnr_timeout_ns: Some(0),
                ..AcceptOptions::default()
            };
            if self.carrier.core.rnic().accept(now, conn, wire.pair.qp, &options).is_err() {
                self.dropped(wire);
                continue;
            }
            wire.pair.greet(hello);
            self.place_accepted(now, wire);
        }
    }

    /// Looks at connections that stand otherwise than before.
    pub(super) fn moved(&mut self, now: Instant) {
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
                    if Hello::parse(&private_data) == Err(Stranger::Version) {
                        self.end(slot, CloseReason::Version);
                    } else {
                        let why = "the server refuses the connection, for it has no room or is no server of ours";
                        self.unreachable(
                            slot,
                            io::Error::new(io::ErrorKind::ConnectionRefused, why),
                        );
                    }
                }
                State::Unreachable(cause) => self.try_others(now, slot, cause.into()),
                State::Failed(_) => {
                    let why = "what listens there does not speak MPA (iWARP)";
                    self.unreachable(slot, io::Error::new(io::ErrorKind::InvalidData, why));
                }
                State::Disconnected(_) => self.gone(slot),
            }
        }
    }

    fn connected(&mut self, slot: u16, private_data: &[u8], ord: u16) {
        let Some(link) = self.at_slot(slot) else { return };
        if let Role::Client(_) = link.stream.role() {
            match Hello::parse(private_data) {
                Ok(hello) => link.wire.pair.greet(hello),
                Err(Stranger::Version) => return self.end(slot, CloseReason::Version),
                Err(Stranger::Other) => return self.blame(slot),
            }
        }
        link.connecting = None;
        link.wire.pair.connected(ord);
        self.soil(slot);
    }

    /// Goes on to the next addresses for the connection in `slot`, where the last one failed for
    /// this `cause`.
    fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some(connecting) = self.at_slot(slot).and_then(|link| link.connecting.take()) else {
            return;
        };
        if connecting.until <= now || connecting.left.is_empty() {
            return self.unreachable(slot, cause);
        }
        if let Err(e) = self.try_addresses(now, slot, connecting) {
            self.unreachable(slot, e);
        }
    }

    /// Gives back what a connection had.
    pub(super) fn dropped(&mut self, wire: Wire) {
        let qp = wire.pair.qp;
        self.carrier.by_qp.remove(&qp);
        self.carrier.core.events().connections.remove(&qp);
        let (pairs, released) = self.carrier_and_released();
        wire.pair.close(&mut pairs.world(released));
    }
}
