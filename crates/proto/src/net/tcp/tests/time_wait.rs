//! Connections that their programs have released: TIME-WAIT (RFC 9293 3.6 and 3.10.7, RFC 6191,
//! RFC 1337), and peers that never end.

use super::hosts::{Hosts, PORT, Packet, address};
use super::*;
use crate::wire::tcp::TcpOptions;

/// A host whose connection of the client is in TIME-WAIT and released, and the client's last
/// packets before its end: the data, and the FIN. The client has forgotten the connection.
fn waiting(config: &TcpConfig) -> (Hosts, Packet) {
    waiting_with(config, config)
}

fn waiting_with(config: &TcpConfig, of_client: &TcpConfig) -> (Hosts, Packet) {
    let mut hosts = Hosts::new(config, 1, 100, 16);
    hosts.hosts[1] = TcpHost::new(of_client.clone(), 100, Rng::seeded(1));
    let id = open(&mut hosts, 1);
    hosts.hosts[1].write(id, b"hello");
    hosts.run(SECOND);
    let server = hosts.opened(0)[0];
    assert_eq!(hosts.read(0, server), b"hello");
    hosts.hosts[0].release(server);
    hosts.run(SECOND);
    hosts.hosts[1].release(id);
    hosts.run(SECOND);
    assert_eq!([0, 1].map(|n| hosts.hosts[n].connections()), [0, 0]);
    assert_eq!([0, 1].map(|n| hosts.hosts[n].time_waits.len()), [1, 0]);
    let is_fin = |p: &&Packet| p.tcp.flags.has(Flags::FIN) && p.flow.local.port() == PORT;
    let fin = hosts.log.iter().rev().find(is_fin).expect("its FIN").clone();
    hosts.log.clear();
    (hosts, fin)
}

fn open(hosts: &mut Hosts, client: usize) -> TcpId {
    let id = hosts.connect(client);
    hosts.run(10 * MS);
    id
}

/// Gives a segment to the host. Returns what the host answers.
fn answer(hosts: &mut Hosts, fin: &Packet, tcp: Tcp, data: &[u8]) -> Option<Tcp> {
    hosts.log.clear();
    hosts.forge(fin.flow.peer, tcp, data);
    hosts.work();
    assert!(hosts.log.len() <= 1, "{:?}", hosts.log);
    hosts.log.pop().map(|packet| packet.tcp)
}

fn with_time(tcp: Tcp, ahead: i32) -> Tcp {
    let timestamps = tcp.options.timestamps.map(|(t, e)| (t.wrapping_add(ahead as u32), e));
    Tcp { options: TcpOptions { timestamps, ..tcp.options }, ..tcp }
}

fn without_time(tcp: Tcp) -> Tcp {
    Tcp { options: TcpOptions::default(), ..tcp }
}

/// RFC 9293 3.10.7.4: the FIN is acknowledged, and TIME-WAIT begins anew. Everything else changes
/// nothing.
#[test]
fn tm13_a_repeated_fin_is_acknowledged_and_prolongs() {
    let config = TcpConfig::default();
    let (mut hosts, fin) = waiting(&config);
    hosts.run(30 * SECOND);
    let wanted = (fin.tcp.ack, fin.tcp.seq.wrapping_add(1), Flags::ACK);
    let end = hosts.now.after(config.time_wait_ns);
    for _ in 0..3 {
        let tcp = answer(&mut hosts, &fin, fin.tcp, &[]).expect("an acknowledgement");
        assert_eq!((tcp.seq, tcp.ack, tcp.flags), wanted);
        let (_, echo) = tcp.options.timestamps.unwrap();
        assert_eq!(Some(echo), fin.tcp.options.timestamps.map(|times| times.0));
    }
    assert_eq!(hosts.hosts[0].deadline(), Some(end));
    hosts.run(config.time_wait_ns - SECOND);
    assert_eq!(hosts.hosts[0].time_waits.len(), 1);
    let late = Tcp { seq: fin.tcp.seq.wrapping_add(9), ..fin.tcp };
    assert!(answer(&mut hosts, &fin, late, &[]).is_some(), "not the FIN of this connection");
    hosts.run(2 * SECOND);
    assert_eq!(hosts.hosts[0].time_waits.len(), 0);
    let refused = answer(&mut hosts, &fin, fin.tcp, &[]).unwrap();
    assert!(refused.flags.has(Flags::RST));
}

