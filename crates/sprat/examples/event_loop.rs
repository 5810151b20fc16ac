//! A client in an event loop of the program's own, which waits for other descriptors too. `poll`
//! stands here for `epoll` or mio.
//!
//! `cargo run --example event_loop`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::spawn;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::rpc::{Call, Client, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let locator = format!("fast+shm:name=example-loop-{}", std::process::id());
    let upper = |call: Call<'_>| Some(call.payload.to_ascii_uppercase());
    let mut server = Server::listen(&[&locator], upper)?;
    let stop = server.stop();
    let serving = spawn(move || server.run());

    // Another source of events: words from another thread.
    let (mut words, mut give) = UnixStream::pair()?;
    words.set_nonblocking(true)?;
    let giving =
        spawn(move || ["sprat", "herring", "hake"].map(|word| give.write_all(word.as_bytes())));

    let mut client = Client::new()?;
    let descriptor = client.descriptor()?;
    let session = client.connect(&locator)?;
    let (mut asked, mut answered) = (0, 0);
    while answered < asked || asked < "spratherringhake".len() {
        while client.turn() {}
        while let Some((_, reply)) = client.completed() {
            let reply = reply?;
            println!("{}", String::from_utf8_lossy(reply));
            answered += reply.len();
        }
        let mut buffer = [0; 64];
        if let Ok(len) = words.read(&mut buffer) {
            client.start(session, &buffer[..len], Duration::from_secs(5));
            asked += len;
        }
        // Nothing is done while this waits, unless there is work at once.
        if let Some(longest) = client.prepare_to_sleep() {
            let timeout = Timespec::try_from(longest)?;
            let mut fds =
                [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(&words, PollFlags::IN)];
            poll(&mut fds, Some(&timeout))?;
        }
    }
    giving
        .join()
        .map_err(|_| "the other thread panicked")?
        .into_iter()
        .collect::<Result<(), _>>()?;
    stop.stop();
    serving.join().map_err(|_| "the server panicked")?;
    Ok(())
}
