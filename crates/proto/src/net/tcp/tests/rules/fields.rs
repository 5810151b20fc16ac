//! Rules of the fields of IP headers that a program chooses (RFC 9293 3.9.1.9, 3.9.2):
//! Differentiated Services and the time to live.

use core::net::SocketAddr;

use super::ip::{Link, answer, to};
use super::*;
use crate::net::tests::{mac, v4};
use crate::wire::ethernet::HEADER;
use crate::wire::ipv4::{Ecn, Ipv4};
use crate::wire::ipv6;

/// The codepoint of expedited forwarding (RFC 3246).
const EF: u8 = 46;

fn chosen() -> TcpConfig {
    TcpConfig { dscp: EF, ttl: 200, ..plain() }
}

/// Returns what a program chooses for one connection or listener.
fn own(dscp: u8, ttl: u8) -> TcpSettings {
    TcpSettings { dscp: Some(dscp), ttl: Some(ttl), ..TcpSettings::default() }
}

/// Returns the fields of packets that leave, each with the flags of its segment.
fn fields(sent: &[(Ipv4, Tcp)]) -> Vec<(u8, u8, Flags)> {
    sent.iter().map(|(ip, tcp)| (ip.dscp, ip.ttl, tcp.flags)).collect()
}

const ACK: Flags = Flags::ACK;
const PSH: Flags = Flags::ACK.with(Flags::PSH);
const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

impl Link {
    fn host(&mut self) -> &mut TcpHost {
        self.interface.tcp().expect("TCP")
    }

    /// Opens a connection to host 2. Returns it, and the header of the peer's next segment.
    fn open(&mut self, config: &TcpConfig) -> (TcpId, Tcp) {
        let (id, _, syn) = self.connect();
        let tcp = answer(&syn, config);
        assert_eq!(self.segment(&tcp, &[]).len(), 1);
        (id, Tcp { seq: PEER + 1, flags: ACK, options: TcpOptions::default(), ..tcp })
    }

    fn set(&mut self, id: TcpId, settings: TcpSettings) {
        self.host().set(BEGIN, id, settings);
        assert_eq!(self.host().settings(id), Some(settings));
    }

    fn write(&mut self, id: TcpId) -> Vec<(Ipv4, Tcp)> {
        self.host().write(id, b"data");
        self.sent()
    }
}

/// RFC 9293 3.9.1.9, 3.9.2: the bytes of an IPv4 header with the fields that the program has chosen
/// for all connections. A program of its own has computed the checksum.
#[test]
fn tm48_tm49_ts22_an_ipv4_header_has_the_fields_of_the_options() {
    let mut link = Link::new(chosen());
    link.interface.connect_tcp(0, to(v4(2))).expect("a connection");
    link.interface.output();
    let sent = core::mem::take(&mut link.interface.device_mut().sent);
    let wanted = [0x45, 0xb8, 0, 0x30, 0, 0, 0x40, 0, 200, 6, 0x9d, 0xff, 10, 7, 0, 1, 10, 7, 0, 2];
    assert_eq!(sent[0].0[HEADER..HEADER + 20], wanted);
}

/// RFC 9293 3.9.1.9, 3.9.2: an IPv6 header has the fields in its traffic class and its hop limit.
/// The ECN bits beside the codepoint stay TCP's.
#[test]
fn tm48_tm49_ts22_an_ipv6_header_has_the_fields_of_the_options() {
    let config = TcpConfig { ecn: true, ..chosen() };
    let mut link = Link::new(config.clone());
    let peer = ipv6::link_local(mac(2));
    link.interface.set_neighbour(peer.into(), mac(2));
    let id = link.interface.connect_tcp(0, SocketAddr::new(peer.into(), 80)).expect("a way");
    link.interface.output();
    let sent = core::mem::take(&mut link.interface.device_mut().sent);
    assert_eq!(sent[0].0[HEADER..HEADER + 8], [0x6b, 0x80, 0, 0, 0, 28, 6, 200]);
    let flow = link.host().flow(id).expect("a flow");
    let (syn, _) = Tcp::parse(&sent[0].0[HEADER + ipv6::HEADER..]).expect("a SYN");
    let segment = Segment { tcp: answer(&syn, &config), data: &[], is_marked: false };
    link.host().input(BEGIN, flow, &segment);
    link.host().write(id, b"data");
    link.interface.output();
    let sent = core::mem::take(&mut link.interface.device_mut().sent);
    let (data, _) = sent.last().expect("the data");
    assert_eq!(data[HEADER..HEADER + 8], [0x6b, 0xa0, 0, 0, 0, 24, 6, 200], "ECT(0)");
}

