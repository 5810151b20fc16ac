//! Tests of the blocking interface to our TCP against the kernel's TCP, through a bridge that
//! loses, doubles, reorders and marks frames.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{scope, spawn, yield_now};
use std::time::Duration;

use sprat::internals::device::bridge::Line;
use sprat::tcp::{Options, Stack, Stream, TcpError};
use sprat_proto::fault::Fault;
use sprat_proto::time::MS;

use crate::Case;
use crate::lines::{Network, kernel, lossy, ours};

/// The time after which a test has failed.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for driver in ["packet", "xdp", "tap"] {
        let mut case = |name: &str, run: fn(&'static str)| {
            cases.push(Case::root(&format!("tcp_streams::{driver}::{name}"), move || run(driver)));
        };
        case("bulk_without_loss", |driver| bulk(driver, lossy(0), 4_000_000));
        case("bulk_with_1_percent_loss", |driver| bulk(driver, lossy(1), 2_000_000));
        case("bulk_with_5_percent_loss", |driver| bulk(driver, lossy(5), 300_000));
        case("bulk_reordered_and_doubled", reordered);
        case("half_closed_both_ways", half_closed);
        case("a_reader_that_stops_and_goes_on", windows);
        case("resets_both_ways", resets);
    }
    let mut case = |name: &str, run: fn()| {
        cases.push(Case::root(&format!("tcp_streams::{name}"), run));
    };
    case("marks_of_congestion_slow_us_down_and_lose_nothing", marks);
    case("many_short_connections_both_ways", churn);
    case("a_dropped_stream_still_arrives", dropped);
    case("calls_end_by_time_and_by_choice", bounded);
    case("a_full_listener_lets_peers_wait", backlog);
    cases
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Opens a connection from the kernel to our listener. Returns the kernel's end and ours.
fn from_kernel(network: &Network, stack: &Stack) -> (TcpStream, Stream) {
    let listener = stack.listen(0, 8).unwrap();
    let port = listener.local_addr().port();
    let connect = || network.kernel.run(|| TcpStream::connect(ours(port))).unwrap().unwrap();
    let (theirs, own) = scope(|threads| {
        let connecting = threads.spawn(connect);
        let (own, peer) = listener.accept_timeout(PATIENCE.unwrap()).unwrap().unwrap();
        let theirs = connecting.join().unwrap();
        assert_eq!(peer, theirs.local_addr().unwrap());
        (theirs, own)
    });
    patient(&theirs, &own);
    (theirs, own)
}

/// Opens a connection from our stack to the kernel. Returns the kernel's end and ours.
fn to_kernel(network: &Network, stack: &Stack) -> (TcpStream, Stream) {
    let listener = network.kernel.run(|| TcpListener::bind(kernel(0))).unwrap().unwrap();
    let at = listener.local_addr().unwrap();
    let own = stack.connect_timeout(at, PATIENCE.unwrap()).unwrap();
    assert_eq!(own.peer_addr(), at);
    let (theirs, _) = listener.accept().unwrap();
    patient(&theirs, &own);
    (theirs, own)
}

fn patient(theirs: &TcpStream, own: &Stream) {
    theirs.set_read_timeout(PATIENCE).unwrap();
    theirs.set_write_timeout(PATIENCE).unwrap();
    own.set_read_timeout(PATIENCE);
    own.set_write_timeout(PATIENCE);
}

/// Sends bytes both ways at once, ends both directions, and compares what arrives.
fn exchange(
    (a_in, a_out): (impl Read, impl Write + Send),
    (b_in, b_out): (impl Read + Send, impl Write + Send),
    ends: [&(dyn Fn() + Sync); 2],
    len: usize,
) {
    let wanted = bytes(len);
    let send = |mut out: Box<dyn Write + Send + '_>, end: &(dyn Fn() + Sync)| {
        out.write_all(&wanted).unwrap();
        end();
    };
    let check = |mut from: Box<dyn Read + '_>| {
        let mut got = Vec::new();
        from.read_to_end(&mut got).unwrap();
        assert!(got == wanted, "{} of {len} bytes", got.len());
    };
    scope(|threads| {
        let (a_out, b_out) = (Box::new(a_out), Box::new(b_out));
        threads.spawn(|| send(a_out, ends[0]));
        threads.spawn(|| send(b_out, ends[1]));
        let b_in = Box::new(b_in);
        threads.spawn(|| check(b_in));
        check(Box::new(a_in));
    });
}