/// RFC 1337: old duplicates of data, acknowledgements and resets do not end TIME-WAIT, and bring no
/// reset. What is unexpected is answered at most twice a second, so that two ends do not answer
/// each other for ever.
#[test]
fn old_segments_do_not_end_time_wait() {
    let (mut hosts, fin) = waiting(&TcpConfig::default());
    let next = fin.tcp.seq.wrapping_add(1);
    let reset = Tcp { seq: next, flags: Flags::RST.with(Flags::ACK), ..fin.tcp };
    assert_eq!(answer(&mut hosts, &fin, reset, &[]), None);
    assert_eq!(answer(&mut hosts, &fin, without_time(reset), &[]), None);
    let ack = Tcp { seq: next, flags: Flags::ACK, ..fin.tcp };
    assert_eq!(answer(&mut hosts, &fin, ack, &[]), None, "the expected number");
    let data = Tcp { seq: next.wrapping_sub(6), flags: Flags::ACK, ..fin.tcp };
    let sent = answer(&mut hosts, &fin, data, b"hello").unwrap();
    assert_eq!((sent.flags, sent.ack), (Flags::ACK, next));
    for tcp in [data, Tcp { seq: 5, ..ack }, with_time(ack, -5000), without_time(ack)] {
        assert_eq!(answer(&mut hosts, &fin, tcp, b"x"), None, "{tcp:?}");
    }
    hosts.run(SECOND);
    assert!(answer(&mut hosts, &fin, with_time(ack, -5000), &[]).is_some(), "PAWS");
    assert_eq!(hosts.hosts[0].time_waits.len(), 1);
}

/// RFC 6191 2, each of its cases: the SYN's time and number against the last ones, and whether a
/// new connection begins.
#[test]
fn ts4_a_newer_syn_reopens_the_connection() {
    let plain = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let cases = [
        // A greater time; the same time with a greater number, and without.
        (true, Some(1), -1000, true),
        (true, Some(0), 1, true),
        (true, Some(0), -1, false),
        (true, Some(-1), 1000, false),
        // No time now: the number counts.
        (true, None, 1, true),
        (true, None, 0, false),
        (true, None, -1, false),
        // No time before: a time now is enough.
        (false, Some(7), -1000, true),
        (false, None, 1, true),
        (false, None, 0, false),
        (false, None, -1, false),
    ];
    for (has_times, time, number, wanted) in cases {
        let of_client = if has_times { TcpConfig::default() } else { plain.clone() };
        let (mut hosts, mut fin) = waiting_with(&TcpConfig::default(), &of_client);
        fin.tcp.options.timestamps = fin.tcp.options.timestamps.or(Some((99, 0)));
        let last = fin.tcp.seq;
        let syn = Tcp { seq: last.wrapping_add(number as u32), flags: Flags::SYN, ..fin.tcp };
        let syn = time.map_or_else(|| without_time(syn), |ahead| with_time(syn, ahead));
        let sent = answer(&mut hosts, &fin, syn, &[]).expect("an answer");
        let case = (has_times, time, number);
        assert_eq!(sent.flags.has(Flags::SYN), wanted, "{case:?}");
        if !wanted {
            assert_eq!((sent.flags, sent.ack), (Flags::ACK, last.wrapping_add(1)), "{case:?}");
            continue;
        }
        // RFC 9293 MAY-2 (1).
        assert!((sent.seq.wrapping_sub(fin.tcp.ack) as i32) > 0, "{case:?}");
        assert_eq!(hosts.hosts[0].counters().time_waits_reopened, 1);
        // MAY-2 (2): a SYN that was an old duplicate is reset by the peer.
        let reset = Tcp { seq: syn.seq.wrapping_add(1), flags: Flags::RST, ..fin.tcp };
        answer(&mut hosts, &fin, reset, &[]);
        let host = &hosts.hosts[0];
        assert_eq!((host.connections(), host.time_waits.len()), (0, 1), "{case:?}");
    }
}

