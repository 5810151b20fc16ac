//! Tests of the checker for strict serializability with histories known to be good or bad.

use super::*;

mod random;

const X: Name = (1, 1);
const Y: Name = (1, 2);
const Z: Name = (2, 1);

/// A transaction's parts, and the versions that its answer reports.
type Whole<'a> = (&'a [Part], &'a [(Name, u64)]);

fn saw(name: Name, version: u64, tag: u64) -> Part {
    Part::Read { name, seen: Some((version, tag)) }
}

fn absent(name: Name) -> Part {
    Part::Read { name, seen: None }
}

fn write(name: Name, tag: u64) -> Part {
    Part::Write { name, tag }
}

fn remove(name: Name) -> Part {
    Part::Remove { name }
}

/// Adds a transaction that begins and commits at once.
fn done(serial: &mut Serial, parts: &[Part], versions: &[(Name, u64)]) {
    let number = serial.begin();
    parts.iter().for_each(|part| serial.add(number, *part));
    serial.commit(number, versions);
}

/// Adds transactions that all overlap.
fn overlap(serial: &mut Serial, transactions: &[Whole<'_>]) {
    let numbers: Vec<_> = transactions.iter().map(|_| serial.begin()).collect();
    for (number, (parts, versions)) in numbers.into_iter().zip(transactions) {
        parts.iter().for_each(|part| serial.add(number, *part));
        serial.commit(number, versions);
    }
}

/// Makes a history in which X, Y and Z have version 1, with tags 1, 2 and 3.
fn three() -> Serial {
    let mut serial = Serial::default();
    done(&mut serial, &[write(X, 1), write(Y, 2), write(Z, 3)], &[(X, 1), (Y, 1), (Z, 1)]);
    serial
}

#[track_caller]
fn good(serial: &Serial) {
    if let Err(fault) = serial.check() {
        panic!("{fault}");
    }
}

/// Checks that the history is at fault only because of the order in real time, or without it.
#[track_caller]
fn bad(serial: &Serial, kind: Kind, real_time: bool) -> Fault {
    let fault = serial.check().expect_err("the history is not strictly serializable");
    assert_eq!((fault.kind, fault.real_time), (kind, real_time), "{fault}");
    fault
}

#[test]
fn a_serial_history_passes() {
    let mut serial = three();
    assert_eq!((serial.len(), serial.is_empty()), (1, false));
    done(&mut serial, &[saw(X, 1, 1), saw(Y, 1, 2), write(X, 4)], &[(X, 2)]);
    let number = serial.write(X, 5);
    serial.commit(number, &[(X, 7)]);
    let number = serial.begin();
    serial.read(number, X, Some((7, 5)));
    let number = serial.remove(X);
    serial.commit(number, &[(X, 7)]);
    let number = serial.begin();
    serial.read(number, X, None);
    let number = serial.remove(X);
    serial.commit(number, &[(X, 0)]);
    done(&mut serial, &[absent(X), saw(Y, 1, 2), write(X, 6)], &[(X, 8)]);
    done(&mut serial, &[saw(X, 8, 6), saw(Y, 1, 2)], &[]);
    good(&serial);
    good(&Serial::default());
}

#[test]
fn a_read_sees_a_write_that_may_have_committed() {
    let mut serial = three();
    let number = serial.write(X, 9);
    serial.abort(number);
    let number = serial.write(Y, 8);
    serial.unknown(number);
    done(&mut serial, &[saw(Y, 5, 8), saw(X, 1, 1)], &[]);
    good(&serial);
    let mut aborted = serial.clone();
    done(&mut aborted, &[saw(X, 2, 9)], &[]);
    bad(&aborted, Kind::AbortedRead, false);
    // Reads of a transaction that was aborted count too.
    let mut aborted = serial.clone();
    let number = aborted.begin();
    aborted.add(number, saw(X, 2, 9));
    aborted.abort(number);
    bad(&aborted, Kind::AbortedRead, false);
    let mut garbage = serial.clone();
    done(&mut garbage, &[saw(X, 2, 7)], &[]);
    bad(&garbage, Kind::Garbage, false);
    let mut own = serial.clone();
    done(&mut own, &[saw(X, 2, 7), write(X, 7)], &[(X, 2)]);
    bad(&own, Kind::Garbage, false);
    let mut elsewhere = serial.clone();
    done(&mut elsewhere, &[saw(X, 5, 8)], &[]);
    bad(&elsewhere, Kind::Garbage, false);
    done(&mut serial, &[remove(Z)], &[(Z, 2)]);
    bad(&serial, Kind::Garbage, false);
}

#[test]
fn a_version_has_one_write() {
    let mut zero = three();
    done(&mut zero, &[write(X, 4)], &[(X, 0)]);
    bad(&zero, Kind::Versions, false);
    let mut two_tags = three();
    overlap(&mut two_tags, &[(&[write(X, 4)], &[(X, 2)]), (&[write(X, 5)], &[(X, 2)])]);
    bad(&two_tags, Kind::Versions, false);
    let mut two_versions = three();
    let number = two_versions.write(X, 4);
    done(&mut two_versions, &[saw(X, 2, 4)], &[]);
    good(&two_versions);
    two_versions.commit(number, &[(X, 3)]);
    bad(&two_versions, Kind::Versions, false);
}

#[test]
fn a_lost_update_is_found() {
    let parts = |tag| [saw(X, 1, 1), write(X, tag)];
    let mut serial = three();
    overlap(&mut serial, &[(&parts(4), &[(X, 2)]), (&parts(5), &[(X, 3)])]);
    let fault = bad(&serial, Kind::GSingle, false).to_string();
    assert!(fault.contains("T2 -> T1  rw: T2 saw version 1 of (1, 1), then came version 2"));
    assert!(fault.contains("T1 -> T2  ww: version 2 of (1, 1), then version 3"), "{fault}");
    assert!(fault.contains("T1, Committed, begin 3, end 5:\n  read (1, 1): version 1, tag 1\n"));
    // Without versions in the answers, the reads give the places of the writes.
    let mut serial = three();
    overlap(&mut serial, &[(&parts(4), &[]), (&parts(5), &[])]);
    bad(&serial, Kind::GSingle, false);
    // Both find no object, and both make it.
    let insert = |tag| [absent(X), write(X, tag)];
    let mut serial = Serial::default();
    overlap(&mut serial, &[(&insert(4), &[(X, 2)]), (&insert(5), &[(X, 3)])]);
    bad(&serial, Kind::GSingle, false);
    // A removal is an update that sees the version.
    let mut serial = three();
    overlap(&mut serial, &[(&parts(4), &[(X, 2)]), (&[remove(X)], &[(X, 1)])]);
    bad(&serial, Kind::GSingle, false);
}

#[test]
fn write_skew_is_found() {
    let mut serial = three();
    let both = |name, tag| [saw(X, 1, 1), saw(Y, 1, 2), write(name, tag)];
    overlap(&mut serial, &[(&both(X, 4), &[(X, 2)]), (&both(Y, 5), &[(Y, 2)])]);
    bad(&serial, Kind::G2, false);
    let mut serial = three();
    overlap(&mut serial, &[(&both(X, 4), &[(X, 2)]), (&both(Z, 5), &[(Z, 2)])]);
    good(&serial);
    // Skew of two objects that do not exist.
    let both = |name, tag| [absent(X), absent(Y), write(name, tag)];
    let mut serial = Serial::default();
    overlap(&mut serial, &[(&both(X, 4), &[(X, 2)]), (&both(Y, 5), &[(Y, 2)])]);
    bad(&serial, Kind::G2, false);
    // Skew of two removals.
    let mut serial = three();
    let both = |name| [saw(X, 1, 1), saw(Y, 1, 2), remove(name)];
    overlap(&mut serial, &[(&both(X), &[(X, 1)]), (&both(Y), &[])]);
    bad(&serial, Kind::G2, false);
}

#[test]
fn a_read_of_a_part_of_a_transaction_is_found() {
    for (x, y, whole) in [(1, 1, true), (2, 2, true), (2, 1, false), (1, 2, false)] {
        let mut serial = three();
        let both = [write(X, 11), write(Y, 12)];
        let reads = [saw(X, x, [1, 11][x as usize - 1]), saw(Y, y, [2, 12][y as usize - 1])];
        let mut unanswered = serial.clone();
        overlap(&mut serial, &[(&both, &[(X, 2), (Y, 2)]), (&reads, &[])]);
        let number = unanswered.begin();
        both.iter().for_each(|part| unanswered.add(number, *part));
        done(&mut unanswered, &reads, &[]);
        if whole {
            good(&serial);
            good(&unanswered);
        } else {
            bad(&serial, Kind::GSingle, false);
            // The version of the other write is unknown, but it began after version 1.
            bad(&unanswered, Kind::GSingle, true);
            done(&mut unanswered, &[saw(X, 2, 11), saw(Y, 2, 12)], &[]);
            bad(&unanswered, Kind::GSingle, false);
        }
    }
}

#[test]
fn a_stale_read_is_found() {
    let mut serial = three();
    overlap(&mut serial, &[(&[write(X, 4)], &[(X, 2)]), (&[saw(X, 1, 1)], &[])]);
    good(&serial);
    done(&mut serial, &[saw(X, 1, 1)], &[]);
    let fault = bad(&serial, Kind::GSingle, true).to_string();
    assert!(fault.contains("T1 -> T3  real time: T1 ended at 5, T3 began at 7"), "{fault}");
    // The write that was not answered may come late, but not after a read of it was answered.
    let mut serial = three();
    let number = serial.write(X, 4);
    done(&mut serial, &[saw(X, 1, 1)], &[]);
    serial.unknown(number);
    done(&mut serial, &[saw(X, 2, 4)], &[]);
    good(&serial);
    done(&mut serial, &[saw(X, 1, 1)], &[]);
    bad(&serial, Kind::GSingle, true);
    // A value cannot be read before its write begins.
    let mut serial = Serial::default();
    done(&mut serial, &[saw(X, 1, 1)], &[]);
    done(&mut serial, &[write(X, 1)], &[(X, 1)]);
    bad(&serial, Kind::G1c, true);
    // Nor can versions grow against time.
    let mut serial = Serial::default();
    done(&mut serial, &[write(X, 1)], &[(X, 2)]);
    done(&mut serial, &[write(X, 2)], &[(X, 1)]);
    bad(&serial, Kind::G0, true);
}

#[test]
fn a_long_fork_is_found() {
    let fork = |second: [Part; 2]| {
        let mut serial = three();
        let first = [saw(X, 2, 4), saw(Y, 1, 2)];
        overlap(
            &mut serial,
            &[
                (&[write(X, 4)], &[(X, 2)]),
                (&[write(Y, 5)], &[(Y, 2)]),
                (&first, &[]),
                (&second, &[]),
            ],
        );
        serial
    };
    bad(&fork([saw(X, 1, 1), saw(Y, 2, 5)]), Kind::G2, false);
    good(&fork([saw(X, 1, 1), saw(Y, 1, 2)]));
    good(&fork([saw(X, 2, 4), saw(Y, 2, 5)]));
}

#[test]
fn transactions_that_see_each_other_are_found() {
    let mut serial = three();
    overlap(
        &mut serial,
        &[(&[saw(Y, 2, 5), write(X, 4)], &[(X, 2)]), (&[saw(X, 2, 4), write(Y, 5)], &[(Y, 2)])],
    );
    bad(&serial, Kind::G1c, false);
    let mut serial = three();
    let both = |x, y| [write(X, x), write(Y, y)];
    overlap(&mut serial, &[(&both(4, 5), &[(X, 2), (Y, 3)]), (&both(6, 7), &[(X, 3), (Y, 2)])]);
    bad(&serial, Kind::G0, false);
}

/// The place of an unanswered write is not known, but no transaction sees one without the other.
#[test]
fn an_unanswered_transaction_is_seen_whole_by_its_reader() {
    let mut serial = Serial::default();
    let number = serial.begin();
    [write(X, 1), write(Y, 2)].iter().for_each(|part| serial.add(number, *part));
    let mut removed = serial.clone();
    done(&mut serial, &[saw(X, 1, 1), absent(Y)], &[]);
    bad(&serial, Kind::GSingle, false);
    let number = removed.remove(Y);
    done(&mut removed, &[saw(X, 1, 1), absent(Y)], &[]);
    removed.unknown(number);
    good(&removed);
}

/// A read of a transaction is worth nothing if the object changes before the commit.
#[test]
fn a_change_between_a_read_and_the_commit_is_found() {
    for seen in [saw(Y, 1, 2), saw(Y, 2, 5)] {
        let mut serial = three();
        let number = serial.begin();
        serial.add(number, saw(X, 1, 1));
        done(&mut serial, &[write(X, 4)], &[(X, 2)]);
        done(&mut serial, &[saw(X, 2, 4), write(Y, 5)], &[(Y, 2)]);
        serial.add(number, seen);
        serial.commit(number, &[]);
        match seen == saw(Y, 1, 2) {
            true => good(&serial),
            false => _ = bad(&serial, Kind::GSingle, false),
        }
    }
    let mut serial = three();
    let number = serial.begin();
    serial.add(number, saw(X, 1, 1));
    done(&mut serial, &[write(X, 4)], &[(X, 2)]);
    serial.add(number, saw(X, 2, 4));
    let mut aborted = serial.clone();
    aborted.abort(number);
    good(&aborted);
    serial.commit(number, &[]);
    bad(&serial, Kind::FuzzyRead, false);
    let mut serial = three();
    done(&mut serial, &[absent(X), remove(X)], &[(X, 1)]);
    bad(&serial, Kind::FuzzyRead, false);
}

#[test]
fn an_absent_object_is_read_at_the_beginning_or_after_a_removal() {
    // Without a removal: before the first write.
    let mut serial = Serial::default();
    overlap(&mut serial, &[(&[write(X, 1)], &[(X, 1)]), (&[absent(X)], &[])]);
    good(&serial);
    done(&mut serial, &[absent(X)], &[]);
    bad(&serial, Kind::GSingle, true);
    // After a removal, and before the write that ended before the next read.
    let mut serial = three();
    done(&mut serial, &[remove(X)], &[(X, 1)]);
    done(&mut serial, &[absent(X)], &[]);
    done(&mut serial, &[write(X, 4)], &[(X, 2)]);
    good(&serial);
    let mut late = serial.clone();
    done(&mut late, &[absent(X)], &[]);
    bad(&late, Kind::GSingle, true);
    // A removal that was not answered may happen at any time, but only once it has begun.
    let number = late.remove(X);
    late.unknown(number);
    bad(&late, Kind::GSingle, true);
    let number = serial.remove(X);
    serial.unknown(number);
    done(&mut serial, &[absent(X)], &[]);
    good(&serial);
    // One that saw a version can only have removed this version.
    let mut serial = three();
    let number = serial.begin();
    [saw(X, 1, 1), remove(X)].iter().for_each(|part| serial.add(number, *part));
    serial.unknown(number);
    done(&mut serial, &[absent(X)], &[]);
    good(&serial);
    done(&mut serial, &[write(X, 4)], &[(X, 2)]);
    done(&mut serial, &[absent(X)], &[]);
    bad(&serial, Kind::GSingle, true);
}

#[test]
fn a_removal_is_an_observation_too() {
    let mut serial = three();
    done(&mut serial, &[remove(X)], &[(X, 0)]);
    bad(&serial, Kind::GSingle, true);
    // A removal that saw no object removed nothing, even if it was not answered.
    let mut serial = Serial::default();
    let number = serial.begin();
    [absent(X), remove(X)].iter().for_each(|part| serial.add(number, *part));
    serial.unknown(number);
    done(&mut serial, &[write(X, 1)], &[(X, 1)]);
    good(&serial);
    done(&mut serial, &[absent(X)], &[]);
    bad(&serial, Kind::GSingle, true);
    // If another transaction removed the version, the one without an answer did not.
    let mut serial = three();
    let number = serial.begin();
    [saw(X, 1, 1), remove(X)].iter().for_each(|part| serial.add(number, *part));
    serial.unknown(number);
    done(&mut serial, &[absent(X)], &[]);
    good(&serial);
    done(&mut serial, &[remove(X)], &[(X, 1)]);
    bad(&serial, Kind::GSingle, true);
}

#[test]
fn a_transaction_that_sees_no_object_sees_the_removal_whole() {
    for (y, tag, whole) in [(2, 5, true), (1, 2, false)] {
        let mut serial = three();
        let number = serial.begin();
        [remove(X), write(Y, 5)].iter().for_each(|part| serial.add(number, *part));
        serial.commit(number, &[(X, 1), (Y, 2)]);
        done(&mut serial, &[absent(X), saw(Y, 2, 5)], &[]);
        good(&serial);
        let mut serial = three();
        overlap(
            &mut serial,
            &[(&[remove(X), write(Y, 5)], &[(X, 1), (Y, 2)]), (&[absent(X), saw(Y, y, tag)], &[])],
        );
        match whole {
            true => good(&serial),
            false => _ = bad(&serial, Kind::GSingle, true),
        }
    }
}

/// The check takes time that is almost linear in the history.
#[test]
fn a_long_history_is_checked() {
    let mut serial = Serial::default();
    let mut last = None;
    for i in 1..=100_000 {
        let name = (1, i % 3);
        let number = serial.write(name, i);
        if let Some(last) = last.replace(number) {
            serial.commit(last, &[((1, (i - 1) % 3), i - 1)]);
        }
        if i % 10 == 0 {
            done(&mut serial, &[remove((2, 0))], &[((2, 0), 0)]);
            done(&mut serial, &[absent((2, 0)), write((2, 0), i << 20)], &[((2, 0), i)]);
            done(&mut serial, &[remove((2, 0))], &[((2, 0), i)]);
        }
    }
    good(&serial);
    done(&mut serial, &[saw((1, 1), 49_999, 49_999)], &[]);
    bad(&serial, Kind::GSingle, true);
}