fn both_ways(theirs: &TcpStream, own: &Stream, len: usize) {
    let ends: [&(dyn Fn() + Sync); 2] =
        [&|| theirs.shutdown(Shutdown::Write).unwrap(), &|| own.shutdown(Shutdown::Write)];
    exchange((theirs, theirs), (own, own), ends, len);
}

fn bulk(driver: &str, line: Line, len: usize) {
    let network = Network::new(line, 7);
    let stack = network.stack(driver, &Options::default());
    for open in [from_kernel, to_kernel] {
        let (theirs, own) = open(&network, &stack);
        both_ways(&theirs, &own, len);
    }
    drop(stack);
    let [there, back] = network.end();
    assert!(there.forwarded > len as u64 / 1500 && back.forwarded > len as u64 / 1500);
    assert_eq!(line.fault.drop_ppm > 0, there.lost + back.lost > 0);
}

fn reordered(driver: &str) {
    let fault = Fault {
        reorder_ppm: 50_000,
        reorder_ns: 2 * MS,
        duplicate_ppm: 20_000,
        ..Fault::default()
    };
    bulk(driver, Line { fault, delay_ns: MS / 2, ..Line::default() }, 1_000_000);
}

/// Each end closes first once. The other one then still sends.
fn half_closed(driver: &str) {
    const LEN: usize = 500_000;
    let network = Network::new(lossy(0), 1);
    let stack = network.stack(driver, &Options::default());
    let (mut theirs, mut own) = from_kernel(&network, &stack);
    theirs.write_all(b"question").unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    own.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"question");
    let answering = spawn(move || own.write_all(&bytes(LEN)).unwrap());
    got.clear();
    theirs.read_to_end(&mut got).unwrap();
    assert!(got == bytes(LEN));
    answering.join().unwrap();

    let (mut theirs, mut own) = to_kernel(&network, &stack);
    own.write_all(b"question").unwrap();
    own.shutdown(Shutdown::Write);
    assert_eq!(own.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    got.clear();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"question");
    let answering = spawn(move || theirs.write_all(&bytes(LEN)).unwrap());
    got.clear();
    own.read_to_end(&mut got).unwrap();
    assert!(got == bytes(LEN));
    answering.join().unwrap();
}

/// A reader that stops closes the window of its peer, and opens it again when it goes on.
fn windows(driver: &str) {
    const LEN: usize = 12_000_000;
    let network = Network::new(Line::default(), 1);
    let options = Options::default().receive_buffer(100_000);
    let stack = network.stack(driver, &options);

    let (theirs, own) = to_kernel(&network, &stack);
    let writing = own.clone();
    let writing = spawn(move || {
        (&writing).write_all(&bytes(LEN)).unwrap();
        writing.shutdown(Shutdown::Write);
    });
    while own.info().unwrap().peer_window > 0 {
        yield_now();
    }
    let mut got = Vec::new();
    (&theirs).read_to_end(&mut got).unwrap();
    assert!(got == bytes(LEN));
    writing.join().unwrap();

    let (mut theirs, own) = from_kernel(&network, &stack);
    let writing = spawn(move || {
        theirs.write_all(&bytes(LEN)).unwrap();
    });
    while own.info().unwrap().window > 0 {
        yield_now();
    }
    got.clear();
    (&own).read_to_end(&mut got).unwrap();
    assert!(got == bytes(LEN));
    writing.join().unwrap();
}

