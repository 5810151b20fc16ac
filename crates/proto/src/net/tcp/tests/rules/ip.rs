//! Rules of TCP over IP: checksums, addresses, ICMP, ECN in the IP header (RFC 9293 3.1, 3.9.2).

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;
use crate::device::RxOffload;
use crate::net::Interface;
use crate::net::ip::output::udp4_header;
use crate::net::tests::{Nic, mac, static_ipv4, v4};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Ethernet, HEADER, IPV4, IPV6};
use crate::wire::icmp::Icmp;
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Ipv6};

/// Host 1 with a listener at port 7, and a script that plays host 2.
pub(super) struct Link {
    pub(super) interface: Interface<Nic>,
}

impl Link {
    pub(super) fn new(config: TcpConfig) -> Self {
        let mut interface = Interface::new(static_ipv4(1), Nic::new(1, 1500), Rng::seeded(1));
        interface.set_neighbour(v4(2).into(), mac(2));
        interface.stack_mut().enable_tcp(config, 10);
        interface.tick(BEGIN);
        interface.tcp().expect("TCP").listen(7, 5).expect("a listener");
        let mut link = Self { interface };
        link.sent();
        link
    }

    /// Takes a frame, and returns the segments that leave.
    pub(super) fn frame(&mut self, frame: Vec<u8>) -> Vec<(Ipv4, Tcp)> {
        let device = self.interface.device_mut();
        device.inbox.push_back((frame, RxOffload::default()));
        while self.interface.input() > 0 {}
        self.sent()
    }

    /// Returns the segments that leave, whose checksums are right.
    pub(super) fn sent(&mut self) -> Vec<(Ipv4, Tcp)> {
        self.interface.output();
        let frames = core::mem::take(&mut self.interface.device_mut().sent);
        let parse = |frame: &[u8]| {
            let (ip, bytes) = Ipv4::parse(frame.get(HEADER..)?).ok()?;
            let is_tcp = frame[12..14] == IPV4.to_be_bytes() && ip.protocol == ipv4::TCP;
            let (tcp, _) = Tcp::parse(is_tcp.then_some(bytes)?).ok()?;
            assert_eq!(ip.pseudo(bytes.len()).bytes(bytes).checksum(), 0, "the checksum");
            Some((ip, tcp))
        };
        frames.iter().filter_map(|(frame, _)| parse(frame)).collect()
    }

    /// Takes a segment of host 2.
    pub(super) fn segment(&mut self, tcp: &Tcp, data: &[u8]) -> Vec<(Ipv4, Tcp)> {
        self.frame(frame(&segment(&header(v4(2), v4(1)), tcp, data)))
    }

    /// Begins a connection to host 2. Returns its SYN.
    pub(super) fn connect(&mut self) -> (TcpId, Ipv4, Tcp) {
        let id = self.interface.connect_tcp(0, to(v4(2))).expect("a connection");
        let (ip, syn) = self.sent()[0];
        (id, ip, syn)
    }

    fn state(&mut self, id: TcpId) -> Option<TcpState> {
        self.interface.tcp()?.connection(id).map(Connection::state)
    }
}

pub(super) fn to(addr: Ipv4Addr) -> SocketAddr {
    SocketAddr::new(addr.into(), 80)
}

pub(super) fn header(from: Ipv4Addr, to: Ipv4Addr) -> Ipv4 {
    Ipv4 { protocol: ipv4::TCP, ..udp4_header(from, to) }
}

/// Returns an IP packet with a segment.
pub(super) fn segment(ip: &Ipv4, tcp: &Tcp, data: &[u8]) -> Vec<u8> {
    let mut head = [0; MAX_HEADER];
    let len = tcp.emit(&mut head);
    let mut bytes = [&head[..len], data].concat();
    let checksum = ip.pseudo(bytes.len()).bytes(&bytes).checksum();
    bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
    [&ip.emit(bytes.len())[..], &bytes].concat()
}

pub(super) fn frame(packet: &[u8]) -> Vec<u8> {
    [&Ethernet { to: mac(1), from: mac(2), kind: IPV4 }.emit()[..], packet].concat()
}

