//! Tests of devices that end while they are in use: an interface under a load of RPCs, and the
//! process at the other end of shared memory.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sprat::internals::device::{AnyNic, Nic as _, Options, memif, open, shm};
use sprat::rpc::{Call, Client, Server, Stop};
use sprat_proto::device::{Device as _, Mac, Offload, Sent};
use sprat_sys::netns::{DEV, Namespace, Wire, link};

use crate::Case;
use crate::bonds::{Asker, CLIENTS, ask};
use crate::house::{counter, frame, receive, send};

const TAP: &str = "tap0";
const BRIDGE: &str = "bridge0";
/// Number of requests of a client in one phase of a test.
const REQUESTS: u32 = 300;
/// The deadline of a request that may stay without an answer.
const SOON: Duration = Duration::from_millis(300);
/// Number of processes that the test kills one after the other.
const KILLED: usize = 5;
/// Number of polls of a condition after which a wait fails.
const MANY: u32 = 5_000_000;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for driver in ["packet", "xdp", "tap"] {
        let case = |name: &str, run: fn(&str)| {
            Case::root(&format!("ends::{driver}::{name}"), move || run(driver))
        };
        cases.push(case("rpcs_while_the_interface_is_switched_off_and_on", switched));
        cases.push(case("rpcs_while_the_interface_is_deleted", deleted));
    }
    cases.push(Case::root("ends::tap::bridges_keep_their_address", bridge_address));
    for driver in ["memif", "shm"] {
        let case = |name: &str, server: bool| Case {
            name: format!("ends::{driver}::{name}"),
            root: false,
            program: None,
            run: Box::new(move || killed(driver, server)),
        };
        cases.push(case("clients_that_are_killed_while_they_send", true));
        cases.push(case("servers_that_are_killed_while_they_send", false));
    }
    cases
}

/// Makes a wire, with a bridge to a tap of the same name at both ends where the driver needs one.
/// Returns also the interface that RPCs pass at end 1, and the locator of a server there.
fn world(driver: &str) -> (Wire, &'static str, String) {
    let net = Wire::new(1500).unwrap();
    if driver != "tap" {
        return (net, DEV, format!("fast+{driver}:dev={DEV},host=10.83.0.201,port=7"));
    }
    for i in 0..2 {
        let bridge = || link::bridge(BRIDGE, 1500).and_then(|()| link::attach(DEV, BRIDGE));
        net.end(i).run(bridge).unwrap().unwrap();
    }
    (net, TAP, format!("fast+tap:dev={TAP},bridge={BRIDGE},host=10.83.0.201,port=7"))
}

/// Taps join and leave a bridge, whose hardware address stays.
fn bridge_address() {
    let (net, ..) = world("tap");
    let at = net.end(0);
    let address = || at.run(|| link::find(BRIDGE)).unwrap().unwrap().mac;
    let before = address();
    let taps: Vec<_> = (0..16)
        .map(|i| {
            let dev = format!("tap{i}");
            let options = Options { dev, bridge: Some(BRIDGE.into()), ..Options::default() };
            let tap = at.run(|| open("tap", &options)).unwrap().unwrap();
            assert_eq!(address(), before, "with {} taps", i + 1);
            tap
        })
        .collect();
    drop(taps);
    assert_eq!(address(), before, "after the taps left");
}

/// Runs a server that answers with the request's number while `body` uses its locator.
fn serving(at: &Namespace, locator: &str, body: impl FnOnce(&str)) {
    let service = |call: Call<'_>| Some(call.payload[..4].to_vec());
    let mut server = at.run(|| Server::listen(&[locator], service)).unwrap().unwrap();
    let (at, stop) = (server.locators(), server.stop());
    std::thread::scope(|scope| {
        let _ended = Ended(stop);
        scope.spawn(move || server.run());
        body(&at);
    });
}

/// Ends a server when this value is dropped, so that it also ends when the test fails.
struct Ended(Stop);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Makes the clients of a test over this driver. There are several, with flows of their own, where
/// an interface may have several devices.
fn askers(driver: &str, at: &str) -> Vec<Asker> {
    let most = if driver == "packet" { CLIENTS as u32 } else { 1 };
    (0..most).map(|number| Asker::new(at, number)).collect()
}

fn switched(driver: &str) {
    let (net, dev, locator) = world(driver);
    let switch = |on: bool| net.end(1).run(|| link::switch(dev, on)).unwrap().unwrap();
    serving(net.end(1), &locator, |at| {
        let _inside = net.end(0).enter().unwrap();
        let mut askers = askers(driver, at);
        for round in 1..=2 {
            ask(&mut askers, 2 * round * REQUESTS - REQUESTS, || ());
            switch(false);
            let until = 2 * round * REQUESTS;
            for _ in 0..200 {
                assert!(
                    !askers.iter_mut().fold(true, |all, asker| asker.turn(until) & all),
                    "it is off"
                );
            }
            switch(true);
            // Nothing that was asked meanwhile is lost.
            ask(&mut askers, until, || ());
        }
    });
}

