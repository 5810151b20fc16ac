//! A service and its client over shared memory. Another locator chooses another transport, as in
//! `tcp:host=127.0.0.1,port=7000` or `fast+udp:host=127.0.0.1,port=7000`.
//!
//! `cargo run --example rpc`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::thread::spawn;
use std::time::Duration;

use sprat::rpc::{Call, Client, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let locator = format!("fast+shm:name=example-{}", std::process::id());
    let upper = |call: Call<'_>| Some(call.payload.to_ascii_uppercase());
    let mut server = Server::listen(&[&locator], upper)?;
    let stop = server.stop();
    let thread = spawn(move || server.run());

    let timeout = Duration::from_secs(1);
    let mut client = Client::new()?;
    let session = client.connect(&locator)?;
    assert_eq!(client.call(session, b"hello", timeout)?, b"HELLO");

    // Several requests in progress at a time. Their replies come in any order.
    for word in ["sprat", "herring", "anchovy"] {
        client.start(session, word.as_bytes(), timeout);
    }
    let mut replies = 0;
    while replies < 3 {
        client.turn_and_rest();
        while let Some((_, reply)) = client.completed() {
            println!("{}", String::from_utf8_lossy(reply?));
            replies += 1;
        }
    }
    stop.stop();
    thread.join().map_err(|_| "the server panicked")?;
    Ok(())
}
