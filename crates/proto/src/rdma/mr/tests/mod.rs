//! Tests of steering tags: each rule by itself.

mod random;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::*;

const BASE: u64 = 0x1_0000;
const LEN: u64 = 0x100;

const fn rights(
    local_write: bool,
    remote_write: bool,
    remote_read: bool,
    remote_atomic: bool,
) -> Access {
    Access { local_write, remote_write, remote_read, remote_atomic, bind: false }
}

const ALL: Access = Access { bind: true, ..rights(true, true, true, true) };
const READ_ONLY: Access = rights(false, false, true, false);

/// The tag user of a queue pair that allows its peer all accesses.
const fn stream(pd: Pd, qp: u32) -> TagUser {
    TagUser { pd, qp: Qp(qp), rights: Rights::ALL }
}

/// A registry with one protection domain, and in it one region with all rights.
fn one_region() -> (Regions, TagUser, Stag) {
    let mut regions = Regions::new(Rng::seeded(1), 1 << 16, 1 << 20);
    let pd = regions.alloc_pd().expect("there is room");
    let stag = regions.register(pd, 7, BASE, LEN, ALL).expect("it is sound");
    (regions, stream(pd, 1), stag)
}

const fn span(offset: u64, len: u32) -> Option<Span> {
    Some(Span { region: 7, offset, len })
}

fn extent(base: u64, len: u64) -> Extent {
    Extent { region: 7, offset: 0, base, len }
}

const RIGHTS: [Right; 3] = [Right::Write, Right::Read, Right::Atomic];

/// The cause in the Terminate for each access through an invalid steering tag.
fn invalid(right: Right) -> Cause {
    if right == Right::Write { Cause::TAGGED_STAG } else { Cause::INVALID_STAG }
}

fn other_key(stag: Stag) -> Stag {
    Stag(stag.0 ^ 1)
}

#[test]
fn s1_bounds_are_exact_to_the_byte() {
    let (regions, by, stag) = one_region();
    for (addr, len, offset) in
        [(BASE, LEN, 0), (BASE + 1, LEN - 1, 1), (BASE + LEN - 1, 1, LEN - 1), (BASE, 1, 0)]
    {
        assert_eq!(
            regions.remote(by, stag, addr, len as u32, Right::Write).ok(),
            span(offset, len as u32)
        );
        assert_eq!(
            regions.remote(by, stag, addr, len as u32, Right::Read).ok(),
            span(offset, len as u32)
        );
        let sge = Sge { stag, addr, len: len as u32 };
        assert_eq!(regions.local(by.pd, sge, true).ok(), span(offset, len as u32));
    }
    for (addr, len) in
        [(BASE - 1, 1), (BASE - 1, 2), (BASE + LEN, 1), (BASE, LEN + 1), (BASE + 1, LEN), (0, 1)]
    {
        let remote = |right| regions.remote(by, stag, addr, len as u32, right);
        assert_eq!(remote(Right::Write), Err(Cause::TAGGED_BOUNDS));
        assert_eq!(remote(Right::Read), Err(Cause::BOUNDS));
        let sge = Sge { stag, addr, len: len as u32 };
        assert_eq!(regions.local(by.pd, sge, false), Err(Status::LocalProtection));
    }
}

#[test]
fn s1_a_tag_works_in_its_own_domain_only() {
    let (mut regions, by, stag) = one_region();
    let other = regions.alloc_pd().expect("there is room");
    let other_user = TagUser { pd: other, ..by };
    assert_eq!(
        regions.remote(other_user, stag, BASE, 1, Right::Write),
        Err(Cause::TAGGED_NOT_ASSOCIATED)
    );
    assert_eq!(regions.remote(other_user, stag, BASE, 1, Right::Read), Err(Cause::NOT_ASSOCIATED));
    assert_eq!(
        regions.remote(other_user, stag, BASE, 8, Right::Atomic),
        Err(Cause::NOT_ASSOCIATED)
    );
    assert_eq!(
        regions.local(other, Sge { stag, addr: BASE, len: 1 }, false),
        Err(Status::LocalProtection)
    );
}