pub(super) fn answer(syn: &Tcp, config: &TcpConfig) -> Tcp {
    let ece = if config.ecn { Flags::ECE } else { Flags(0) };
    let flags = Flags::SYN.with(Flags::ACK).with(ece);
    let ack = syn.seq.wrapping_add(1);
    Tcp { from: 80, to: syn.from, ack, flags, ..Script::syn(config) }
}

/// RFC 9293 3.1, 3.9.2: checksums are computed, which [`Link::sent`] checks, and a wrong one is a
/// segment that has never come.
#[test]
fn tm2_tm3_checksums_are_computed_and_checked() {
    let mut link = Link::new(plain());
    let syn = Script::syn(&plain());
    let mut packet = segment(&header(v4(2), v4(1)), &syn, &[]);
    packet[30] ^= 1;
    assert_eq!(link.frame(frame(&packet)), []);
    assert_eq!(link.interface.stack().counters().drop_checksum, 1);
    packet[30] ^= 1;
    assert_eq!(link.frame(frame(&packet)).len(), 1);
}

/// RFC 9293 3.9.1.1: the address of this end is that of the way to the peer.
#[test]
fn tm44_the_address_is_that_of_the_way_to_the_peer() {
    let (_, ip, _) = Link::new(plain()).connect();
    assert_eq!((ip.from, ip.to), (v4(1), v4(2)));
}

/// RFC 9293 3.9.1.1: there are no connections to many.
#[test]
fn tm46_there_is_no_connection_to_an_address_of_many() {
    let mut link = Link::new(plain());
    for addr in [
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 1, 2, 3),
        Ipv4Addr::BROADCAST,
        Ipv4Addr::UNSPECIFIED,
        v4(255),
    ] {
        let connected = link.interface.connect_tcp(0, to(addr));
        assert_eq!(connected, Err(TcpOpenError::NoRoute), "{addr}");
    }
    for addr in ["ff02::1", "ff0e::5"] {
        let addr: IpAddr = addr.parse().expect("an address");
        let connected = link.interface.connect_tcp(0, SocketAddr::new(addr, 80));
        assert_eq!(connected, Err(TcpOpenError::NoRoute), "{addr}");
    }
    assert_eq!(link.sent(), []);
}

/// RFC 9293 3.9.2: IP options that nothing understands are skipped.
#[test]
fn tm50_ip_options_are_ignored() {
    let mut link = Link::new(plain());
    let mut packet = segment(&header(v4(2), v4(1)), &Script::syn(&plain()), &[]);
    packet.splice(20..20, [7, 7, 4, 1, 2, 3, 4, 0]);
    packet[0] = 0x47;
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[10..12].fill(0);
    let checksum = Sum::new().bytes(&packet[..28]).checksum();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(link.frame(frame(&packet)).len(), 1);
}

/// RFC 9293 3.9.2.3: a SYN to many, or from an address that is none of one host, has no answer.
#[test]
fn tm57_tm63_syns_to_many_or_from_no_host_are_dropped() {
    let mut link = Link::new(plain());
    let syn = Script::syn(&plain());
    let many = [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1), v4(255)];
    for addr in many {
        let packet = segment(&header(v4(2), addr), &syn, &[]);
        assert_eq!(link.frame(frame(&packet)), [], "to {addr}");
        let mut packet = frame(&packet);
        packet[..6].fill(0xff);
        assert_eq!(link.frame(packet), [], "to {addr}, for all on the link");
    }
    let none = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(127, 0, 0, 1), v4(1)];
    for addr in many.into_iter().chain(none) {
        let packet = segment(&header(addr, v4(1)), &syn, &[]);
        assert_eq!(link.frame(frame(&packet)), [], "from {addr}");
        assert_eq!(link.interface.tcp().map(|tcp| tcp.connections()), Some(0), "from {addr}");
    }
    let mut packet = frame(&segment(&header(v4(2), v4(1)), &syn, &[]));
    packet[..6].fill(0xff);
    assert_eq!(link.frame(packet), [], "for all on the link");
    assert_eq!(link.segment(&syn, &[]).len(), 1, "from a host to this one");
}

