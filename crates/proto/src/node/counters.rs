//! The counters of a node as an object in JSON.
//!
//! ```text
//! { "reads": 7, …, "fast+shm": { "received": 9, … }, "tcp": { … } }
//! ```
//!
//! The counters of the machine and of the process are members, and those of all transports of a
//! protocol, added up, are an object of their own.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use super::host::Host;

/// Appends the counters of a machine and of its host to `bytes`, as an object in JSON.
pub(super) fn put(bytes: &mut Vec<u8>, own: &[(String, u64)], host: &impl Host) {
    let mut protocols: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
    host.counters(&mut |protocol, name, value| {
        *protocols.entry(protocol.into()).or_default().entry(name).or_default() += value;
    });
    let mut members = Vec::new();
    members.push(list(own.iter().map(|(name, value)| (&**name, *value))));
    members.extend(protocols.iter().map(|(protocol, counters)| {
        let inner = list(counters.iter().map(|(name, value)| (*name, *value)));
        if protocol.is_empty() {
            return inner;
        }
        alloc::format!("\"{protocol}\":{{{inner}}}")
    }));
    members.retain(|member| !member.is_empty());
    bytes.extend_from_slice(alloc::format!("{{{}}}", members.join(",")).as_bytes());
}

/// Returns counters as members of a JSON object, without its braces.
fn list<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> String {
    let mut text = String::new();
    for (name, value) in counters {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}\"{name}\":{value}");
    }
    text
}
