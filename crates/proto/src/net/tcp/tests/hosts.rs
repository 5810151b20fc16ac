//! Hosts with many connections, and the network between them, in virtual time.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;

/// The port of the listener.
pub(in crate::net::tcp) const PORT: u16 = 80;
/// The time from host to host.
pub(in crate::net::tcp) const DELAY: u64 = MS;

/// A segment on its way between hosts.
#[derive(Clone, Debug)]
pub(in crate::net::tcp) struct Packet {
    /// The addresses and ports as the receiver sees them.
    pub(in crate::net::tcp) flow: TcpFlow,
    pub(in crate::net::tcp) tcp: Tcp,
    pub(in crate::net::tcp) data: Vec<u8>,
}

/// The packets that a host sends.
pub(in crate::net::tcp) struct Sender<'a>(pub(in crate::net::tcp) &'a mut Vec<Packet>);

impl TcpOutput for Sender<'_> {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: 1460, link_mss: 1460, most: 0 }
    }

    fn emit(&mut self, flow: &TcpFlow, _: IpFields, outgoing: &Outgoing<'_>) -> bool {
        let data = [outgoing.data.0, outgoing.data.1].concat();
        let flow = TcpFlow { local: flow.peer, peer: flow.local };
        self.0.push(Packet { flow, tcp: outgoing.tcp, data });
        true
    }
}

/// Hosts and a network that loses what a test picks. Host 0 has a listener, and each host the
/// address 10.0.0 with its number.
pub(in crate::net::tcp) struct Hosts {
    pub(in crate::net::tcp) now: Instant,
    pub(in crate::net::tcp) hosts: Vec<TcpHost>,
    flying: BTreeMap<(Instant, u64), Packet>,
    numbers: u64,
    /// Picks the packets that are lost.
    pub(in crate::net::tcp) loses: fn(&Packet) -> bool,
    /// All packets that hosts have sent.
    pub(in crate::net::tcp) log: Vec<Packet>,
    pub(in crate::net::tcp) events: Vec<(usize, TcpId, TcpChanges)>,
    /// True if the programs take events.
    pub(in crate::net::tcp) takes: bool,
}

pub(in crate::net::tcp) fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, (host >> 8) as u8, host as u8).into()
}

pub(in crate::net::tcp) fn is_syn_ack(tcp: &Tcp) -> bool {
    tcp.flags.has(Flags::SYN) && tcp.flags.has(Flags::ACK)
}

impl Hosts {
    /// Returns a listener and `clients` hosts, each of which may have `most` connections.
    pub(in crate::net::tcp) fn new(
        config: &TcpConfig,
        clients: usize,
        most: usize,
        backlog: u32,
    ) -> Self {
        let mut hosts: Vec<_> = (0..=clients as u64)
            .map(|n| TcpHost::new(config.clone(), most, Rng::seeded(n)))
            .collect();
        hosts[0].listen(PORT, backlog).unwrap();
        Self {
            now: Instant::from_ns(1000 * SECOND),
            hosts,
            flying: BTreeMap::new(),
            numbers: 0,
            loses: |_| false,
            log: Vec::new(),
            events: Vec::new(),
            takes: true,
        }
    }

    pub(in crate::net::tcp) fn connect(&mut self, client: usize) -> TcpId {
        let peer = SocketAddr::new(address(0), PORT);
        self.hosts[client].connect(self.now, (address(client), 0).into(), peer).unwrap()
    }

    /// Gives a segment of an end that is no host to host 0.
    pub(in crate::net::tcp) fn forge(&mut self, peer: SocketAddr, tcp: Tcp, data: &[u8]) {
        let flow = TcpFlow { local: SocketAddr::new(address(0), PORT), peer };
        let tcp = Tcp { from: peer.port(), to: PORT, ..tcp };
        self.hosts[0].input(self.now, flow, &Segment { tcp, data, is_marked: false });
    }

    /// Lets all hosts send what they can.
    pub(in crate::net::tcp) fn work(&mut self) {
        for n in 0..self.hosts.len() {
            let mut out = Vec::new();
            self.hosts[n].output(self.now, &mut Sender(&mut out));
            for packet in out {
                self.numbers += 1;
                self.log.push(packet.clone());
                if !(self.loses)(&packet) {
                    self.flying.insert((self.now.after(DELAY), self.numbers), packet);
                }
            }
            while self.takes
                && let Some((id, changes)) = self.hosts[n].event()
            {
                self.events.push((n, id, changes));
            }
        }
    }

    /// Lets time pass until then.
    pub(in crate::net::tcp) fn run(&mut self, ns: u64) {
        let end = self.now.after(ns);
        loop {
            self.work();
            let timer = self.hosts.iter().filter_map(TcpHost::deadline).min();
            let arrival = self.flying.first_key_value().map(|(&(at, _), _)| at);
            let next = timer.into_iter().chain(arrival).min().filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
                let Packet { flow, tcp, data } = entry.remove();
                let number = (0..self.hosts.len()).find(|n| address(*n) == flow.local.ip());
                let Some(number) = number else { continue };
                let segment = Segment { tcp, data: &data, is_marked: false };
                self.hosts[number].input(self.now, flow, &segment);
            }
            let now = self.now;
            self.hosts.iter_mut().for_each(|host| host.tick(now));
        }
        self.now = end;
    }

    /// Returns the connections of a host whose events said that they are open.
    pub(in crate::net::tcp) fn opened(&self, host: usize) -> Vec<TcpId> {
        let events = self.events.iter().filter(|(n, _, changes)| *n == host && changes.opened);
        events.map(|(_, id, _)| *id).collect()
    }

    /// Returns all that a connection has received.
    pub(in crate::net::tcp) fn read(&mut self, host: usize, id: TcpId) -> Vec<u8> {
        let mut bytes = alloc::vec![0; 100_000];
        let count = self.hosts[host].read(id, &mut bytes);
        bytes.truncate(count);
        bytes
    }
}