/// RFC 9293 3.9.1.9: the program chooses the fields of one connection, and others while it is open,
/// and returns to those of all connections. Its ECN bits stay as they are.
#[test]
fn tm48_tm49_ts21_the_fields_of_one_connection_change_while_it_is_open() {
    let config = TcpConfig { ecn: true, ..chosen() };
    let mut link = Link::new(config.clone());
    let (id, head) = link.open(&config);
    let sent = link.write(id);
    assert_eq!((fields(&sent), sent[0].0.ecn), (Vec::from([(EF, 200, PSH)]), Ecn::Ect0));
    link.set(id, own(63, 255));
    let sent = link.write(id);
    assert_eq!((fields(&sent), sent[0].0.ecn), (Vec::from([(63, 255, PSH)]), Ecn::Ect0));
    link.set(id, TcpSettings { dscp: Some(64 + 1), ttl: Some(0), ..TcpSettings::default() });
    assert_eq!(fields(&link.write(id)), [(1, 1, PSH)], "within their bits, and never 0");
    link.set(id, own(0, 1));
    let ack = link.segment(&head, &[1; 1000]);
    assert!(ack.is_empty(), "the acknowledgement waits for the second segment");
    let seq = head.seq.wrapping_add(1000);
    assert_eq!(fields(&link.segment(&Tcp { seq, ..head }, &[1; 1000])), [(0, 1, ACK)]);
    link.set(id, TcpSettings::default());
    assert_eq!(fields(&link.write(id)), [(EF, 200, PSH)]);
    let (other, _) = link.open(&config);
    link.set(id, own(7, 7));
    assert_eq!(fields(&link.write(other)), [(EF, 200, PSH)], "of another connection");
    link.host().config_mut().dscp = 5;
    assert_eq!(fields(&link.write(other)), [(EF, 200, PSH)], "of connections to come");
    let (next, _) = link.open(&config);
    assert_eq!(fields(&link.write(next)), [(5, 200, PSH)]);
}

/// RFC 9293 3.9.1.1: the fields that the program chooses when it opens a connection are those of
/// its SYN, also of one that waits for its next hop.
#[test]
fn tm48_tm49_the_first_syn_has_the_fields_of_its_connection() {
    let mut link = Link::new(plain());
    let id = link.interface.connect_tcp(0, to(v4(2))).expect("a connection");
    link.set(id, own(EF, 9));
    assert_eq!(fields(&link.sent()), [(EF, 9, Flags::SYN)]);
    let id = link.interface.connect_tcp(0, to(v4(3))).expect("a connection");
    link.set(id, own(EF, 9));
    assert_eq!(fields(&link.sent()), [], "host 3 is not resolved");
    link.interface.set_neighbour(v4(3).into(), mac(3));
    let sent = link.sent();
    assert_eq!(fields(&sent), [(EF, 9, Flags::SYN)]);
    let peer = ipv6::link_local(mac(3));
    let id = link.interface.connect_tcp(0, SocketAddr::new(peer.into(), 80)).expect("a way");
    link.set(id, own(EF, 9));
    link.interface.output();
    link.interface.device_mut().sent.clear();
    link.interface.set_neighbour(peer.into(), mac(3));
    link.interface.output();
    let sent = core::mem::take(&mut link.interface.device_mut().sent);
    assert_eq!(sent[0].0[HEADER..HEADER + 8], [0x6b, 0x80, 0, 0, 0, 28, 6, 9]);
}

/// RFC 9293 3.9.1.9, 3.10.7.3: a reset of an impossible answer to a SYN has the fields of the
/// connection that has sent the SYN.
#[test]
fn tm48_tm49_ts22_the_reset_of_an_answer_has_the_fields_of_the_connection() {
    let mut link = Link::new(chosen());
    let (id, _, syn) = link.connect();
    link.set(id, own(10, 20));
    let wrong = Tcp { ack: syn.seq.wrapping_add(100), ..answer(&syn, &plain()) };
    assert_eq!(fields(&link.segment(&wrong, &[])), [(10, 20, Flags::RST)]);
    assert_eq!(link.host().connections(), 1);
}