/// The numbers of this end go on where the last connection ended, even if it has sent more than the
/// clock of RFC 6528 has room for.
#[test]
fn the_numbers_of_this_end_go_on() {
    let flow = TcpFlow { local: (address(0), PORT).into(), peer: (address(1), 7).into() };
    let host = TcpHost::new(TcpConfig::default(), 1, Rng::seeded(1));
    let clock = host.initial(Instant::ZERO, &flow, None);
    for last in [clock.wrapping_sub(1), clock, clock.wrapping_add(1 << 30)] {
        let initial = host.initial(Instant::ZERO, &flow, Some(last));
        assert!((initial.wrapping_sub(last) as i32) > 0);
    }
}

/// A connection that takes the place of one in TIME-WAIT works, and leaves a TIME-WAIT of its own.
#[test]
fn a_reopened_connection_replaces_the_last_one() {
    let (mut hosts, fin) = waiting(&TcpConfig::default());
    let peer = fin.flow.peer;
    let syn = with_time(Tcp { flags: Flags::SYN, ..fin.tcp }, 5000);
    let sent = answer(&mut hosts, &fin, syn, &[]).unwrap();
    let (seq, ack) = (syn.seq.wrapping_add(1), sent.seq.wrapping_add(1));
    let head = with_time(Tcp { seq, ack, flags: Flags::ACK, window: 1000, ..fin.tcp }, 5000);
    hosts.forge(peer, head, b"again");
    hosts.work();
    let id = hosts.opened(0)[1];
    assert_eq!(hosts.read(0, id), b"again");
    assert_eq!(hosts.hosts[0].time_waits.len(), 0);
    hosts.hosts[0].release(id);
    hosts.work();
    let seq = seq.wrapping_add(5);
    let end = Tcp { seq, ack: ack.wrapping_add(1), flags: Flags::ACK.with(Flags::FIN), ..head };
    hosts.forge(peer, end, &[]);
    hosts.work();
    assert_eq!((hosts.hosts[0].connections(), hosts.hosts[0].time_waits.len()), (0, 1));
}

/// The connections in TIME-WAIT have a limit, and the oldest makes room. Each takes little memory.
#[test]
fn the_oldest_makes_room() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 8, 16);
    for n in 0..20 {
        let id = open(&mut hosts, 1);
        let server = hosts.opened(0)[n];
        hosts.hosts[0].release(server);
        hosts.run(10 * MS);
        hosts.hosts[1].release(id);
        hosts.run(10 * MS);
    }
    let is_fin = |p: &&Packet| p.tcp.flags.has(Flags::FIN) && p.flow.local.port() == PORT;
    let fins: Vec<_> = hosts.log.iter().filter(is_fin).cloned().collect();
    assert_eq!((fins.len(), hosts.hosts[0].time_waits.len()), (20, 8));
    assert_eq!(hosts.hosts[0].counters().time_waits_dropped, 12);
    for (n, fin) in fins.iter().enumerate() {
        let sent = answer(&mut hosts, fin, fin.tcp, &[]).unwrap();
        assert_eq!(sent.flags.has(Flags::RST), n < 12, "{n}");
    }
    hosts.run(100 * SECOND);
    assert_eq!(hosts.hosts[0].time_waits.len(), 0);
    assert_eq!(hosts.hosts[0].deadline(), None);
}