#[test]
fn s1_a_tag_of_one_stream_works_on_no_other() {
    let (mut regions, by, region) = one_region();
    let other = TagUser { qp: Qp(2), ..by };
    let window = regions.alloc_window(by.pd, WindowKind::OneQp).expect("there is room");
    regions
        .bind(by, window, region, BASE, 8, rights(false, true, false, false))
        .expect("it may be bound");
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
    for stag in [window, fast] {
        assert_eq!(regions.remote(by, stag, BASE, 8, Right::Write).ok(), span(0, 8));
        assert_eq!(
            regions.remote(other, stag, BASE, 8, Right::Write),
            Err(Cause::TAGGED_NOT_ASSOCIATED)
        );
    }
    // The local program may use a fast registration anywhere in the domain.
    assert_eq!(regions.local(by.pd, Sge { stag: fast, addr: BASE, len: 8 }, true).ok(), span(0, 8));
    assert_eq!(regions.remote(other, region, BASE, 8, Right::Write).ok(), span(0, 8));
}

#[test]
fn s1_a_queue_pair_s_own_rights_count_too() {
    let (regions, by, stag) = one_region();
    for (right, none) in [
        (Right::Write, Rights { write: false, ..Rights::ALL }),
        (Right::Read, Rights { read: false, ..Rights::ALL }),
        (Right::Atomic, Rights { atomic: false, ..Rights::ALL }),
    ] {
        for other in RIGHTS {
            let answer = regions.remote(TagUser { rights: none, ..by }, stag, BASE, 8, other);
            let refused = if right == Right::Write { Cause::TAGGED_STAG } else { Cause::ACCESS };
            assert_eq!(answer.err(), (other == right).then_some(refused));
        }
    }
}

#[test]
fn s1_rights_change_under_the_same_tag() {
    let (mut regions, by, stag) = one_region();
    assert_eq!(regions.change_rights(stag, READ_ONLY), Ok(()));
    assert_eq!(regions.remote(by, stag, BASE, 8, Right::Write), Err(Cause::TAGGED_STAG));
    assert!(regions.remote(by, stag, BASE, 8, Right::Read).is_ok());
    let wrong = rights(false, true, false, false);
    assert_eq!(regions.change_rights(stag, wrong), Err(PostError::Rights));
    assert_eq!(regions.change_rights(other_key(stag), ALL), Err(PostError::Invalid));
    assert_eq!(regions.change_rights(stag, ALL), Ok(()));
    let window = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    regions.bind(by, window, stag, BASE, 8, ALL).expect("it may be bound");
    assert_eq!(regions.change_rights(stag, READ_ONLY), Err(PostError::Busy));
    assert!(regions.remote(by, stag, BASE, 8, Right::Write).is_ok(), "nothing has changed");
}

#[test]
fn d9_codes_of_tagged_segments() {
    let (mut regions, by, stag) = one_region();
    let write =
        |regions: &Regions, stag, addr, len| regions.remote(by, stag, addr, len, Right::Write);
    assert_eq!(write(&regions, Stag(stag.0 ^ 0x100), BASE, 1), Err(Cause::TAGGED_STAG));
    assert_eq!(write(&regions, other_key(stag), BASE, 1), Err(Cause::TAGGED_STAG));
    assert_eq!(write(&regions, Stag(0), BASE, 1), Err(Cause::TAGGED_STAG));
    assert_eq!(write(&regions, stag, BASE + LEN, 1), Err(Cause::TAGGED_BOUNDS));
    assert_eq!(write(&regions, stag, u64::MAX, 1), Err(Cause::TAGGED_WRAP));
    assert_eq!(write(&regions, stag, u64::MAX - 9, 10), Err(Cause::TAGGED_WRAP));
    assert_eq!(write(&regions, stag, u64::MAX - 10, 10), Err(Cause::TAGGED_BOUNDS));
    // The highest possible region ends at the highest address.
    let high = regions.register(by.pd, 7, u64::MAX - 16, 16, ALL).expect("it does not wrap");
    assert_eq!(write(&regions, high, u64::MAX - 16, 16).ok(), span(0, 16));
    assert_eq!(write(&regions, high, u64::MAX - 1, 1).ok(), span(15, 1));
    assert_eq!(write(&regions, high, u64::MAX - 1, 2), Err(Cause::TAGGED_WRAP));
    let unwritable = regions.register(by.pd, 7, BASE, LEN, READ_ONLY).expect("it is sound");
    assert_eq!(write(&regions, unwritable, BASE, 1), Err(Cause::TAGGED_STAG));
}

