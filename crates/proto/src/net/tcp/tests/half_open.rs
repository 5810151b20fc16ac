//! Connections of a host that end before they are open.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;

/// A peer that takes its SYN back leaves nothing, and the program hears nothing of it. Once the
/// host kept such a connection until the program released it, which had never seen it.
#[test]
fn a_connection_that_is_taken_back_leaves_nothing() {
    let mut host = TcpHost::new(TcpConfig::default(), 10, Rng::seeded(1));
    host.listen(7, 1).unwrap();
    let at = |last, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port);
    let flow = TcpFlow { local: at(1, 7), peer: at(2, 1000) };
    let now = Instant::from_ns(SECOND);
    for seq in 0..5 {
        let syn = Tcp { from: 1000, to: 7, seq, flags: Flags::SYN, ..Tcp::default() };
        host.input(now, flow, &Segment { tcp: syn, data: &[], is_marked: false });
        assert_eq!(host.connections(), 1, "the backlog has room for one");
        let reset = Tcp { seq: seq + 1, flags: Flags::RST, ..syn };
        host.input(now, flow, &Segment { tcp: reset, data: &[], is_marked: false });
        host.output(now, &mut Nothing);
        assert_eq!((host.connections(), host.event()), (0, None));
    }
}

/// A network that takes all segments and delivers none.
struct Nothing;

impl TcpOutput for Nothing {
    fn limits(&mut self, _: &TcpFlow) -> PathLimits {
        PathLimits { mss: 1460, link_mss: 1460, most: 0 }
    }

    fn emit(&mut self, _: &TcpFlow, _: IpFields, _: &Outgoing<'_>) -> bool {
        true
    }
}
