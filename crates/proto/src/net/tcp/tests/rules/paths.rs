//! Paths that several connections share.

use core::net::Ipv6Addr;

use super::ip::{Link, answer, frame, header, segment};
use super::*;
use crate::net::Interface;
use crate::net::StackOptions;
use crate::net::ip::output::udp4_header;
use crate::net::tests::{Nic, mac, v4};
use crate::wire::ethernet::{Ethernet, HEADER, IPV6};
use crate::wire::icmp::Icmp;
use crate::wire::ipv4::{self, Ecn, Ipv4};
use crate::wire::ipv6::{self, Ipv6};

/// Returns the frame of a router that reports an MTU of 1000 for a packet.
fn too_big(quoted: &[u8]) -> Vec<u8> {
    let bytes = [&Icmp::TooBig { mtu: 1000 }.emit(quoted)[..], quoted].concat();
    let ip = Ipv4 { protocol: ipv4::ICMP, ..udp4_header(v4(2), v4(1)) };
    frame(&[&ip.emit(bytes.len())[..], &bytes].concat())
}

/// Returns the frame of a segment over IPv6.
fn frame6(ip: &Ipv6, tcp: &Tcp) -> Vec<u8> {
    let mut head = [0; MAX_HEADER];
    let len = tcp.emit(&mut head);
    let checksum = ip.pseudo(ipv4::TCP, len).bytes(&head[..len]).checksum();
    head[16..18].copy_from_slice(&checksum.to_be_bytes());
    let ethernet = Ethernet { to: mac(1), from: mac(2), kind: IPV6 };
    [&ethernet.emit()[..], &ip.emit(len), &head[..len]].concat()
}

/// RFC 1191 6.4: each connection sends what was too big again at once, also if another one to the
/// same peer has learned of the path before. It once waited for a timeout.
#[test]
fn hp25_all_connections_of_a_path_that_narrows_send_again() {
    let config = TcpConfig { mss: 1460, ..plain() };
    let mut link = Link::new(config.clone());
    let mut quoted = Vec::new();
    for _ in 0..2 {
        let (id, _, syn) = link.connect();
        let tcp = answer(&syn, &config);
        assert_eq!(link.segment(&tcp, &[]).len(), 1);
        link.interface.tcp().expect("TCP").write(id, &[1; 1400]);
        let (_, data) = link.sent()[0];
        quoted.push(segment(&header(v4(1), v4(2)), &data, &[1; 1400]));
    }
    for packet in &quoted {
        let sent = link.frame(too_big(packet));
        assert!(!sent.is_empty(), "it is sent again at once");
    }
}

/// RFC 9293 3.9.1.1: the source address of a connection stays that of its beginning, also if
/// another address of this end has a connection to the same peer. The other one's was once taken.
#[test]
fn tm45_each_connection_keeps_its_own_address() {
    let configured = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
    let local = ipv6::link_local(mac(1));
    let peer = ipv6::link_local(mac(2));
    let options = StackOptions { ipv6: Some((configured, 64)), ..StackOptions::default() };
    let mut interface = Interface::new(options, Nic::new(1, 1500), Rng::seeded(1));
    interface.set_neighbour(peer.into(), mac(2));
    interface.stack_mut().enable_tcp(plain(), 10);
    interface.tick(BEGIN);
    interface.tcp().expect("TCP").listen(7, 5).expect("a listener");
    interface.output();
    interface.device_mut().sent.clear();
    for (from, own) in (1000..).zip([configured, local, configured, local]) {
        let syn = Tcp { from, to: 7, ..Script::syn(&plain()) };
        let ip = Ipv6 { next: ipv4::TCP, from: peer, to: own, dscp: 0, ecn: Ecn::NotEct, hops: 64 };
        interface.device_mut().inbox.push_back((frame6(&ip, &syn), Default::default()));
        interface.input();
        interface.output();
        let sent = core::mem::take(&mut interface.device_mut().sent);
        let from: Vec<_> = sent
            .iter()
            .filter_map(|(frame, _)| Ipv6::parse(&frame[HEADER..]).ok())
            .filter(|(ip, _)| ip.next == ipv4::TCP)
            .map(|(ip, _)| ip.from)
            .collect();
        assert_eq!(from, [own]);
    }
}
