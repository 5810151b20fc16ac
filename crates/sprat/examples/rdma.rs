//! RDMA without an RDMA card: a Write into the memory of a peer, over iWARP on TCP.
//!
//! `cargo run --example rdma`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::time::Duration;

use sprat::verbs::{Access, ConnectOptions, Device, Options, PairOptions, SendOp, SendRequest};

const SOON: Option<Duration> = Some(Duration::from_secs(5));

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(Options::default())?;
    let domain = device.protection_domain()?;
    let completions = device.completion_queue(16)?;
    let ours = domain.queue_pair(&PairOptions::new(&completions))?;
    let theirs = domain.queue_pair(&PairOptions::new(&completions))?;

    // Both ends are in one process here. A peer on another machine needs `insecure_network`.
    let listener = device.listen("127.0.0.1:0".parse()?)?;
    ours.begin_connect(listener.local_addr(), ConnectOptions::default())?;
    let request = listener.next(SOON).ok_or("no request arrived")?;
    request.accept(&theirs, Default::default())?;
    ours.connected(SOON)?;

    // A program sends the address and the key of its memory to the peer, by a message say.
    let source = domain.register(4096, Access::LOCAL)?;
    let target = domain.register(4096, Access::ALL)?;
    source.write(0, b"written by the peer")?;
    let write = SendOp::Write(target.remote(100));
    ours.post_send(SendRequest::new(1, write, source.sge(0..19)))?;
    completions.wait(SOON).ok_or("the Write did not complete")?.result()?;

    let mut text = [0; 19];
    target.read(100, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    assert_eq!(&text, b"written by the peer");
    Ok(())
}