#[test]
fn r6_codes_of_a_read_s_source() {
    let (mut regions, by, stag) = one_region();
    let read =
        |regions: &Regions, stag, addr, len| regions.remote(by, stag, addr, len, Right::Read);
    assert_eq!(read(&regions, other_key(stag), BASE, 1), Err(Cause::INVALID_STAG));
    assert_eq!(read(&regions, stag, BASE - 1, 2), Err(Cause::BOUNDS));
    assert_eq!(read(&regions, stag, BASE, u32::MAX), Err(Cause::BOUNDS));
    assert_eq!(read(&regions, stag, u64::MAX - 1, 2), Err(Cause::TO_WRAP));
    let sink = regions
        .register(by.pd, 7, BASE, LEN, rights(true, true, false, true))
        .expect("it is sound");
    assert_eq!(read(&regions, sink, BASE, 1), Err(Cause::ACCESS));
    let both = regions
        .register(by.pd, 7, BASE, LEN, rights(true, true, true, false))
        .expect("it is sound");
    assert_eq!(regions.remote(by, both, BASE, 8, Right::Atomic), Err(Cause::ACCESS));
}

#[test]
fn d6_r5_no_bytes_need_no_tag() {
    let (regions, by, stag) = one_region();
    for stag in [Stag(0), Stag(1), Stag(u32::MAX), stag] {
        for (addr, right) in [0, BASE, u64::MAX].into_iter().flat_map(|a| RIGHTS.map(|r| (a, r))) {
            assert_eq!(regions.remote(by, stag, addr, 0, right).map(|s| s.len), Ok(0));
            assert_eq!(
                regions.local(by.pd, Sge { stag, addr, len: 0 }, true).map(|s| s.len),
                Ok(0)
            );
        }
    }
}

#[test]
fn a3_an_atomic_s_word_is_aligned() {
    let (regions, by, stag) = one_region();
    let atomic = |addr, len| regions.remote(by, stag, addr, len, Right::Atomic);
    assert_eq!(atomic(BASE + 8, 8).ok(), span(8, 8));
    for off in 1..8 {
        assert_eq!(atomic(BASE + off, 8), Err(Cause::STREAM));
    }
    assert_eq!(atomic(BASE, 4), Err(Cause::STREAM));
    assert_eq!(atomic(BASE + LEN, 8), Err(Cause::BOUNDS));
}

#[test]
fn s2_nothing_is_reached_after_the_end_of_a_tag() {
    let (mut regions, by, stag) = one_region();
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
    let window = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    regions.bind(by, window, stag, BASE, 8, ALL).expect("it may be bound");
    regions.dealloc_window(window).expect("it is there");
    regions.invalidate(by, fast).expect("it is ours");
    regions.deregister(stag).expect("no window is left");
    for stag in [stag, fast, window] {
        for right in RIGHTS {
            assert_eq!(regions.remote(by, stag, BASE, 8, right), Err(invalid(right)));
        }
        let sge = Sge { stag, addr: BASE, len: 8 };
        assert_eq!(regions.local(by.pd, sge, false), Err(Status::LocalProtection));
    }
    assert_eq!(regions.deregister(stag), Err(PostError::Invalid));
    assert_eq!(regions.dealloc_window(window), Err(PostError::Invalid));
}