/// RFC 9293 3.9.2.2: an ICMP error is for the connection that it quotes. Of those in a handshake it
/// ends one if it says that the port does not exist; source quench and all others end none.
#[test]
fn tm54_tm55_tm56_icmp_errors_are_for_the_connection_that_they_quote() {
    let mut link = Link::new(plain());
    let (id, ip, syn) = link.connect();
    let quoted = segment(&ip, &syn, &[]);
    let report = |message: &Icmp, quoted: &[u8]| {
        let bytes = [&message.emit(quoted)[..], quoted].concat();
        let ip = Ipv4 { protocol: ipv4::ICMP, ..udp4_header(v4(2), v4(1)) };
        frame(&[&ip.emit(bytes.len())[..], &bytes].concat())
    };
    let soft = [0, 1, 5, 6, 11].map(|code| Icmp::Unreachable { code });
    for message in soft.into_iter().chain([Icmp::Other(4), Icmp::Other(11), Icmp::Other(12)]) {
        link.frame(report(&message, &quoted));
        assert_eq!(link.state(id), Some(TcpState::SynSent), "{message:?}");
    }
    let mut other = quoted.clone();
    other[21] ^= 1;
    link.frame(report(&Icmp::PortUnreachable, &other));
    assert_eq!(link.state(id), Some(TcpState::SynSent), "of another port");
    link.frame(report(&Icmp::PortUnreachable, &quoted));
    assert_eq!(link.state(id), Some(TcpState::Closed));
    let error = link.interface.tcp().and_then(|tcp| tcp.error(id));
    assert_eq!(error, Some(TcpError::Refused));
}

/// RFC 9293 3.9.1.8, 3.9.2.2: the program hears of soft ICMP errors, which end no connection. A
/// protocol that the peer's host has not is a hard error: it ends a connection in its handshake.
#[test]
fn tm47_tm56_ts25_soft_icmp_errors_are_reported_and_end_no_connection() {
    let mut link = Link::new(plain());
    let (id, _, syn) = link.connect();
    let report = |message: &Icmp, quoted: &[u8]| {
        let bytes = [&message.emit(quoted)[..], quoted].concat();
        let ip = Ipv4 { protocol: ipv4::ICMP, ..udp4_header(v4(3), v4(1)) };
        frame(&[&ip.emit(bytes.len())[..], &bytes].concat())
    };
    assert_eq!(link.segment(&answer(&syn, &plain()), &[]).len(), 1);
    let tcp = |link: &mut Link| link.interface.tcp().expect("TCP").event();
    assert!(tcp(&mut link).is_some_and(|(_, changes)| changes.opened && !changes.warned));
    link.interface.tcp().expect("TCP").write(id, b"data");
    let (ip, data) = link.sent()[0];
    let quoted = segment(&ip, &data, b"data");
    let unreachable = |code| TcpSoftError::Unreachable { code };
    for (message, wanted) in [
        (Icmp::Unreachable { code: 0 }, unreachable(0)),
        (Icmp::Unreachable { code: 1 }, unreachable(1)),
        (Icmp::Unreachable { code: 2 }, unreachable(2)),
        (Icmp::Unreachable { code: 5 }, unreachable(5)),
        (Icmp::Other(11), TcpSoftError::TimeExceeded),
        (Icmp::Other(12), TcpSoftError::ParameterProblem),
    ] {
        link.frame(report(&message, &quoted));
        assert!(tcp(&mut link).is_some_and(|(_, c)| c.warned && !c.ended), "{message:?}");
        let host = link.interface.tcp().expect("TCP");
        let wanted = TcpReport { error: wanted, from: v4(3).into() };
        assert_eq!((host.soft_error(id), host.error(id)), (Some(wanted), None));
    }
    assert_eq!(link.state(id), Some(TcpState::Established));
    let other = segment(&ip, &Tcp { seq: data.seq.wrapping_add(5), ..data }, b"data");
    link.frame(report(&Icmp::Unreachable { code: 1 }, &other));
    assert_eq!(tcp(&mut link), None, "of a segment that was never sent");
    assert_eq!(link.interface.stack().tcp_counters().map(|c| c.soft_errors), Some(6));
    let (id, ip, syn) = link.connect();
    link.frame(report(&Icmp::Unreachable { code: 2 }, &segment(&ip, &syn, &[])));
    assert_eq!(link.state(id), Some(TcpState::Closed));
}