/// RFC 9293 3.9.1.9: the segments of a connection have its fields from the answer to its SYN to its
/// reset: they are those of its listener, and the other options too.
#[test]
fn tm48_tm49_ts22_connections_inherit_the_fields_of_their_listener() {
    let mut link = Link::new(plain());
    let settings = TcpSettings { keep_alive_ns: Some(Some(SECOND)), ..own(10, 20) };
    link.host().set_listener(7, settings);
    assert_eq!(link.host().listener_settings(7), settings);
    let syn = Script::syn(&plain());
    let sent = link.segment(&syn, &[]);
    assert_eq!(fields(&sent), [(10, 20, SYN_ACK)]);
    let ack = sent[0].1.seq.wrapping_add(1);
    let head = Tcp { seq: PEER + 1, ack, flags: Flags::ACK, ..syn };
    link.segment(&Tcp { options: TcpOptions::default(), ..head }, &[]);
    let (id, _) = link.host().event().expect("a connection");
    assert_eq!(link.host().settings(id), Some(settings));
    assert_eq!(fields(&link.write(id)), [(10, 20, PSH)]);
    link.host().set_listener(7, TcpSettings::default());
    assert_eq!(fields(&link.write(id)), [(10, 20, PSH)], "it is the connection's now");
    let challenge = Tcp { flags: Flags::SYN, options: TcpOptions::default(), ..head };
    assert_eq!(fields(&link.segment(&challenge, &[])), [(10, 20, ACK)], "RFC 5961 4.2");
    link.host().abort(id);
    assert_eq!(fields(&link.sent()), [(10, 20, Flags::RST.with(Flags::ACK))]);
    link.host().unlisten(7);
    link.host().listen(7, 5).expect("a listener");
    assert_eq!(fields(&link.segment(&Tcp { from: 9, ..syn }, &[])), [(0, 64, SYN_ACK)]);
}

/// RFC 9293 3.9.1.9: a cookie is the first segment of a connection, too, and has the fields of the
/// listener. So has the connection that begins by it.
#[test]
fn tm48_tm49_ts22_cookies_have_the_fields_of_their_listener() {
    let mut link = Link::new(chosen());
    link.host().set_listener(7, own(10, 20));
    let syn = Script::syn(&plain());
    for from in 1..=6 {
        let sent = link.segment(&Tcp { from, ..syn }, &[]);
        assert_eq!(fields(&sent), [(10, 20, SYN_ACK)], "{from}");
    }
    let counters = |link: &mut Link| {
        let counters = link.host().counters();
        (counters.cookies_sent, counters.cookies_accepted)
    };
    assert_eq!(counters(&mut link), (1, 0));
    let cookie = link.segment(&Tcp { from: 7, ..syn }, &[])[0].1;
    let ack = cookie.seq.wrapping_add(1);
    let (flags, options) = (Flags::ACK, TcpOptions::default());
    link.segment(&Tcp { from: 7, seq: PEER + 1, ack, flags, options, ..syn }, &[]);
    assert_eq!(counters(&mut link), (2, 1));
    let (id, _) = link.host().event().expect("a connection");
    assert_eq!(fields(&link.write(id)), [(10, 20, PSH)]);
}

/// RFC 9293 3.9.1.9: an answer in TIME-WAIT has the fields that the connection had, and a reset of
/// no connection those of the host, for which the RFC names none.
#[test]
fn tm48_tm49_ts22_answers_without_a_connection_have_sensible_fields() {
    let mut link = Link::new(chosen());
    let (id, head) = link.open(&plain());
    link.set(id, own(10, 20));
    link.host().release(id);
    let fin = link.sent();
    assert_eq!(fields(&fin), [(10, 20, ACK.with(Flags::FIN))]);
    let ack = fin[0].1.seq.wrapping_add(1);
    let end = Tcp { ack, flags: ACK.with(Flags::FIN), ..head };
    assert_eq!(fields(&link.segment(&end, &[])), [(10, 20, ACK)]);
    assert_eq!((link.host().connections(), link.host().time_waits()), (0, 1));
    assert_eq!(fields(&link.segment(&end, &[])), [(10, 20, ACK)], "in TIME-WAIT");
    let stray = Tcp { to: 1000, ..end };
    assert_eq!(fields(&link.segment(&stray, &[])), [(EF, 200, Flags::RST)]);
}
