//! What a master counts, as JSON.

use alloc::string::String;
use core::fmt::Write as _;

use sprat_proto::rpc::Message;

use crate::message::{Status, data};
use crate::objects::memory::Memory;

/// Requests since the start, by kind and by how they were refused.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) removes: u64,
    pub(super) increments: u64,
    pub(super) enumerations: u64,
    pub(super) echoes: u64,
    /// Mutations that had been executed before.
    pub(super) repeated: u64,
    /// Requests that came after their deadlines.
    pub(super) late: u64,
    /// By status code.
    refused: [u64; 32],
}

impl Counts {
    /// The reply that says no more than `status`.
    #[cold]
    pub(super) fn refuse(&mut self, status: Status) -> Message {
        if let Some(count) = self.refused.get_mut(status as usize) {
            *count += 1;
        }
        data::head(status)[..].into()
    }
}

/// One object of names and numbers, without its closing brace.
pub(super) fn json(counts: &Counts, memory: &Memory, cleaned: u64) -> String {
    let log = &memory.log;
    let numbers = [
        ("reads", counts.reads),
        ("writes", counts.writes),
        ("removes", counts.removes),
        ("increments", counts.increments),
        ("enumerations", counts.enumerations),
        ("echoes", counts.echoes),
        ("repeated", counts.repeated),
        ("late", counts.late),
        ("objects", memory.table.len()),
        ("tablets", memory.tablets.iter().count() as u64),
        ("clients", memory.results.clients() as u64),
        ("completions", memory.results.records()),
        ("live_bytes", log.live_bytes()),
        ("tombstone_bytes", log.tombstone_bytes()),
        ("live_limit_bytes", log.live_limit()),
        ("capacity_bytes", log.capacity_bytes()),
        ("appended_bytes", log.appended_bytes()),
        ("table_bytes", memory.table.memory_bytes()),
        ("segments", u64::from(log.limit())),
        ("segments_free", u64::from(log.available())),
        ("segments_pinned", u64::from(log.pinned())),
        ("segments_cleaned", cleaned),
        ("lent_copies_bytes", log.copied_bytes()),
    ];
    let mut text = String::from("{");
    for (name, number) in numbers {
        // Writing to a string cannot fail.
        let _ = write!(text, "\"{name}\":{number},");
    }
    for (code, &count) in counts.refused.iter().enumerate().filter(|&(_, &count)| count > 0) {
        if let Some(status) = Status::from_code(code as u8) {
            let _ = write!(text, "\"refused_{status:?}\":{count},");
        }
    }
    text.pop();
    text
}
