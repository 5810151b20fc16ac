//! An echo server on TCP of our own in one thread, by events: received bytes are echoed from where
//! the device has put them, and the loop sleeps on the device.
//!
//! `cargo run --example tcp_events -- utcp+packet:dev=eth0,host=192.0.2.7,port=7`, as root or with
//! CAP_NET_RAW. Without arguments the example echoes to itself over memory that both ends share.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::locator::Locator;
use sprat::tcp::native::{Interface, TcpId};
use sprat::tcp::{Options, Stack};

/// The longest sleep, after which the loop checks if it shall end.
const CHECK: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let locator = std::env::args().nth(1);
    let stop = Arc::new(AtomicBool::new(false));
    if let Some(locator) = locator {
        let port = locator.parse::<Locator>()?.option("port").unwrap_or("7").parse()?;
        return echo(Interface::open(&locator, &Options::default())?, port, &stop);
    }
    let name = format!("example-events-{}", std::process::id());
    let at = |host| format!("utcp+shmnet:name={name},host={host},port=7");
    let server = Interface::open(&at("192.0.2.1"), &Options::default())?;
    let stopping = Arc::clone(&stop);
    let serving = spawn(move || echo(server, 7, &stopping).map_err(|error| error.to_string()));

    let own: Locator = at("192.0.2.2").parse()?;
    let client = Stack::towards(&at("192.0.2.1"), &Options::default().local([own]))?;
    let mut stream = client.connect("192.0.2.1:7")?;
    stream.write_all(b"sprat, herring, hake")?;
    stream.shutdown(Shutdown::Write);
    let mut echoed = String::new();
    stream.read_to_string(&mut echoed)?;
    println!("{echoed}");
    stop.store(true, Ordering::Relaxed);
    serving.join().map_err(|_| "the server panicked")??;
    Ok(())
}

/// Echoes what peers send, until `stop`.
fn echo(mut tcp: Interface, port: u16, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    tcp.host().listen(port, 128)?;
    // Bytes that a connection had no room for, because its peer does not read.
    let mut waiting: HashMap<TcpId, Vec<u8>> = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let worked = tcp.input();
        for i in 0..tcp.lent_pieces() {
            let (id, bytes) = tcp.lent(i);
            let Some(waits) = waiting.get_mut(&id) else { continue };
            let bytes = bytes.to_vec();
            // What is not taken here waits in the receive buffer, and closes the window.
            let taken = if waits.is_empty() { tcp.host().write(id, &bytes) } else { 0 };
            tcp.take(i, taken);
        }
        while let Some((id, changes)) = tcp.event() {
            if changes.ended {
                waiting.remove(&id);
                tcp.host().release(id);
                continue;
            }
            if changes.opened {
                waiting.insert(id, Vec::new());
                tcp.host().lend(id, true);
            }
            if let Some(waits) = waiting.get_mut(&id) {
                go_on(&mut tcp, id, waits);
            }
        }
        tcp.output();
        if !worked && let Some(longest) = tcp.prepare_to_sleep() {
            let timeout = Timespec::try_from(longest.min(CHECK))?;
            poll(&mut [PollFd::from_borrowed_fd(tcp.descriptor(), PollFlags::IN)], Some(&timeout))?;
        }
    }
    Ok(())
}

/// Echoes what waits, as far as there is room, and ends the connection behind its last byte.
fn go_on(tcp: &mut Interface, id: TcpId, waits: &mut Vec<u8>) {
    let mut room = [0; 16 << 10];
    loop {
        let written = tcp.host().write(id, waits);
        waits.drain(..written);
        let count = if waits.is_empty() { tcp.host().read(id, &mut room) } else { 0 };
        waits.extend_from_slice(&room[..count]);
        if count == 0 {
            break;
        }
    }
    if waits.is_empty() && tcp.host().connection(id).is_some_and(|c| c.is_finished()) {
        tcp.host().close(id);
    }
}
