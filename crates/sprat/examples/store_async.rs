//! The key-value store from tasks of Tokio.
//!
//! `cargo run --example store_async`

#![expect(clippy::print_stdout, reason = "an example prints")]

mod cluster;

use std::error::Error;

use sprat::kv::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cluster = cluster::Cluster::start()?;
    let client = Client::builder(&cluster.at).connect_async()?;
    let birds = client.create_table("birds", 1).await?;

    let tasks = (0..8_u8).map(|task| {
        let birds = birds.clone();
        tokio::spawn(async move {
            for i in 0..100_u8 {
                birds.put(&[task, i], b"seen").await?;
                birds.increment(b"sum", 1).await?;
            }
            Ok::<(), sprat::kv::Error>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    let sum = birds.get(b"sum").await?.ok_or("no task has counted")?;
    println!("{} increments", String::from_utf8_lossy(&sum.value));
    assert_eq!(sum.value, b"800");
    Ok(())
}
