//! Tests of bonds: two cables between two machines that a bond uses as one device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprat::internals::device::bond::Bond;
use sprat::internals::device::{AnyNic, Nic as _, Options, open};
use sprat::rpc::{Call, Client, Server, Session};
use sprat_proto::device::{Device as _, Mac, Offload};
use sprat_sys::netns::{Namespace, Wire, link};

use crate::Case;
use crate::house::counter;

const DEVS: [&str; 2] = ["wire0", "wire1"];
const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 1, 1]), Mac([2, 0, 0, 0, 1, 2])];
const FLOWS: u16 = 64;
/// Number of attempts to send a frame, after which its flow counts as cut off for good.
const TRIES: u32 = 2_000;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn()| Case::root(&format!("bond::{name}"), run);
    vec![
        case("a_cable_that_is_switched_off_and_on", || pulled(false)),
        case("a_cable_that_is_removed", || pulled(true)),
        case("a_cable_that_is_back_takes_the_first_frame", back),
        case("rpcs_while_each_cable_is_switched_off_once", || loaded(false)),
        case("rpcs_while_a_cable_is_removed", || loaded(true)),
    ]
}

/// Number of clients of one server, each with flows of its own, so that both cables are in use.
pub(crate) const CLIENTS: usize = 4;
/// Number of requests of a client in one phase of the test. `OUTSTANDING` is the most of them in
/// progress at a time.
const REQUESTS: u32 = 600;
const OUTSTANDING: u32 = 16;
/// The time after which a request counts as lost.
const LOST: Duration = Duration::from_secs(60);

/// A client of the test, and the requests that it has sent.
pub(crate) struct Asker {
    pub(crate) client: Client,
    pub(crate) session: Session,
    number: u32,
    next: u32,
    pub(crate) done: u32,
}

impl Asker {
    pub(crate) fn new(at: &str, number: u32) -> Self {
        let mut client = Client::new().unwrap();
        let session = client.connect(at).unwrap();
        Self { client, session, number, next: 0, done: 0 }
    }

    /// Makes one turn of the client, which sends up to request `until`. Returns true when all are
    /// answered.
    pub(crate) fn turn(&mut self, until: u32) -> bool {
        while self.next < until && self.next - self.done < OUTSTANDING {
            let number = self.number * 1_000_000 + self.next;
            // Some take several packets.
            let len = if self.next.is_multiple_of(7) { 5_000 } else { 100 };
            let mut request = vec![7; len];
            request[..4].copy_from_slice(&number.to_be_bytes());
            self.client.start(self.session, &request, LOST);
            self.next += 1;
        }
        self.client.turn_and_rest();
        while let Some((_, outcome)) = self.client.completed() {
            assert_eq!(outcome.unwrap().len(), 4, "nothing is lost");
            self.done += 1;
        }
        self.done == until
    }
}

/// Lets all clients send up to request `until`, and calls `halfway` when half of the requests are
/// answered.
pub(crate) fn ask(askers: &mut [Asker], until: u32, mut halfway: impl FnMut()) {
    let half = until - REQUESTS / 2;
    let mut pulled = false;
    loop {
        let all = askers.iter_mut().fold(true, |all, asker| asker.turn(until) & all);
        if !pulled && askers.iter().all(|a| a.done >= half) {
            pulled = true;
            halfway();
        }
        if all {
            return;
        }
    }
}

fn loaded(removed: bool) {
    let net = Wire::new(1500).unwrap();
    net.add(DEVS[1], 1500).unwrap();
    let locator = format!("fast+bond:dev={},with={},host=10.83.0.201,port=7", DEVS[0], DEVS[1]);
    let executed = Arc::new(Mutex::new(HashMap::<u32, u32>::new()));
    let counting = Arc::clone(&executed);
    let service = move |call: Call<'_>| {
        let number = u32::from_be_bytes(call.payload[..4].try_into().unwrap());
        *counting.lock().unwrap().entry(number).or_default() += 1;
        Some(number.to_be_bytes().to_vec())
    };
    let mut server =
        net.end(1).run(|| Server::listen(&[locator.as_str()], service)).unwrap().unwrap();
    let (at, stop) = (server.locators(), server.stop());
    let switch = |dev: &str, on: bool| link::switch(dev, on).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run());
        let asked = net.end(0).run(|| {
            let mut askers: Vec<_> = (0..CLIENTS as u32).map(|n| Asker::new(&at, n)).collect();
            let mut until = REQUESTS;
            ask(&mut askers, until, || {});
            // Whichever cable a flow goes by, that one is pulled once.
            for dev in &DEVS[..if removed { 1 } else { 2 }] {
                until += REQUESTS;
                ask(&mut askers, until, || {
                    if removed { link::remove(dev).unwrap() } else { switch(dev, false) }
                });
                if !removed {
                    until += REQUESTS;
                    ask(&mut askers, until, || switch(dev, true));
                }
            }
            until
        });
        stop.stop();
        serving.join().unwrap();
        let executed = executed.lock().unwrap();
        assert_eq!(executed.len(), CLIENTS * asked.unwrap() as usize);
        assert!(executed.values().all(|times| *times == 1), "nothing is executed twice");
    });
}

