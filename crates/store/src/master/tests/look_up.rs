//! Tests of look-ups at the master: the objects that an answer has, and when it goes out.

use super::*;
use crate::btree::catalog_key;
use crate::btree::leaf::{Answer, Query};
use crate::btree::node::{Entry, Point, emit};
use crate::btree::range::{Order, Span};
use crate::message::transaction::{Change, Part, Participant, request};
use crate::objects::tablet::Tablet;
use crate::ops::{ClientOperation as _, LookUp, Reply};
use crate::types::{KeyHash, Lifetime};

/// Leaf, catalog and objects are in one table here.
const LEAF: &[u8] = b"leaf";

fn point<'a>(key: &'a [u8], object: &'a [u8]) -> Point<'a> {
    Point { key, object }
}

fn look_up() -> Vec<u8> {
    let span = Span { from: Point::FIRST, to: None };
    let query = Query { table: TABLE, order: Order::Ascending, most: 10, copy: 6, span };
    LookUp { target: TARGET, key: LEAF, query: &query.emit() }.emit()
}

/// Returns the version of the leaf, that of the catalog, and each object of an answer. `None`: the
/// client has to ask another way.
type Answered = Option<(u64, (u8, Version), Vec<Option<(Version, Vec<u8>)>>)>;

fn answered(reply: &[u8]) -> Result<Answered, Status> {
    let parsed = LookUp::completion((), reply).map_err(|refusal| refusal.status)?;
    let Reply::Object { version, value } = parsed else { panic!("{parsed:?}") };
    let answer = Answer::parse(&reply[value..]).expect("an intact answer");
    Ok(answer.map(|answer| {
        let owned = |object: Option<(Version, &[u8])>| object.map(|(v, it)| (v, it.to_vec()));
        let objects = answer.entries.into_iter().map(|(_, object)| owned(object));
        (version.0, answer.catalog, objects.collect())
    }))
}

/// Writes a leaf with entries of the objects a, b and c, and the copy 1 of the catalog.
fn fill(rig: &mut Rig) {
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let entries = keys.iter().map(|key| Entry::leaf(point(key, key)));
    let leaf = emit(0, Point::FIRST, None, entries);
    assert_eq!(rig.write(once(1, 2, 1), LEAF, &leaf), Ok(Version(1)));
    assert_eq!(rig.write(once(1, 3, 1), &catalog_key(6), b"catalog"), Ok(Version(2)));
    assert_eq!(rig.write(once(1, 4, 1), b"a", b"first"), Ok(Version(3)));
    assert_eq!(rig.write(once(1, 5, 1), b"b", b"second"), Ok(Version(4)));
}

#[test]
fn an_answer_has_the_objects_that_can_be_read() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    fill(&mut rig);
    let first = Some((Version(3), b"first".to_vec()));
    let second = Some((Version(4), b"second".to_vec()));
    let catalog = (6, Version(2));
    let all = vec![first, second.clone(), None];
    assert_eq!(answered(&rig.ask(look_up())), Ok(Some((1, catalog, all))));
    assert_eq!(rig.master.counter("look_ups"), 1);

    // An object that a transaction changes is left out, and one that has expired.
    let elsewhere = Participant { table: TableId(70), hash: KeyHash(3), rpc: 90 };
    let change = Change::Write(b"new", None);
    let part = Part { table: TABLE, rules: RejectRules::default(), rpc: 6, key: b"a", change };
    let prepare = |part: Part<'_>| {
        let parts = [part].into_iter();
        request(Opcode::Prepare, (CLUSTER, LeaseId(1), 1), [elsewhere].into_iter(), parts)
    };
    assert_eq!(rig.status(prepare(part)), Some(Status::Ok));
    let lifetime = Some(Lifetime(5));
    let expiring =
        Write { target: TARGET, once: once(1, 7, 1), key: b"c", value: b"third", lifetime }.emit();
    let third = Some((mutation_reply(&rig.ask(expiring)).unwrap(), b"third".to_vec()));
    let some = vec![None, second.clone(), third];
    assert_eq!(answered(&rig.ask(look_up())), Ok(Some((1, catalog, some))));
    rig.pass(6 * MS);
    let rest = vec![None, second, None];
    assert_eq!(answered(&rig.ask(look_up())), Ok(Some((1, catalog, rest))));

    // A leaf that is about to change has to be asked again.
    assert_eq!(rig.status(prepare(Part { key: LEAF, rpc: 8, ..part })), Some(Status::Ok));
    assert_eq!(rig.status(look_up()), Some(Status::Locked));
}

#[test]
fn without_a_catalog_or_a_leaf_there_is_no_answer() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    assert_eq!(answered(&rig.ask(look_up())), Err(Status::ObjectDoesntExist));
    fill(&mut rig);
    let remove = |rpc, key| Remove { target: TARGET, once: once(1, rpc, 1), key }.emit();
    assert!(mutation_reply(&rig.ask(remove(6, &catalog_key(6)))).is_ok());
    assert_eq!(answered(&rig.ask(look_up())), Ok(None));
    assert_eq!(
        rig.status(LookUp { target: TARGET, key: LEAF, query: b"?" }.emit()),
        Some(Status::BadFormat)
    );
    let whole = Tablet { table: TABLE, first: 0, last: u64::MAX };
    rig.master.memory.tablets.drop_tablet(whole);
    assert_eq!(rig.status(look_up()), Some(Status::UnknownTablet));
}

/// The answer tells of the leaf, of the catalog and of the objects, all of which may yet be lost.
#[test]
fn an_answer_waits_until_all_that_it_tells_is_durable() {
    let mut rig = Rig::serving(Config {
        replicas: 1,
        log_bytes: 1 << 20,
        segment_bytes: 1 << 16,
        ..Config::default()
    });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let entries = [Entry::leaf(point(b"a", b"a"))].into_iter();
    let leaf = emit(0, Point::FIRST, None, entries);
    let writes: [(&[u8], &[u8]); 3] =
        [(LEAF, &leaf), (&catalog_key(6), b"catalog"), (b"a", b"value")];
    for last in 0..writes.len() {
        // All are durable but one, which is written last.
        for place in (0..writes.len()).filter(|&place| place != last).chain([last]) {
            let (key, value) = writes[place];
            let rpc = (last * 10 + place) as u64 + 1;
            let write = Write { target: TARGET, once: once(1, rpc, 0), key, value, lifetime: None };
            let before = rig.master.memory().log.tail();
            rig.send(&write.emit()).unwrap_err();
            rig.master.durable(if place == last { before } else { rig.master.memory().log.tail() });
        }
        let waiting = rig.send(&look_up()).unwrap_err();
        rig.pump();
        assert!(!rig.replies.contains_key(&waiting), "{last}");
        rig.master.durable(rig.master.memory().log.tail());
        rig.pump();
        assert!(matches!(answered(&rig.replies[&waiting]), Ok(Some(_))), "{last}");
        assert!(rig.send(&look_up()).is_ok(), "all is durable");
    }
}