/// A connection of this end takes a port in TIME-WAIT only if no other is free, after a second, and
/// with timestamps.
#[test]
fn ports_in_time_wait_are_used_last() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 40_000, 16);
    let id = open(&mut hosts, 1);
    hosts.hosts[1].release(id);
    hosts.run(10 * MS);
    let server = hosts.opened(0)[0];
    hosts.hosts[0].release(server);
    hosts.run(10 * MS);
    assert_eq!(hosts.hosts[1].time_waits.len(), 1);
    let (now, own) = (hosts.now, (address(1), 0).into());
    let peer = (address(0), PORT).into();
    let host = &mut hosts.hosts[1];
    let others: Vec<_> = (1..16_384).map(|_| host.connect(now, own, peer)).collect();
    assert!(others.iter().all(Result::is_ok));
    assert_eq!(host.connect(now, own, peer), Err(TcpOpenError::NoPort));
    assert_eq!(host.time_waits.len(), 1);
    others.into_iter().flatten().for_each(|id| host.abort(id));
    hosts.work();
    hosts.now = hosts.now.after(2 * SECOND);
    let now = hosts.now;
    let host = &mut hosts.hosts[1];
    for _ in 1..16_384 {
        host.connect(now, own, peer).unwrap();
    }
    assert_eq!(host.time_waits.len(), 1);
    host.connect(now, own, peer).unwrap();
    assert_eq!(host.time_waits.len(), 0);
}

/// A peer that never ends its direction does not keep a released connection: it ends after
/// the time of TIME-WAIT, and data resets it (RFC 9293 3.6.1).
#[test]
fn a_peer_that_does_not_end_keeps_nothing() {
    for sends in [false, true] {
        let mut hosts = Hosts::new(&TcpConfig::default(), 1, 100, 16);
        let id = open(&mut hosts, 1);
        let server = hosts.opened(0)[0];
        hosts.hosts[0].release(server);
        hosts.run(SECOND);
        assert_eq!(hosts.hosts[0].connections(), 1);
        if sends {
            hosts.hosts[1].write(id, b"nobody reads that");
            hosts.run(SECOND);
            assert_eq!(hosts.hosts[1].error(id), Some(TcpError::Reset));
        } else {
            hosts.run(60 * SECOND);
        }
        assert_eq!(hosts.hosts[0].connections(), 0, "{sends}");
    }
}

/// Data that the program did not read before it released the connection is lost, and the peer is
/// told so.
#[test]
fn ts3_a_release_with_unread_data_resets() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 100, 16);
    let id = open(&mut hosts, 1);
    hosts.hosts[1].write(id, b"unread");
    hosts.run(SECOND);
    let server = hosts.opened(0)[0];
    hosts.hosts[0].release(server);
    hosts.run(SECOND);
    assert_eq!(hosts.hosts[1].error(id), Some(TcpError::Reset));
    assert_eq!(hosts.hosts[0].connections(), 0);
}

/// A peer that keeps its window closed does not keep a released connection for ever.
#[test]
fn a_closed_window_keeps_no_released_connection() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 100, 16);
    open(&mut hosts, 1);
    let server = hosts.opened(0)[0];
    let bytes = alloc::vec![7; 1 << 20];
    for _ in 0..3 {
        hosts.hosts[0].write(server, &bytes);
        hosts.run(10 * SECOND);
    }
    hosts.run(1000 * SECOND);
    assert_eq!(hosts.hosts[0].connection(server).unwrap().error(), None);
    hosts.hosts[0].release(server);
    hosts.run(TcpConfig::default().user_timeout_ns - SECOND);
    assert_eq!(hosts.hosts[0].connections(), 1);
    hosts.run(2 * SECOND);
    assert_eq!(hosts.hosts[0].connections(), 0);
}

/// A program hears of the end of both directions, and not only of the end of TIME-WAIT.
#[test]
fn time_wait_is_an_end() {
    let mut hosts = Hosts::new(&TcpConfig::default(), 1, 100, 16);
    let id = open(&mut hosts, 1);
    let server = hosts.opened(0)[0];
    hosts.hosts[0].close(server);
    hosts.run(10 * MS);
    hosts.hosts[1].close(id);
    hosts.run(10 * MS);
    for end in [0, 1] {
        assert!(hosts.events.iter().any(|event| event.0 == end && event.2.ended), "{end}");
    }
    assert_eq!(hosts.hosts[0].connection(server).unwrap().state(), TcpState::TimeWait);
}
