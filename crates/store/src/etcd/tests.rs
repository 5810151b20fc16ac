//! Scripts of a candidate with an etcd that the test plays, in virtual time. The simulator plays a
//! whole etcd.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::node::Written;
use sprat_proto::node::machine::Election;
use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};

use super::keys::Term;
use super::*;

struct Rig {
    state: EtcdState,
    now: Instant,
    keys: Keys,
}

fn pair(key: Vec<u8>, value: &[u8], modified: i64) -> Vec<Pair> {
    vec![Pair { key, value: value.to_vec(), modified }]
}

impl Rig {
    fn new() -> Self {
        let keys = Keys::new("t").expect("a name");
        let now = Instant::from_ns(5_000 * MS);
        let state = EtcdState::new(now, keys.clone(), "tcp:me".into(), Rng::seeded(1));
        Self { state, now, keys }
    }

    /// Returns the only request that is due.
    fn sent(&mut self) -> (u64, Txn) {
        let (id, request) = self.state.output(self.now).expect("a request");
        let Request::Txn(txn) = request else { panic!("{request:?}") };
        (id, txn)
    }

    fn reply(&mut self, id: u64, succeeded: bool, revision: i64, read: Vec<Vec<Pair>>) {
        self.state.response(self.now, id, Ok(Reply { succeeded, revision, read }));
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.after(ms * MS);
        self.state.tick(self.now);
    }

    fn term(&self, term: u64, locators: &str, modified: i64) -> Vec<Pair> {
        let value = Term { term, nonce: 9, locators: locators.into() }.emit();
        pair(self.keys.term(), &value, modified)
    }

    /// Makes the candidate lead a cluster that has no state, in term 1 since revision 1.
    fn leading() -> Self {
        let mut rig = Self::new();
        let (id, _) = rig.sent();
        rig.reply(id, true, 0, vec![vec![], vec![]]);
        let (id, _) = rig.sent();
        rig.reply(id, true, 1, vec![]);
        for _ in 0..3 {
            let (id, _) = rig.sent();
            rig.reply(id, true, 2, vec![vec![]]);
        }
        let until = rig.now.after(VALID_NS);
        let elected = Election::Elected { term: 1, until, pairs: vec![] };
        assert!(matches!(rig.state.event(), Some(Written::Election(e)) if e == elected));
        rig
    }

    fn event(&mut self) -> Option<String> {
        Some(match self.state.event()? {
            Written::Durable(seq) => seq.to_string(),
            Written::Refused { reason, durable } => {
                alloc::format!("refused {reason} {}", durable.len())
            }
            Written::Failed(why) => why,
            Written::Election(Election::Standby { leader }) => alloc::format!("standby {leader}"),
            Written::Election(other) => alloc::format!("{other:?}"),
        })
    }
}

fn put(txn: &Txn, key: &[u8]) -> Option<Vec<u8>> {
    txn.then.iter().find_map(|op| match op {
        Op::Put { key: of, value } if of == key => Some(value.clone()),
        _ => None,
    })
}

#[test]
fn the_values_of_keys() {
    let keys = Keys::new("lab").expect("a name");
    assert_eq!(keys.term(), b"/sprat/lab/term");
    assert_eq!(keys.state(b"c"), b"/sprat/lab/state/c");
    assert_eq!(keys.piece(258), b"/sprat/lab/batch/\0\0\x01\x02");
    let term = Term { term: 3, nonce: 0x0102, locators: "m:b".into() };
    let bytes = b"\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x01\x02m:b";
    assert_eq!(term.emit(), bytes);
    assert_eq!(Term::parse(bytes), Ok(term));
    for wrong in [&b""[..], &bytes[..17], b"\0\x02rest", &[0xff; 30]] {
        assert!(Term::parse(wrong).is_err(), "{wrong:?}");
    }
    assert!(Keys::new("").is_none() && Keys::new("a/b").is_none());
    assert!(Keys::new(&"x".repeat(MAX_CLUSTER)).is_some());
    assert!(Keys::new(&"x".repeat(MAX_CLUSTER + 1)).is_none());
}

