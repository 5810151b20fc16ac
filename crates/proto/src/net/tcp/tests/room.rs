//! The event that a connection takes more bytes.

use super::hosts::Hosts;
use super::*;

/// Returns the number of events "writable" of a client that writes as much, of which the server
/// reads all.
fn events(write: impl Fn(&mut TcpHost, TcpId)) -> usize {
    let config = TcpConfig { send_bytes: 1000, ..TcpConfig::default() };
    let mut hosts = Hosts::new(&config, 1, 10, 10);
    let id = hosts.connect(1);
    hosts.run(10 * MS);
    hosts.events.clear();
    write(&mut hosts.hosts[1], id);
    hosts.run(SECOND);
    hosts
        .events
        .iter()
        .filter(|(host, of, changes)| (*host, *of) == (1, id) && changes.writable)
        .count()
}

/// An acknowledgement is news for a program whose last write found too little room, and for no
/// other: an echo has no event beside its data.
#[test]
fn room_is_reported_to_a_program_that_waits_for_it() {
    let written = |len: usize, taken: usize| {
        events(|host, id| assert_eq!(host.write(id, &alloc::vec![1; len]), taken))
    };
    assert_eq!(written(999, 999), 0);
    assert_eq!(written(1000, 1000), 1, "the last room");
    assert_eq!(written(1001, 1000), 1, "not enough");
    let records = |fits: bool| {
        events(|host, id| {
            assert!(host.write_record(id, &[&[1; 600]]));
            assert_eq!(
                host.write_record(id, &[&[1; 300], if fits { &[] } else { &[1; 300] }]),
                fits
            );
        })
    };
    assert_eq!(records(true), 0);
    assert_eq!(records(false), 1);
    let smaller = events(|host, id| {
        assert!(!host.write_record(id, &[&[1; 1001]]));
        assert!(host.write_record(id, &[&[1; 10]]));
    });
    assert_eq!(smaller, 1, "the longer one waits");
    let asked = events(|host, id| {
        host.write(id, b"x");
        host.want_room(id);
    });
    assert_eq!(asked, 1);
    let later = events(|host, id| {
        assert_eq!(host.write(id, &[1; 999]), 999);
        assert_eq!(host.write(id, &[1; 2]), 1);
        assert_eq!(host.write(id, &[]), 0);
    });
    assert_eq!(later, 1, "no room is left");
}