fn deleted(driver: &str) {
    let (net, dev, locator) = world(driver);
    serving(net.end(1), &locator, |at| {
        let _inside = net.end(0).enter().unwrap();
        let mut askers = askers(driver, at);
        // In the middle of it all.
        let mut removed = false;
        while !removed {
            for asker in &mut askers {
                asker.turn(10 * REQUESTS);
            }
            removed = askers.iter().all(|asker| asker.done > REQUESTS);
        }
        net.end(1).run(|| link::remove(dev)).unwrap().unwrap();
        // The client reports the error and goes on.
        for asker in &mut askers {
            for _ in 0..3 {
                assert!(asker.client.call(asker.session, b"1234", SOON).is_err());
            }
        }
        // The same locator says what is missing.
        if driver != "tap" {
            let error = Client::new().unwrap().connect(at).unwrap_err().to_string();
            assert!(
                error.contains("there is no interface") && error.contains("ip link"),
                "{error}"
            );
            net.add(dev, 1500).unwrap();
        }
    });
    // The next client finds everything as before.
    serving(net.end(1), &locator, |at| {
        let asked = net.end(0).run(|| ask(&mut [Asker::new(at, 0)], REQUESTS, || ()));
        asked.unwrap();
    });
}

/// Opens a device of shared memory at `place`, which is a folder or a name.
fn end(driver: &str, place: &Path, server: bool) -> AnyNic {
    let mut options = Options::default();
    if driver == "memif" {
        let role = if server { memif::Role::Server } else { memif::Role::Client };
        options.memif = Some(memif::Options::new(role, place));
    } else {
        let name = place.display().to_string();
        options.shm = Some(shm::Options { name, listens: server, mac: None, mtu: 1500 });
    }
    open(driver, &options).unwrap()
}

/// The main function of a child process: it sends and takes frames as fast as it can until it is
/// killed. The arguments are the driver, the place and the end.
pub(crate) fn flooding(arguments: &[String]) {
    let [driver, place, role] = arguments else { return };
    let mut nic = end(driver, Path::new(place), role == "server");
    println!("open");
    let bytes = frame(nic.info().mac, Mac::BROADCAST, 1, 1000);
    loop {
        for _ in 0..20 {
            let _ = nic.send(&[&bytes], Offload::None);
        }
        nic.flush();
        nic.recv_burst();
        nic.disarm();
    }
}

fn flooder(driver: &str, place: &Path, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--flooding", driver]).arg(place).arg(role);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "open\n");
    child
}

/// Returns the numbers of open descriptors, threads and shared mappings of this process.
fn held() -> [usize; 3] {
    let entries = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), shared]
}

fn killed(driver: &str, survivor_serves: bool) {
    let folder = tempfile::tempdir().unwrap();
    let place = match driver {
        "memif" => folder.path().join("memif"),
        _ => format!("ends-{}-{survivor_serves}", std::process::id()).into(),
    };
    let mut survivor = survivor_serves.then(|| end(driver, &place, true));
    let mut after_each = Vec::new();
    for _ in 0..KILLED {
        let role = if survivor_serves { "client" } else { "server" };
        let mut peer = flooder(driver, &place, role);
        let nic = survivor.get_or_insert_with(|| end(driver, &place, false));
        let bytes = frame(nic.info().mac, Mac([2, 0, 0, 0, 0, 9]), 1, 1000);
        // Both rings are in use.
        let mut received = 0;
        for _ in 0..MANY {
            assert_ne!(nic.send(&[&bytes], Offload::None), Sent::Gone);
            nic.flush();
            nic.disarm();
            received += nic.recv_burst();
            if received > 2000 {
                break;
            }
            std::thread::yield_now();
        }
        assert!(received > 2000, "{received}");
        peer.kill().unwrap();
        peer.wait().unwrap();
        // It is noticed, after what was published has been delivered.
        let ended = |nic: &mut AnyNic| match driver {
            "memif" => counter(nic, "links_ended") == after_each.len() as u64 + 1,
            _ => !nic.carries(),
        };
        for _ in 0..MANY {
            nic.recv_burst();
            nic.disarm();
            if ended(nic) {
                break;
            }
        }
        assert!(ended(nic), "the dead peer is still there");
        assert_eq!(nic.send(&[&bytes], Offload::None), Sent::Yes);
        nic.flush();
        after_each.push(held());
    }
    assert!(after_each.iter().all(|held| *held == after_each[0]), "{after_each:?}");
    // The next one is served as the first.
    let mut survivor = survivor.unwrap();
    let mut next = end(driver, &place, !survivor_serves);
    let (a, b) = (survivor.info().mac, next.info().mac);
    for _ in 0..MANY {
        if survivor.carries() && next.carries() {
            break;
        }
        for nic in [&mut survivor, &mut next] {
            nic.recv_burst();
            nic.disarm();
        }
    }
    for number in 0..100 {
        let there = frame(a, b, number, 500);
        send(&mut survivor, &there);
        assert_eq!(receive(&mut next, 1)[0].0, there);
        let back = frame(b, a, number, 500);
        send(&mut next, &back);
        assert_eq!(receive(&mut survivor, 1)[0].0, back);
    }
}