/// A standby stands when it has seen the same beat for a second, and proves that beat.
#[test]
fn a_standby_takes_over_a_silent_leader() {
    let mut rig = Rig::new();
    let keys = rig.keys.clone();
    let beat = |at| pair(keys.beat(), b"x", at);
    let term = rig.term(4, "tcp:a", 10);
    let (id, watch) = rig.sent();
    assert!(watch.compares.is_empty() && watch.then.len() == 2);
    rig.reply(id, true, 20, vec![term.clone(), beat(20)]);
    assert_eq!(rig.event().as_deref(), Some("standby tcp:a"));
    for (ms, at) in [(200, 20), (200, 30), (200, 30), (200, 30), (200, 30), (200, 30)] {
        rig.pass(ms);
        let (id, watch) = rig.sent();
        assert!(watch.compares.is_empty());
        rig.reply(id, true, 30, vec![term.clone(), beat(at)]);
    }
    // 800 ms were silent. At the end of the second there is no other look: it stands.
    rig.pass(199);
    assert_eq!(rig.state.output(rig.now), None);
    rig.pass(1);
    let (id, stand) = rig.sent();
    let modified = |key, at| Compare { key, is: Is::Modified(at) };
    let compares = [modified(rig.keys.term(), 10), modified(rig.keys.beat(), 30)];
    assert_eq!(stand.compares, compares);
    let value = put(&stand, &rig.keys.term()).expect("the term");
    assert_eq!(Term::parse(&value).map(|t| (t.term, t.locators)), Ok((5, "tcp:me".into())));
    assert_eq!(put(&stand, &rig.keys.seq()), Some(vec![0; 8]));
    // Another one was faster.
    let other = rig.term(5, "tcp:b", 40);
    rig.reply(id, false, 40, vec![other, beat(40)]);
    assert_eq!(rig.event().as_deref(), Some("standby tcp:b"));
    assert_eq!(rig.event(), None);
}

/// The reply to the attempt is lost. The candidate recognizes its own term, and leads from the next
/// good beat on.
#[test]
fn an_attempt_whose_reply_is_lost_counts() {
    let mut rig = Rig::new();
    let (id, _) = rig.sent();
    rig.reply(id, true, 0, vec![vec![], vec![]]);
    let (_, stand) = rig.sent();
    let value = put(&stand, &rig.keys.term()).expect("the term");
    rig.pass(TRY_NS / MS);
    assert!(rig.event().is_some_and(|event| event.contains("Unsure")));
    rig.pass(50);
    let (id, _) = rig.sent();
    let (term, beat) = (pair(rig.keys.term(), &value, 1), pair(rig.keys.beat(), b"x", 1));
    rig.reply(id, true, 1, vec![term, beat]);
    let (beat, txn) = rig.sent();
    assert_eq!(txn.compares, [rig.keys.in_term(1)]);
    let sent = rig.now;
    for _ in 0..3 {
        let (id, _) = rig.sent();
        rig.reply(id, true, 2, vec![vec![]]);
    }
    assert_eq!(rig.event(), None, "no beat has proved so far for how long it leads");
    rig.pass(30);
    rig.reply(beat, true, 3, vec![]);
    let until = sent.after(VALID_NS);
    let elected = Election::Elected { term: 1, until, pairs: vec![] };
    assert!(matches!(rig.state.event(), Some(Written::Election(e)) if e == elected));
}

#[test]
fn a_write_proves_the_term_and_the_write_before() {
    let mut rig = Rig::leading();
    rig.state.persist(1, 1, vec![(b"a".to_vec(), b"1".to_vec())], vec![]);
    rig.state.persist(1, 2, vec![(b"a".to_vec(), b"2".to_vec())], vec![b"b".to_vec()]);
    rig.state.persist(0, 3, vec![(b"z".to_vec(), vec![])], vec![]);
    let (_, first) = rig.sent();
    let keys = rig.keys.clone();
    let number = |n: u64| Is::Value(n.to_be_bytes().to_vec());
    let seq = |n| Compare { key: keys.seq(), is: number(n) };
    assert_eq!(first.compares, [rig.keys.in_term(1), seq(0)]);
    assert_eq!(put(&first, &rig.keys.state(b"a")), Some(b"2".to_vec()), "both, in one");
    assert_eq!(put(&first, &rig.keys.state(b"z")), None, "an earlier turn does not count");
    assert_eq!(first.then.len(), 3);
    // No reply: the same again. It finds that the first try was executed.
    rig.pass(TRY_NS / MS);
    rig.pass(50);
    let (beat, _) = rig.sent();
    rig.reply(beat, true, 4, vec![]);
    assert!(rig.event().is_some_and(|event| event.contains("Extended")));
    let (id, second) = rig.sent();
    assert_eq!(second, first);
    let (term, done) = (rig.term(1, "tcp:me", 1), pair(rig.keys.seq(), &1u64.to_be_bytes(), 3));
    rig.reply(id, false, 4, vec![term, done]);
    assert_eq!(rig.event().as_deref(), Some("2"));
}

/// A refusal is reported with all that is durable, and what was handed in before it does not count.
/// If an earlier try may be executed later, the leader gives up its term instead.
#[test]
fn a_full_etcd_refuses_unless_a_try_may_still_be_executed() {
    for uncertain in [false, true] {
        let mut rig = Rig::leading();
        rig.state.persist(1, 1, vec![(b"a".to_vec(), b"1".to_vec())], vec![]);
        let (mut id, _) = rig.sent();
        if uncertain {
            rig.state.response(rig.now, id, Err(Failure::Unknown("lost".into())));
            rig.pass(50);
            id = rig.sent().0;
        }
        rig.state.response(rig.now, id, Err(Failure::Refused("full".into())));
        if uncertain {
            assert_eq!(rig.event().as_deref(), Some("standby "));
            continue;
        }
        rig.state.persist(1, 2, vec![(b"b".to_vec(), vec![])], vec![]);
        rig.pass(50);
        let (id, _) = rig.sent();
        rig.reply(id, true, 3, vec![pair(rig.keys.state(b"c"), b"old", 2)]);
        assert_eq!(rig.event().as_deref(), Some("refused full 1"));
        rig.state.persist(2, 3, vec![(b"b".to_vec(), vec![])], vec![]);
        let (id, txn) = rig.sent();
        assert_eq!(txn.then.len(), 2);
        rig.reply(id, true, 4, vec![]);
        assert_eq!(rig.event().as_deref(), Some("3"));
    }
}

