//! A connection that its program has closed and released.

use super::*;

/// The segments that a host sends.
struct Log(Vec<Tcp>);

impl TcpOutput for Log {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: 1460, link_mss: 1460, most: 0 }
    }

    fn emit(&mut self, _: &TcpFlow, _: IpFields, outgoing: &Outgoing<'_>) -> bool {
        self.0.push(outgoing.tcp);
        true
    }
}

/// RFC 9293 3.6.1, RFC 5961 3.2: data for a closed program resets the peer, by exactly the number
/// that the peer expects. The number behind a FIN that had not arrived once made the peer ask
/// first.
#[test]
fn data_for_a_closed_program_is_refused_by_the_expected_number() {
    let config = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let mut host = TcpHost::new(config, 10, Rng::seeded(1));
    host.listen(7, 1).unwrap();
    let at = |last, port| core::net::SocketAddr::from(([10, 7, 0, last], port));
    let flow = TcpFlow { local: at(1, 7), peer: at(2, 9) };
    let now = Instant::from_ns(SECOND);
    let mut log = Log(Vec::new());
    let mut input = |host: &mut TcpHost, tcp: Tcp, data: &[u8]| {
        host.input(now, flow, &Segment { tcp, data, is_marked: false });
        assert!(host.output(now, &mut log));
        log.0.last().copied().unwrap()
    };
    let head = Tcp { from: 9, to: 7, seq: 100, window: 1000, ..Tcp::default() };
    let answer = input(&mut host, Tcp { flags: Flags::SYN, ..head }, &[]);
    let ack = answer.seq.wrapping_add(1);
    let head = Tcp { seq: 101, ack, flags: Flags::ACK, ..head };
    input(&mut host, head, &[]);
    let (id, _) = host.event().unwrap();
    host.close(id);
    host.release(id);
    assert!(input(&mut host, head, &[]).flags.has(Flags::FIN));
    let reset = input(&mut host, head, b"late");
    assert_eq!((reset.flags, reset.seq), (Flags::RST, ack));
    assert_eq!(host.connections(), 0);
}