/// The owner of a window or fast registration knows the tag as allocated, and binding gives it
/// another key. Once, ending it under the first key failed, so peers still reached the memory, the
/// region stayed busy, and the tag was lost.
#[test]
fn s2_the_end_of_a_tag_is_that_of_all_its_keys() {
    // With room for the region and two more, a lost tag shows at once.
    let mut regions = Regions::new(Rng::seeded(1), 1, 3);
    let pd = regions.alloc_pd().expect("there is room");
    let by = stream(pd, 1);
    for round in 0..100 {
        let region = regions.register(pd, 7, BASE, LEN, ALL).expect("no tag was lost");
        for kind in [WindowKind::Domain, WindowKind::OneQp] {
            let window = regions.alloc_window(pd, kind).expect("no tag was lost");
            let bound = other_key(window);
            regions.bind(by, bound, region, BASE, 8, ALL).expect("it may be bound");
            assert_eq!(regions.deregister(bound), Err(PostError::Invalid), "a window is no region");
            assert_eq!(regions.dealloc_window(if round % 2 == 0 { window } else { bound }), Ok(()));
            for right in RIGHTS {
                assert_eq!(regions.remote(by, bound, BASE, 8, right), Err(invalid(right)));
            }
        }
        let fast = regions.alloc_fast(pd).expect("no tag was lost");
        let valid = other_key(fast);
        regions.fast_register(by, valid, extent(BASE, 8), ALL).expect("it is free");
        assert_eq!(regions.dealloc_window(valid), Err(PostError::Invalid), "it is no window");
        assert_eq!(regions.deregister(fast), Ok(()));
        for right in RIGHTS {
            assert_eq!(regions.remote(by, valid, BASE, 8, right), Err(invalid(right)));
        }
        assert_eq!(regions.deregister(region), Ok(()), "nothing is bound to it");
    }
    assert_eq!(regions.dealloc_pd(pd), Ok(()), "nothing is in it");
}

#[test]
fn s2_a_region_ends_with_its_windows_if_it_must() {
    let (mut regions, by, region) = one_region();
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    let window = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    let other = regions.register(by.pd, 7, BASE, LEN, ALL).expect("there is room");
    let untouched = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    regions.bind(by, untouched, other, BASE, 8, ALL).expect("it may be bound");
    for parent in [region, fast] {
        if parent == fast {
            regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
        }
        regions.bind(by, window, parent, BASE, 8, ALL).expect("it may be bound");
        assert_eq!(regions.deregister(parent), Err(PostError::Busy));
        assert_eq!(regions.force_deregister(parent), Ok(()));
        assert_eq!(regions.force_deregister(parent), Err(PostError::Invalid));
        for right in RIGHTS {
            assert_eq!(regions.remote(by, window, BASE, 8, right), Err(invalid(right)));
            assert_eq!(regions.remote(by, parent, BASE, 8, right), Err(invalid(right)));
        }
    }
    assert!(regions.remote(by, untouched, BASE, 8, Right::Write).is_ok());
    assert_eq!(regions.bind(by, window, other, BASE, 8, ALL), Ok(()), "the window is there yet");
}

#[test]
fn s2_r13_the_peer_invalidates_what_its_stream_alone_has() {
    let (mut regions, by, region) = one_region();
    let other = TagUser { qp: Qp(2), ..by };
    let other_user = TagUser { pd: regions.alloc_pd().expect("there is room"), ..by };
    let shared = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    regions.bind(by, shared, region, BASE, 8, ALL).expect("it may be bound");
    let own = regions.alloc_window(by.pd, WindowKind::OneQp).expect("there is room");
    regions.bind(by, own, region, BASE, 8, ALL).expect("it may be bound");
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
    let private = regions.alloc_fast(by.pd).expect("there is room");
    regions
        .fast_register(by, private, extent(BASE, 8), rights(true, false, false, false))
        .expect("it is free");

    // Regions, windows of the whole domain, private tags, and tags that do not exist.
    for stag in [region, shared, private, Stag(region.0 ^ 0x100), other_key(fast), Stag(0)] {
        assert_eq!(regions.remote_invalidate(by, stag), Err(Cause::CANNOT_INVALIDATE));
    }
    for stag in [own, fast] {
        for by in [other, other_user] {
            assert_eq!(regions.remote_invalidate(by, stag), Err(Cause::CANNOT_INVALIDATE));
        }
        assert_eq!(regions.remote_invalidate(by, stag), Ok(()));
        assert_eq!(regions.remote(by, stag, BASE, 1, Right::Write), Err(Cause::TAGGED_STAG));
        assert_eq!(regions.remote_invalidate(by, stag), Err(Cause::CANNOT_INVALIDATE));
    }
    assert!(regions.remote(by, region, BASE, 1, Right::Write).is_ok());
    assert!(regions.remote(other, shared, BASE, 1, Right::Write).is_ok());
    assert!(regions.local(by.pd, Sge { stag: private, addr: BASE, len: 8 }, true).is_ok());
}

