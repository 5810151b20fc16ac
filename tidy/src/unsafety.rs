//! The rule that `unsafe` stands only in listed files of `sys`, `verbs` and `c`, and where
//! packetdrill calls our TCP, each time with its reason.

use crate::report;
use crate::source::{files, line_of, words};

/// The files that may hold `unsafe`, and how many times the word stands in them. A ratchet: a
/// number may fall, and a new file needs a reason that a reviewer accepts.
const LISTED: &[(&str, usize)] = &[
    // The C API: names without a mangled form, and memory of the caller.
    ("crates/c/src/abi.rs", 4),
    ("crates/c/src/entry.rs", 2),
    ("crates/c/src/error.rs", 4),
    ("crates/c/src/pointer.rs", 22),
    ("crates/sys/src/bpf.rs", 18),
    ("crates/sys/src/clock.rs", 1),
    ("crates/sys/src/crc.rs", 2),
    // The scheduling policy of a thread, which no library offers.
    ("crates/sys/src/cpu.rs", 1),
    ("crates/sys/src/datagram.rs", 7),
    ("crates/sys/src/dpdk.rs", 13),
    ("crates/sys/src/ethtool.rs", 2),
    ("crates/sys/src/fork.rs", 2),
    ("crates/sys/src/gather.rs", 5),
    ("crates/sys/src/interfaces.rs", 8),
    ("crates/sys/src/memory/copy.rs", 16),
    ("crates/sys/src/memory/foreign.rs", 12),
    ("crates/sys/src/memory/foreign/tests.rs", 10),
    ("crates/sys/src/memory/guard.rs", 16),
    ("crates/sys/src/memory/guard/handler.rs", 15),
    ("crates/sys/src/memory/guard/routine.rs", 7),
    ("crates/sys/src/memory/guard/tests.rs", 15),
    ("crates/sys/src/memory/file.rs", 5),
    ("crates/sys/src/memory/huge.rs", 17),
    ("crates/sys/src/memory/mod.rs", 18),
    ("crates/sys/src/memory/pages.rs", 4),
    // Memory that is touched at the start, for the allocator.
    ("crates/sys/src/memory/populated.rs", 2),
    ("crates/sys/src/memory/sum.rs", 8),
    ("crates/sys/src/memory/sum/tests.rs", 3),
    // Bounds that are checked once, instead of at each access of a ring.
    ("crates/sys/src/memory/window.rs", 9),
    ("crates/sys/src/netns/mod.rs", 1),
    ("crates/sys/src/packet.rs", 1),
    ("crates/sys/src/signals.rs", 2),
    ("crates/sys/src/socket.rs", 18),
    ("crates/sys/src/tmpfs.rs", 1),
    ("crates/sys/src/xdp/queue.rs", 1),
    ("crates/verbs/src/async_event.rs", 8),
    ("crates/verbs/src/channel.rs", 10),
    ("crates/verbs/src/cm/address.rs", 7),
    ("crates/verbs/src/cm/addrinfo.rs", 21),
    ("crates/verbs/src/cm/channel.rs", 10),
    ("crates/verbs/src/cm/connect.rs", 30),
    ("crates/verbs/src/cm/delivery.rs", 9),
    ("crates/verbs/src/cm/devices.rs", 2),
    ("crates/verbs/src/cm/endpoint.rs", 13),
    ("crates/verbs/src/cm/event.rs", 12),
    ("crates/verbs/src/cm/id.rs", 24),
    ("crates/verbs/src/cm/log.rs", 2),
    ("crates/verbs/src/cm/lookup.rs", 6),
    ("crates/verbs/src/cm/queues.rs", 34),
    ("crates/verbs/src/cm/resolve.rs", 6),
    ("crates/verbs/src/context.rs", 5),
    ("crates/verbs/src/cq/create.rs", 10),
    ("crates/verbs/src/cq/mod.rs", 2),
    ("crates/verbs/src/cq/poll.rs", 12),
    ("crates/verbs/src/device.rs", 5),
    // Handlers of forks and, for connections of our own TCP, of the process's exit.
    ("crates/verbs/src/engine.rs", 2),
    ("crates/verbs/src/entry.rs", 11),
    ("crates/verbs/src/events.rs", 2),
    ("crates/verbs/src/mr.rs", 13),
    ("crates/verbs/src/mw.rs", 7),
    ("crates/verbs/src/open.rs", 3),
    ("crates/verbs/src/pd.rs", 9),
    ("crates/verbs/src/qp/build.rs", 13),
    ("crates/verbs/src/qp/create.rs", 10),
    ("crates/verbs/src/qp/mod.rs", 8),
    ("crates/verbs/src/query.rs", 22),
    ("crates/verbs/src/sequence.rs", 3),
    ("crates/verbs/src/srq.rs", 14),
    ("crates/verbs/src/sysfs.rs", 2),
    ("crates/verbs/src/text.rs", 1),
    ("crates/verbs/src/work.rs", 32),
    ("crates/verbs/tests/foreign.rs", 7),
    // The calling convention of packetdrill, a program of C. The package is no part of the product.
    ("interop/packetdrill/src/abi.rs", 17),
];

/// The most lines between the start of the reason (SAFETY) and `unsafe`.
const REASON_WITHIN: usize = 12;

#[test]
fn unsafe_stands_only_where_listed() {
    let mut wrong = Vec::new();
    let mut counted = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let count = words(&file.code(), "unsafe").count();
        let listed = LISTED.iter().find(|(path, _)| *path == file.path).map(|(_, n)| *n);
        if count > 0 {
            counted.push(file.path.clone());
        }
        match (count, listed) {
            (0, None) => {}
            (n, None) => {
                wrong.push(format!("{}: {n} × unsafe in a file that is not listed", file.path))
            }
            (n, Some(limit)) if n > limit => {
                wrong.push(format!("{}: {n} × unsafe, listed {limit}", file.path))
            }
            (n, Some(limit)) if n < limit => {
                wrong
                    .push(format!("{}: {n} × unsafe, listed {limit}: lower the number", file.path));
            }
            _ => {}
        }
    }
    for (path, _) in LISTED.iter().filter(|(p, _)| !counted.iter().any(|c| c == p)) {
        wrong.push(format!("{path}: listed, but it has no unsafe: take it off"));
    }
    for (path, _) in LISTED.iter().filter(|(p, _)| {
        !["crates/sys/", "crates/verbs/", "crates/c/", "interop/"].iter().any(|c| p.starts_with(c))
    }) {
        wrong.push(format!("{path}: unsafe belongs in sys, verbs and c"));
    }
    report("unsafe code:", &wrong);
}

/// Every `unsafe` has a comment with its reason: `unsafe impl`, `unsafe fn` and tests too, for
/// which Clippy does not demand it.
#[test]
fn every_unsafe_says_why_it_is_sound() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|f| f.is_rust()) {
        let code = file.code();
        let lines: Vec<&str> = file.text.lines().collect();
        for at in words(&code, "unsafe") {
            let line = line_of(&code, at);
            // A function pointer or a trait bound has nothing to explain.
            let after = code[at + "unsafe".len()..].trim_start();
            if after.starts_with("extern") || after.starts_with("fn(") {
                continue;
            }
            let above = &lines[line.saturating_sub(1 + REASON_WITHIN)..line];
            if !above.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety")) {
                wrong.push(format!("{}:{line}: unsafe without a `// SAFETY:` above it", file.path));
            }
        }
    }
    report("unsafe without a reason:", &wrong);
}
