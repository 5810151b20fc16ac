//! The key-value store: reads, writes, conditions, operations in progress, a transaction, and a
//! scan.
//!
//! `cargo run --example store`

#![expect(clippy::print_stdout, reason = "an example prints")]

mod cluster;

use std::error::Error;

use sprat::kv::{Client, Condition, Error as StoreError};

fn main() -> Result<(), Box<dyn Error>> {
    let cluster = cluster::Cluster::start()?;
    let client = Client::connect(&cluster.at)?;
    let birds = client.create_table("birds", 1)?;

    let version = birds.put(b"sprat", b"a bird?")?;
    assert_eq!(birds.get(b"eagle")?, None);

    // Only if the object still has the version that was read: a lost update is impossible.
    birds.put_if(b"sprat", b"a fish after all", Condition::if_version(version))?;
    let late = birds.put_if(b"sprat", b"a bird!", Condition::if_version(version));
    assert!(matches!(late, Err(StoreError::WrongVersion(_))));

    // A thousand increments in progress at a time. Each one executes exactly once.
    let pending: Vec<_> = (0..1000).map(|_| birds.start_increment(b"seen", 1)).collect();
    for increment in pending {
        increment.wait()?;
    }

    // Two objects change together or not at all: again if another client changes one meanwhile.
    client.transact(|transaction| {
        let fish = transaction.get(&birds, b"sprat")?.map_or(Vec::new(), |object| object.value);
        transaction.put(&birds, b"Sprattus", &fish)?;
        transaction.remove(&birds, b"sprat")
    })?;
    assert_eq!(birds.get(b"sprat")?, None);

    for object in birds.scan() {
        let (key, object) = object?;
        let (key, value) = (String::from_utf8_lossy(&key), String::from_utf8_lossy(&object.value));
        println!("{key}: {value}");
    }
    assert_eq!(birds.get(b"seen")?.map(|object| object.value), Some(b"1000".to_vec()));
    Ok(())
}