#[test]
fn a_fast_registration_is_made_again_and_again_with_new_keys() {
    let (mut regions, by, region) = one_region();
    let mut stag = regions.alloc_fast(by.pd).expect("there is room");
    assert_eq!(regions.remote(by, stag, 0, 1, Right::Read), Err(Cause::INVALID_STAG));
    for round in 0..3 {
        let old = stag;
        stag = Stag(stag.0 & !0xff | (stag.0 + 1) & 0xff);
        let part = Extent { offset: 16 * round, ..extent(16 * round, 16) };
        assert_eq!(regions.fast_register(by, stag, part, ALL), Ok(()));
        assert_eq!(
            regions.fast_register(by, stag, part, ALL),
            Err(Status::Bind),
            "it is valid already"
        );
        assert_eq!(
            regions.remote(by, stag, 16 * round + 1, 4, Right::Read).ok(),
            span(16 * round + 1, 4)
        );
        assert_eq!(
            regions.remote(by, old, 16 * round + 1, 4, Right::Read),
            Err(Cause::INVALID_STAG)
        );
        assert_eq!(regions.invalidate(by, old), Err(Status::Bind));
        assert_eq!(regions.invalidate(TagUser { qp: Qp(2), ..by }, stag), Err(Status::Bind));
        assert_eq!(regions.invalidate(by, stag), Ok(()));
    }
    assert_eq!(
        regions.fast_register(by, region, extent(0, 1), ALL),
        Err(Status::Bind),
        "a region is none"
    );
    assert_eq!(regions.invalidate(by, region), Err(Status::Bind));
    let other_user = TagUser { pd: regions.alloc_pd().expect("there is room"), ..by };
    assert_eq!(regions.fast_register(other_user, stag, extent(0, 1), ALL), Err(Status::Bind));
    assert_eq!(regions.deregister(stag), Ok(()));
}

#[test]
fn a_window_shows_part_of_a_region() {
    let (mut regions, by, region) = one_region();
    let window = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    let writes = rights(false, true, false, false);
    assert_eq!(regions.bind(by, window, region, BASE + 16, 32, writes), Ok(()));
    assert_eq!(regions.remote(by, window, BASE + 16, 32, Right::Write).ok(), span(16, 32));
    assert_eq!(regions.remote(by, window, BASE + 15, 2, Right::Write), Err(Cause::TAGGED_BOUNDS));
    assert_eq!(regions.remote(by, window, BASE + 47, 2, Right::Write), Err(Cause::TAGGED_BOUNDS));
    assert_eq!(regions.remote(by, window, BASE + 16, 1, Right::Read), Err(Cause::ACCESS));
    let sge = Sge { stag: window, addr: BASE + 16, len: 1 };
    assert_eq!(
        regions.local(by.pd, sge, false),
        Err(Status::LocalProtection),
        "windows are for peers"
    );

    // The window is bound again under another key, and then unbound.
    let again = other_key(window);
    assert_eq!(regions.bind(by, again, region, BASE, 8, READ_ONLY), Ok(()));
    assert_eq!(regions.remote(by, window, BASE + 16, 1, Right::Write), Err(Cause::TAGGED_STAG));
    assert_eq!(regions.remote(by, again, BASE, 8, Right::Read).ok(), span(0, 8));
    assert_eq!(regions.deregister(region), Err(PostError::Busy));
    assert_eq!(regions.bind(by, again, region, 0, 0, READ_ONLY), Ok(()));
    assert_eq!(regions.remote(by, again, BASE, 8, Right::Read), Err(Cause::INVALID_STAG));
    assert_eq!(regions.deregister(region), Ok(()));
    assert_eq!(
        regions.bind(by, again, region, BASE, 8, READ_ONLY),
        Err(Status::Bind),
        "no such region"
    );
}