fn resets(driver: &str) {
    let network = Network::new(Line::default(), 1);
    let stack = network.stack(driver, &Options::default());
    let (theirs, mut own) = to_kernel(&network, &stack);
    // Bytes that the kernel's program has not read make the close a reset.
    own.write_all(b"unread").unwrap();
    own.wait_acknowledged().unwrap();
    drop(theirs);
    assert_eq!(own.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(own.write(&[0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!((own.take_error(), own.take_error()), (Some(TcpError::Reset), None));

    let (mut theirs, own) = from_kernel(&network, &stack);
    let reading = own.clone();
    let reading = spawn(move || (&reading).read(&mut [0]).unwrap_err().kind());
    own.abort();
    assert_eq!(reading.join().unwrap(), ErrorKind::ConnectionAborted);
    assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let refused = stack.connect(kernel(9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(refused.to_string().contains("10.84.0.1:9: connection refused"), "{refused}");
    let refused = network.kernel.run(|| TcpStream::connect(ours(9))).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn marks() {
    let line = Line { mark_ppm: 20_000, delay_ns: MS / 2, ..Line::default() };
    let network = Network::new(line, 3);
    let wants = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1");
    network.kernel.run(wants).unwrap().unwrap();
    let stack = network.stack("packet", &Options::default());
    for open in [from_kernel, to_kernel] {
        let (theirs, own) = open(&network, &stack);
        both_ways(&theirs, &own, 3_000_000);
        let info = own.info().unwrap();
        assert!(info.ecn && info.slow_start_threshold < u32::MAX, "{info:?}");
        assert_eq!(info.timeouts, 0, "{info:?}");
    }
    drop(stack);
    let [there, back] = network.end();
    assert!(there.marked > 10 && back.marked > 10, "{there:?} {back:?}");
}

fn churn() {
    const CONNECTIONS: usize = 150;
    let network = Network::new(Line::default(), 1);
    let stack = network.stack("packet", &Options::default());
    for n in 0..CONNECTIONS {
        let open = if n % 2 == 0 { from_kernel } else { to_kernel };
        let (theirs, own) = open(&network, &stack);
        both_ways(&theirs, &own, n * 10);
    }
}

/// The program drops a stream, and then the stack, right behind its last write.
fn dropped() {
    const LEN: usize = 700_000;
    let network = Network::new(lossy(1), 5);
    let stack = network.stack("packet", &Options::default().linger(PATIENCE.unwrap()));
    let (mut theirs, mut own) = to_kernel(&network, &stack);
    own.write_all(&bytes(LEN)).unwrap();
    drop(own);
    let (mut late, mut own) = to_kernel(&network, &stack);
    own.write_all(&bytes(LEN)).unwrap();
    let reading = spawn(move || {
        let mut got = Vec::new();
        late.read_to_end(&mut got).unwrap();
        got
    });
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert!(got == bytes(LEN));
    // The kernel's end closes too, so that nothing waits for it.
    drop(theirs);
    drop((own, stack));
    assert!(reading.join().unwrap() == bytes(LEN));
}

fn bounded() {
    let network = Network::new(Line::default(), 1);
    let stack = network.stack("packet", &Options::default().send_buffer(100_000));
    let (theirs, mut own) = to_kernel(&network, &stack);
    own.set_nonblocking(true);
    assert_eq!(own.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    while own.write(&[0; 4096]).is_ok() {}
    assert_eq!(own.write(&[0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    own.set_nonblocking(false);
    own.set_read_timeout(Some(Duration::from_millis(1)));
    assert_eq!(own.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    own.shutdown(Shutdown::Read);
    assert_eq!(own.read(&mut [0]).unwrap(), 0);
    drop(theirs);
    let listener = stack.listen(7, 1).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    assert_eq!(stack.listen(7, 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    // No host has this address.
    let error = stack.connect_timeout("10.84.0.77:7", Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// Peers of a listener whose program accepts none wait, and lose nothing.
fn backlog() {
    const PEERS: usize = 6;
    let network = Network::new(Line::default(), 1);
    let stack = network.stack("packet", &Options::default());
    let listener = stack.listen(7, 2).unwrap();
    let peer = |n: usize| {
        let mut stream = TcpStream::connect(ours(7)).unwrap();
        stream.write_all(&[n as u8]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert_eq!(got, [n as u8]);
    };
    scope(|threads| {
        for n in 0..PEERS {
            let kernel = &network.kernel;
            threads.spawn(move || kernel.run(|| peer(n)).unwrap());
        }
        // As many as the listener takes, at most twice its backlog.
        while stack.connections() < 2 {
            yield_now();
        }
        for _ in 0..PEERS {
            let (mut own, _) = listener.accept_timeout(PATIENCE.unwrap()).unwrap().unwrap();
            assert!(stack.connections() <= PEERS);
            let mut got = Vec::new();
            own.read_to_end(&mut got).unwrap();
            own.write_all(&got).unwrap();
        }
    });
}