fn end(at: &Namespace, mac: Mac) -> AnyNic {
    let device = |dev: &str| {
        let options = Options { dev: dev.into(), mac: Some(mac), ..Options::default() };
        at.run(|| open("packet", &options)).unwrap().unwrap()
    };
    AnyNic::other(Bond::new(DEVS.map(device).into_iter().collect()).unwrap())
}

/// Returns the beginning of a UDP datagram to port `flow`, as much of it as a bond reads.
fn datagram(from: Mac, to: Mac, flow: u16) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&from.0);
    bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    bytes[23] = 17;
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes
}

/// Sends a frame until it arrives, as a transport would. Returns the number of frames lost.
fn deliver(from: &mut AnyNic, to: &mut AnyNic, bytes: &[u8]) -> u32 {
    for lost in 0..TRIES {
        from.send(&[bytes], Offload::None);
        from.flush();
        for _ in 0..50 {
            let n = to.recv_burst();
            if (0..n).any(|i| to.frame(i).0 == bytes) {
                return lost;
            }
            // Gives what it lent back.
            from.recv_burst();
            std::thread::yield_now();
        }
    }
    panic!("a flow is cut off");
}

fn all_flows(a: &mut AnyNic, b: &mut AnyNic) {
    for flow in 0..FLOWS {
        deliver(a, b, &datagram(MACS[0], MACS[1], flow));
        deliver(b, a, &datagram(MACS[1], MACS[0], flow));
    }
}

fn pulled(removed: bool) {
    let net = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    for dev in DEVS {
        link::veth([(&net[0], dev), (&net[1], dev)], 1500, 1).unwrap();
    }
    let (mut a, mut b) = (end(&net[0], MACS[0]), end(&net[1], MACS[1]));
    all_flows(&mut a, &mut b);
    assert!(counter(&a, "frames_by_device_0") >= 10 && counter(&a, "frames_by_device_1") >= 10);
    net[0]
        .run(|| if removed { link::remove(DEVS[0]) } else { link::switch(DEVS[0], false) })
        .unwrap()
        .unwrap();
    all_flows(&mut a, &mut b);
    assert_eq!((counter(&a, "failovers"), counter(&b, "failovers")), (1, 1));
    let before = counter(&a, "frames_by_device_0");
    all_flows(&mut a, &mut b);
    assert_eq!(counter(&a, "frames_by_device_0"), before, "nothing goes where nobody hears");
    assert!(a.carries() && b.carries());
    if !removed {
        net[0].run(|| link::switch(DEVS[0], true)).unwrap().unwrap();
        for _ in 0..10 {
            all_flows(&mut a, &mut b);
        }
        assert!(counter(&a, "frames_by_device_0") > before, "it is used again");
    }
}

/// Sends on a socket whose interface went down and is up again. Such a socket reports the error at
/// the next send. The device must not take it for an error of that frame: each flow that moves over
/// from another device would lose its first frame.
fn back() {
    let net = Wire::new(1500).unwrap();
    let options = Options { dev: DEVS[0].into(), ..Options::default() };
    for len in [100, 1400] {
        let mut nic = net.end(0).run(|| open("packet", &options)).unwrap().unwrap();
        let frame = [datagram(MACS[0], MACS[1], 1), vec![0; len]].concat();
        net.end(0).run(|| link::switch(DEVS[0], false)).unwrap().unwrap();
        assert!(!nic.carries());
        net.end(0).run(|| link::switch(DEVS[0], true)).unwrap().unwrap();
        assert!((0..TRIES).any(|_| nic.carries()), "it carries again");
        nic.send(&[&frame], Offload::None);
        nic.flush();
        assert_eq!((counter(&nic, "frames_unsent"), counter(&nic, "frames_sent")), (0, 1));
    }
}