#[test]
fn a_window_of_one_queue_pair_is_bound_once() {
    let (mut regions, by, region) = one_region();
    let other = TagUser { qp: Qp(2), ..by };
    let window = regions.alloc_window(by.pd, WindowKind::OneQp).expect("there is room");
    assert_eq!(regions.bind(by, window, region, BASE, 8, ALL), Ok(()));
    assert_eq!(regions.bind(by, window, region, BASE, 8, ALL), Err(Status::Bind));
    assert_eq!(regions.bind(other, window, region, BASE, 0, ALL), Err(Status::Bind));
    assert_eq!(regions.invalidate(other, window), Err(Status::Bind));
    assert_eq!(regions.invalidate(by, window), Ok(()));
    assert_eq!(
        regions.bind(other, other_key(window), region, BASE, 8, ALL),
        Ok(()),
        "free for all"
    );
    assert_eq!(regions.bind(other, window, region, BASE, 0, ALL), Ok(()));
    let shared = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    assert_eq!(
        regions.invalidate(by, shared),
        Err(Status::Bind),
        "such a window is bound anew instead"
    );
}

#[test]
fn what_a_window_may_not_be_bound_to() {
    let (mut regions, by, region) = one_region();
    let window = regions.alloc_window(by.pd, WindowKind::OneQp).expect("there is room");
    let bind = |regions: &mut Regions, by, region, addr, len| {
        regions.bind(by, window, region, addr, len, ALL)
    };
    let closed =
        regions.register(by.pd, 7, BASE, LEN, Access { bind: false, ..ALL }).expect("it is sound");
    let constant = regions
        .register(by.pd, 7, BASE, LEN, Access { bind: true, ..READ_ONLY })
        .expect("it is sound");
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    for (region, addr, len) in [
        (closed, BASE, 8),
        (constant, BASE, 8),
        (fast, BASE, 8),
        (window, BASE, 8),
        (other_key(region), BASE, 8),
        (region, BASE - 1, 8),
        (region, BASE, LEN + 1),
        (region, BASE + LEN, 1),
        (region, u64::MAX, u64::MAX),
    ] {
        assert_eq!(bind(&mut regions, by, region, addr, len), Err(Status::Bind));
    }
    let other_user = TagUser { pd: regions.alloc_pd().expect("there is room"), ..by };
    assert_eq!(bind(&mut regions, other_user, region, BASE, 8), Err(Status::Bind));
    // Reading needs no local write. Windows on a fast registration keep it valid.
    assert_eq!(regions.bind(by, window, constant, BASE, 8, READ_ONLY), Ok(()));
    assert_eq!(regions.invalidate(by, window), Ok(()));
    regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
    assert_eq!(regions.bind(by, window, fast, BASE, 8, ALL), Ok(()));
    assert_eq!(regions.invalidate(by, fast), Err(Status::Bind));
    assert_eq!(regions.remote_invalidate(by, fast), Err(Cause::CANNOT_INVALIDATE));
    assert_eq!(regions.deregister(fast), Err(PostError::Busy));
    assert_eq!(regions.remote_invalidate(by, window), Ok(()));
    assert_eq!(regions.deregister(fast), Ok(()));
}

