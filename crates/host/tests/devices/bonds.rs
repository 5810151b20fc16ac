//! Two cables between two machines, used as one.

use sprat::netns::{Namespace, link};
use sprat::nic::bond::Bond;
use sprat::nic::{AnyNic, Nic as _, Options, open};
use sprat_proto::device::{Device as _, Mac, Offload};

use crate::Case;
use crate::house::counter;

const DEVS: [&str; 2] = ["wire0", "wire1"];
const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 1, 1]), Mac([2, 0, 0, 0, 1, 2])];
const FLOWS: u16 = 64;
/// How often a frame is sent again before its flow is cut off for good.
const TRIES: u32 = 2_000;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn()| Case::root(&format!("bond::{name}"), run);
    vec![
        case("a_cable_that_is_switched_off_and_on", || pulled(false)),
        case("a_cable_that_is_removed", || pulled(true)),
    ]
}

fn end(at: &Namespace, mac: Mac) -> AnyNic {
    let device = |dev: &str| {
        let options = Options { dev: dev.into(), mac: Some(mac), ..Options::default() };
        at.run(|| open("packet", &options)).unwrap().unwrap()
    };
    Box::new(Bond::new(DEVS.map(device).into_iter().collect()).unwrap())
}

/// A UDP datagram to port `flow`, as far as a bond looks.
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

/// Sends until it arrives, as a transport would; returns how often it was sent in vain.
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
