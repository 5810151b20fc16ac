//! A service called by asynchronous tasks, here with Tokio. Any other runtime will do.
//!
//! `cargo run --example rpc_async`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::thread::spawn;
use std::time::Duration;

use sprat::rpc::{Call, Client, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locator = format!("fast+shm:name=example-async-{}", std::process::id());
    let upper = |call: Call<'_>| Some(call.payload.to_ascii_uppercase());
    let mut server = Server::listen(&[&locator], upper)?;
    let stop = server.stop();
    let thread = spawn(move || server.run());

    let client = Client::builder().build_async()?;
    let session = client.connect(&locator).await?;
    let timeout = Duration::from_secs(5);
    assert_eq!(session.call(b"hello", timeout).await?, b"HELLO");

    // A hundred tasks share the session.
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let session = session.clone();
            tokio::spawn(async move { session.call(format!("sprat {number}"), timeout).await })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await??, format!("SPRAT {number}").into_bytes());
    }
    println!("a hundred tasks had their replies");
    stop.stop();
    thread.join().map_err(|_| "the server panicked")?;
    Ok(())
}