#[test]
fn rights_and_ranges_are_sound() {
    let (mut regions, by, _) = one_region();
    for wrong in [rights(false, true, false, false), rights(false, false, false, true)] {
        assert_eq!(regions.register(by.pd, 7, BASE, LEN, wrong), Err(PostError::Rights));
    }
    assert_eq!(regions.register(by.pd, 7, u64::MAX, 1, ALL), Err(PostError::Rights));
    assert_eq!(regions.register(by.pd, 7, 1, u64::MAX, ALL), Err(PostError::Rights));
    assert_eq!(regions.register(Pd(99), 7, BASE, LEN, ALL), Err(PostError::Invalid));
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    let offset_wraps = Extent { offset: u64::MAX, ..extent(0, 1) };
    for part in [extent(u64::MAX, 1), extent(1, u64::MAX), offset_wraps] {
        assert_eq!(regions.fast_register(by, fast, part, ALL), Err(Status::Bind));
    }
    assert_eq!(
        regions.fast_register(by, fast, extent(0, 1), rights(false, true, false, false)),
        Err(Status::Bind)
    );
    // Nothing fits into an empty region.
    let none = regions.register(by.pd, 7, BASE, 0, ALL).expect("it is sound");
    assert_eq!(regions.remote(by, none, BASE, 1, Right::Read), Err(Cause::BOUNDS));
}

#[test]
fn a_domain_in_use_is_not_deallocated() {
    let (mut regions, by, region) = one_region();
    assert_eq!(regions.dealloc_pd(by.pd), Err(PostError::Busy));
    let window = regions.alloc_window(by.pd, WindowKind::Domain).expect("there is room");
    let fast = regions.alloc_fast(by.pd).expect("there is room");
    regions.add_pd_user(by.pd).expect("it is there");
    regions.deregister(region).expect("it is there");
    regions.deregister(fast).expect("it is there");
    assert_eq!(
        regions.dealloc_pd(by.pd),
        Err(PostError::Busy),
        "a window and a queue pair are left"
    );
    regions.dealloc_window(window).expect("it is there");
    assert_eq!(regions.dealloc_pd(by.pd), Err(PostError::Busy), "a queue pair is left");
    regions.remove_pd_user(by.pd);
    assert_eq!(regions.dealloc_pd(by.pd), Ok(()));
    assert_eq!(regions.dealloc_pd(by.pd), Err(PostError::Invalid));
    assert_eq!(regions.add_pd_user(by.pd), Err(PostError::Invalid));
    assert_ne!(regions.alloc_pd(), Ok(by.pd), "a late call hits no successor");
}

#[test]
fn tags_of_one_queue_pair_end_with_it() {
    let (mut regions, by, region) = one_region();
    let other = TagUser { qp: Qp(2), ..by };
    let mut made = Vec::new();
    for by in [by, other] {
        let window = regions.alloc_window(by.pd, WindowKind::OneQp).expect("there is room");
        regions.bind(by, window, region, BASE, 8, ALL).expect("it may be bound");
        let fast = regions.alloc_fast(by.pd).expect("there is room");
        regions.fast_register(by, fast, extent(BASE, 8), ALL).expect("it is free");
        made.extend([(by, window), (by, fast)]);
    }
    regions.release_qp(by.qp);
    for (owner, stag) in made {
        let reached = regions.remote(owner, stag, BASE, 8, Right::Write);
        assert_eq!(reached.is_ok(), owner == other);
    }
    regions.release_qp(other.qp);
    assert_eq!(regions.deregister(region), Ok(()), "no window is bound any more");
}

#[test]
fn tags_are_sparse_and_none_follows_from_another() {
    let tags = |seed| {
        let mut regions = Regions::new(Rng::seeded(seed), 1 << 16, 1 << 20);
        let pd = regions.alloc_pd().expect("there is room");
        let mut draw = || regions.register(pd, 0, 0, 1, ALL).expect("there is room").0;
        (0..1_000).map(|_| draw()).collect::<Vec<_>>()
    };
    let (these, those) = (tags(1), tags(2));
    let indices = these.iter().map(|t| t >> 8).collect::<BTreeSet<_>>();
    assert!(indices.len() == 1_000 && !indices.contains(&0));
    // Tags spread over the whole range, without order, differ for another seed, and differ in their
    // keys.
    for sixteenth in 0..16 {
        assert!(these.iter().filter(|&t| t >> 28 == sixteenth).count() > 20);
    }
    let rising = these.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((400..600).contains(&rising));
    assert!(these.iter().filter(|t| those.contains(t)).count() < 3);
    assert!(these.iter().map(|t| t & 0xff).collect::<BTreeSet<_>>().len() > 200);
}
