//! Tests of nodes: golden bytes, searches, changes of entries, halves.

use alloc::vec;

use proptest::prelude::*;
use sprat_proto::Rng;

use super::*;

fn point<'a>(key: &'a [u8], object: &'a [u8]) -> Point<'a> {
    Point { key, object }
}

fn leaf(keys: &[&'static [u8]]) -> Vec<u8> {
    let entries = keys.iter().map(|key| Entry::leaf(point(key, b"o")));
    emit(0, point(b"b", b""), Some(point(b"x", b"")), entries)
}

#[test]
fn a_node_has_its_golden_bytes_and_comes_back() {
    let bytes = leaf(&[b"c", b"dd"]);
    let golden = b"\0\x01\0\x02\0\0\0\x1a\0\0\0\x22\0\x01\0\0\0\0b\0\x01\0\0\0\0x\
        \0\x01\0\0\0\x01co\0\x02\0\0\0\x01ddo";
    assert_eq!(bytes, golden);
    let node = Node::parse(&bytes).unwrap();
    assert_eq!((node.len(), node.entry(1).point), (2, point(b"dd", b"o")));
    assert!(node.contains(point(b"b", b"")) && !node.contains(point(b"x", b"")));
    assert!(node.has(point(b"c", b"o")) && !node.has(point(b"c", b"")));
    for len in 0..bytes.len() {
        assert!(Node::parse(&bytes[..len]).is_none(), "{len}");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x81;
        // A node with other bytes is malformed, or another node.
        if let Some(node) = Node::parse(&bytes) {
            assert!(node.entries().count() <= 2 && node.before(point(b"m", b"")) <= 2);
        }
    }
}

#[test]
fn points_have_the_order_of_their_keys() {
    let mut rng = Rng::seeded(1);
    let mut key = || {
        let len = rng.below(12);
        (0..len).map(|_| rng.below(2) as u8 * 255).collect::<Vec<u8>>()
    };
    for _ in 0..10_000 {
        let (a, b) = ((key(), key()), (key(), key()));
        assert_eq!(point(&a.0, &a.1).cmp(&point(&b.0, &b.1)), a.cmp(&b));
        assert_eq!(point(&a.0, &a.1).cmp(&point(&a.0, &b.1)), a.1.cmp(&b.1));
    }
}

#[test]
fn points_are_found_behind_bytes_that_all_keys_begin_with() {
    let mut rng = Rng::seeded(2);
    for _ in 0..2000 {
        let prefix = vec![b'a'; rng.below(20) as usize];
        let mut key = || {
            let (mut key, len) = (prefix.clone(), rng.below(4));
            key.extend((0..len).map(|_| rng.below(2) as u8 * 255));
            key
        };
        let mut keys: Vec<Vec<u8>> = (0..8).map(|_| key()).collect();
        keys.sort();
        let (start, end) = (point(&keys[0], b""), point(&keys[7], b"z"));
        let entries = keys.iter().map(|key| Entry::leaf(point(key, b"o")));
        let bytes = emit(0, start, Some(end), entries);
        let node = Node::parse(&bytes).unwrap();
        // Points before and behind the node have other first bytes.
        let outside = [vec![], vec![b'a'; 3], vec![b'a'; 30], b"Z".to_vec(), b"b".to_vec()];
        for key in keys.iter().chain(&outside) {
            for object in [&b""[..], b"o", b"p"] {
                let wanted = point(key, object);
                let expected = node.entries().filter(|it| it.point < wanted).count();
                assert_eq!(node.before(wanted), expected, "{keys:?}: {wanted:?}");
            }
        }
    }
}

#[test]
fn entries_come_and_go_in_their_order() {
    let bytes = leaf(&[b"c", b"e"]);
    let node = Node::parse(&bytes).unwrap();
    let with = node.with(Entry::leaf(point(b"d", b"o"))).unwrap();
    assert_eq!(with, leaf(&[b"c", b"d", b"e"]));
    let again = Node::parse(&with).unwrap().with(Entry::leaf(point(b"d", b"o")));
    assert_eq!(again.as_ref(), Some(&with));
    assert_eq!(Node::parse(&with).unwrap().without(point(b"d", b"o")), Some(bytes));
    assert_eq!(Node::parse(&with).unwrap().without(point(b"d", b"")).as_ref(), Some(&with));
}

#[test]
fn a_node_above_the_leaves_gets_and_loses_children() {
    let of = |children: &[(&'static [u8], u64)]| {
        let entry = |&(key, child)| Entry { point: point(key, b"o"), child };
        emit(1, Point::FIRST, None, children.iter().map(entry))
    };
    let bytes = of(&[(b"", 5), (b"t", 7)]);
    let node = Node::parse(&bytes).unwrap();
    let with = node.with(Entry { point: point(b"m", b"o"), child: 6 }).unwrap();
    assert_eq!(with, of(&[(b"", 5), (b"m", 6), (b"t", 7)]));
    let replaced = Node::parse(&with).unwrap().with(Entry { point: point(b"t", b"o"), child: 8 });
    assert_eq!(replaced, Some(of(&[(b"", 5), (b"m", 6), (b"t", 8)])));
    assert_eq!(Node::parse(&with).unwrap().without(point(b"m", b"o")), Some(bytes));
}

/// A master changes a leaf whose entries it has not checked.
#[test]
fn a_malformed_node_stays_without_effect() {
    let bytes = leaf(&[b"c", b"e", b"g"]);
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x81;
        for len in [at, bytes.len()] {
            if let Some(node) = Node::known(&bytes[..len]) {
                let more = node.with(Entry::leaf(point(b"f", b"o")));
                assert!(more.is_none_or(|more| more.len() <= bytes.len() + 20));
            }
        }
    }
}

#[test]
fn a_point_leads_to_its_child() {
    let entries = [(&b""[..], 5), (b"m", 6), (b"t", 7)]
        .map(|(key, child)| Entry { point: point(key, b""), child });
    let bytes = emit(1, Point::FIRST, None, entries.into_iter());
    let node = Node::parse(&bytes).unwrap();
    let child = |key| node.entry(node.child_of(point(key, b"x"))).child;
    assert_eq!([&b""[..], b"a", b"m", b"s", b"z"].map(child), [5, 5, 6, 6, 7]);
    assert_eq!(node.entry(node.child_of(point(b"m", b""))).child, 6);
    assert!(Node::parse(&emit(1, Point::FIRST, None, [].into_iter())).is_none());
}

#[test]
fn the_points_before_a_bound_lead_to_their_child() {
    let entries = [(&b"b"[..], 5), (b"m", 6), (b"t", 7)]
        .map(|(key, child)| Entry { point: point(key, b""), child });
    let bytes = emit(1, point(b"b", b""), Some(point(b"x", b"")), entries.into_iter());
    let node = Node::parse(&bytes).unwrap();
    let child = |key, object| {
        let goal = Goal::Before(Some(point(key, object)));
        goal.is_in(&node).then(|| node.entry(goal.child_in(&node)).child)
    };
    assert_eq!([child(b"c", b""), child(b"m", b""), child(b"m", b"o")], [5, 5, 6].map(Some));
    assert_eq!([child(b"t", b""), child(b"u", b""), child(b"x", b"")], [6, 7, 7].map(Some));
    // The node has no point before its start, and lacks some before a bound behind its end.
    assert_eq!([child(b"b", b""), child(b"x", b"o"), child(b"a", b"")], [None; 3]);
    assert!(!Goal::Before(None).is_in(&node));
    let last = emit(1, point(b"b", b""), None, node.entries());
    let last = Node::parse(&last).unwrap();
    assert!(Goal::Before(None).is_in(&last) && Goal::Before(None).child_in(&last) == 2);
}

proptest! {
    /// A separator is behind the first point, at most the second one, and the shortest begin of
    /// that which is.
    #[test]
    fn a_separator_is_short(
        mut keys in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..6), 4),
        is_of_one_key: bool,
    ) {
        if is_of_one_key {
            keys[2] = keys[0].clone();
        }
        let (a, b) = (point(&keys[0], &keys[1]), point(&keys[2], &keys[3]));
        let (first, second) = (a.min(b), a.max(b));
        if first < second {
            let separator = first.separator(second);
            prop_assert!(first < separator && separator <= second);
            let shorter = match separator {
                Point { key, object: [begin @ .., _] } => point(key, begin),
                Point { key: [begin @ .., _], .. } => point(begin, b""),
                _ => point(b"", b""),
            };
            prop_assert!(shorter <= first);
        }
    }
}

#[test]
fn halves_have_about_as_many_bytes() {
    let bytes = leaf(&[b"cccccccccccccccccccccc", b"d", b"e", b"f"]);
    let node = Node::parse(&bytes).unwrap();
    assert_eq!(node.middle(point(b"dd", b"")), 1);
    assert_eq!(Node::parse(&leaf(&[b"c", b"d"])).unwrap().middle(point(b"dd", b"")), 1);
    // New points behind all others leave full nodes.
    let last = emit(0, Point::FIRST, None, node.entries());
    let last = Node::parse(&last).unwrap();
    assert_eq!((last.middle(point(b"g", b"")), last.middle(point(b"d", b""))), (3, 1));
    let (first, second) = (node.part(0..2, node.start, None), node.part(2..4, node.start, None));
    assert_eq!(Node::parse(&first).unwrap().len() + Node::parse(&second).unwrap().len(), 4);
}