/// A write of 300 changes lies under `batch` before one transaction makes it durable.
#[test]
fn a_long_write_is_durable_at_once() {
    let mut rig = Rig::leading();
    let puts: Vec<_> = (0..300u16).map(|n| (n.to_be_bytes().to_vec(), vec![7])).collect();
    rig.state.persist(1, 1, puts, vec![]);
    let (mut made, mut txns) = (0, Vec::new());
    while rig.state.is_writing() {
        let (id, txn) = rig.sent();
        assert!(txn.then.len() <= 121 && txn.compares.contains(&rig.keys.in_term(1)));
        let state = rig.keys.state(&[]);
        let is_state = |op: &&Op| matches!(op, Op::Put { key, .. } if key.starts_with(&state));
        made += txn.then.iter().filter(is_state).count();
        txns.push((put(&txn, &rig.keys.batch()), made));
        rig.reply(id, true, 5, vec![]);
    }
    assert_eq!(made, 300);
    let marked = txns.iter().position(|(marker, _)| marker.is_some()).expect("a marker");
    assert_eq!(txns[marked].1, 0, "durable before the first change of the state");
    assert_eq!(rig.event().as_deref(), Some("1"));
}

#[test]
fn a_leader_ends_with_its_term_and_a_cluster_with_its_keys() {
    let mut rig = Rig::leading();
    rig.pass(200);
    let (id, _) = rig.sent();
    let other = rig.term(2, "tcp:b", 7);
    rig.reply(id, false, 7, vec![other]);
    assert_eq!(rig.event().as_deref(), Some("standby tcp:b"));

    for read in [vec![], Rig::new().term(1, "tcp:b", 9)] {
        let mut rig = Rig::leading();
        rig.pass(200);
        let (id, _) = rig.sent();
        rig.reply(id, false, 9, vec![read]);
        let why = rig.event().unwrap_or_default();
        assert!(why.contains("gone") || why.contains("replaced"), "{why}");
        rig.pass(5_000);
        assert_eq!(rig.state.output(rig.now), None, "it has ended");
    }
}

/// A snapshot of the present term has the same `term`, but not the writes that came after it.
#[test]
fn an_etcd_of_an_earlier_time_in_the_same_term_is_found() {
    let mut rig = Rig::leading();
    rig.state.persist(1, 1, vec![(b"a".to_vec(), b"1".to_vec())], vec![]);
    rig.pass(200);
    // Both are on the way at once, so that their replies may come in any order.
    let (beat, _) = rig.sent();
    let (write, _) = rig.sent();
    rig.reply(write, true, 4, vec![]);
    rig.reply(beat, true, 3, vec![]);
    assert_eq!(rig.event().as_deref(), Some("1"));
    assert!(rig.event().is_some_and(|event| event.contains("Extended")));
    rig.pass(200);
    let (beat, _) = rig.sent();
    rig.reply(beat, true, 3, vec![]);
    assert!(rig.event().is_some_and(|event| event.contains("replaced")));
}

/// The reason why no coordinator leads stays known while looks succeed, until a leader beats.
#[test]
fn a_refused_attempt_is_the_trouble_until_a_leader_beats() {
    let mut rig = Rig::new();
    let (term, beat) = (rig.term(4, "tcp:a", 10), rig.keys.beat());
    let look = |rig: &mut Rig, at| {
        let (id, watch) = rig.sent();
        assert!(watch.compares.is_empty());
        rig.reply(id, true, 30, vec![term.clone(), pair(beat.clone(), b"x", at)]);
        rig.event()
    };
    assert_eq!(look(&mut rig, 20).as_deref(), Some("standby tcp:a"));
    rig.pass(1_000);
    let (id, _) = rig.sent();
    rig.state.response(rig.now, id, Err(Failure::Refused("full".into())));
    assert!(rig.event().is_some_and(|event| event.contains("full")));
    rig.pass(50);
    assert_eq!(look(&mut rig, 20), None);
    // The next attempt: another candidate leads and beats.
    rig.pass(50);
    rig.pass(150);
    let (id, stand) = rig.sent();
    assert!(!stand.compares.is_empty());
    rig.state.response(rig.now, id, Err(Failure::Refused("full".into())));
    rig.pass(50);
    assert_eq!(look(&mut rig, 40).as_deref(), Some("standby tcp:a"));
}