/// RFC 4443 3.1, 3.3, 3.4: over IPv6 a program hears of the same, and only a port without a
/// listener ends a connection in its handshake.
#[test]
fn tm47_tm56_soft_icmpv6_errors_are_reported_and_end_no_connection() {
    let mut link = Link::new(plain());
    let (own, peer) = (ipv6::link_local(mac(1)), ipv6::link_local(mac(2)));
    link.interface.set_neighbour(peer.into(), mac(2));
    let id = link.interface.connect_tcp(0, SocketAddr::new(peer.into(), 80)).expect("a way");
    link.interface.output();
    let sent = core::mem::take(&mut link.interface.device_mut().sent);
    let quoted = sent[0].0[HEADER..].to_vec();
    let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::ICMPV6, hops: 64, from: peer, to: own };
    let report = |message: &Icmpv6| {
        let bytes = message.emit(&ip, &quoted);
        let head = Ethernet { to: mac(1), from: mac(2), kind: IPV6 }.emit();
        [&head[..], &ip.emit(bytes.len()), &bytes].concat()
    };
    for (message, wanted) in [
        (Icmpv6::Unreachable { code: 0 }, TcpSoftError::Unreachable { code: 0 }),
        (Icmpv6::Unreachable { code: 2 }, TcpSoftError::Unreachable { code: 2 }),
        (Icmpv6::Unreachable { code: 3 }, TcpSoftError::Unreachable { code: 3 }),
        (Icmpv6::Other(3), TcpSoftError::TimeExceeded),
        (Icmpv6::Other(4), TcpSoftError::ParameterProblem),
    ] {
        link.frame(report(&message));
        assert_eq!(link.state(id), Some(TcpState::SynSent), "{message:?}");
        let wanted = TcpReport { error: wanted, from: peer.into() };
        assert_eq!(link.interface.tcp().and_then(|tcp| tcp.soft_error(id)), Some(wanted));
    }
    link.frame(report(&Icmpv6::PortUnreachable));
    assert_eq!(link.state(id), Some(TcpState::Closed));
}

/// RFC 3168 6.1.2, 5.3: new data is ECT(0). A mark of one fragment is one of the whole packet, and
/// a packet that should have none is dropped.
#[test]
fn ec1_ec5_data_is_ect_0_and_reassembly_loses_no_mark() {
    let config = TcpConfig { ecn: true, ..plain() };
    for (marks, wanted) in [
        ([Ecn::Ce, Ecn::Ect0], Some(true)),
        ([Ecn::Ect0, Ecn::Ce], Some(true)),
        ([Ecn::Ect0, Ecn::Ect0], Some(false)),
        ([Ecn::Ce, Ecn::NotEct], None),
    ] {
        let mut link = Link::new(config.clone());
        let (id, _, syn) = link.connect();
        let mut tcp = answer(&syn, &config);
        assert_eq!(link.segment(&tcp, &[]).len(), 1);
        link.interface.tcp().expect("TCP").write(id, b"data");
        let sent = link.sent();
        assert_eq!((sent.len(), sent[0].0.ecn), (1, Ecn::Ect0));
        (tcp.flags, tcp.seq) = (Flags::ACK, PEER + 1);
        tcp.options = TcpOptions::default();
        let whole = segment(&header(v4(2), v4(1)), &tcp, &[1; 1000]);
        let mut out = Vec::new();
        for (i, part) in whole[20..].chunks(512).enumerate() {
            let (offset, more) = (512 * i as u16, i == 0);
            let ip = Ipv4 { ecn: marks[i], offset, more, ident: 9, ..header(v4(2), v4(1)) };
            let ip = Ipv4 { dont_fragment: false, ..ip };
            out.extend(link.frame(frame(&[&ip.emit(part.len())[..], part].concat())));
        }
        tcp.seq = tcp.seq.wrapping_add(1000);
        out.extend(link.segment(&tcp, &[1; 1000]));
        let is_marked = out.iter().any(|(_, tcp)| tcp.flags.has(Flags::ECE));
        let acked = out.last().map(|(_, tcp)| tcp.ack.wrapping_sub(PEER + 1));
        assert_eq!(acked, Some(if wanted.is_some() { 2000 } else { 0 }), "{marks:?}");
        assert_eq!(is_marked, wanted == Some(true), "{marks:?}");
    }
}
