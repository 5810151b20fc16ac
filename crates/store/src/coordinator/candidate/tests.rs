//! Tests of a candidate by its verbs, in virtual time.

use alloc::vec;

use sprat_proto::rpc::ServerRpc;
use sprat_proto::time::{MS, SECOND};

use super::*;
use crate::durability::Durability;
use crate::durability::TableDurability;
use crate::message::Status;
use crate::message::control::{
    CreateTable, Enlist, GetLeader, Leader, ListServers, RenewServer, Usage, failure_text, outcome,
};
use crate::site::Site;
use crate::testing;
use crate::types::ServerId;

struct Rig {
    candidate: Candidate,
    now: Instant,
    asked: u64,
}

impl Rig {
    fn new() -> Self {
        let config = Config { locators: "tcp:me".into(), ..Config::default() };
        let candidate = Candidate::new(config, Rng::seeded(1));
        Self { candidate, now: Instant::from_ns(SECOND), asked: 0 }
    }

    /// Sends a request. Returns the reply unless it follows later.
    fn ask(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.asked += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(self.asked), at: Instant::ZERO };
        let payload = Payload::Borrowed(request);
        let never = Instant::NEVER;
        testing::request(&mut self.candidate, self.now, caller, payload, never)
            .map(|message| message.bytes)
    }

    fn elect(&mut self, term: u64, pairs: Vec<(Vec<u8>, Vec<u8>)>) {
        let until = self.now.after(900 * MS);
        self.candidate.election(self.now, Election::Elected { term, until, pairs });
    }

    fn outputs(&mut self) -> Vec<Output> {
        core::iter::from_fn(|| self.candidate.output(self.now)).collect()
    }

    /// Confirms all writes. Returns the replies that followed.
    fn persist(&mut self) -> Vec<Vec<u8>> {
        let mut replies = Vec::new();
        loop {
            let outputs = self.outputs();
            let mut last = None;
            for output in outputs {
                match output {
                    Output::Persist { seq, .. } => last = Some(seq),
                    Output::Reply { message, .. } => replies.push(message.bytes),
                    _ => {}
                }
            }
            let Some(seq) = last else { return replies };
            self.candidate.persisted(self.now, seq);
        }
    }
}

fn enlist() -> Vec<u8> {
    Enlist {
        nonce: 7,
        capacity_bytes: 1 << 20,
        replicas: 0,
        durability: Durability::None,
        site: Site::default(),
        cluster: 0,
        replaces: ServerId::default(),
        control: "tcp:s",
        data: "tcp:s",
    }
    .emit()
}

fn status(reply: &[u8]) -> Result<Status, Status> {
    outcome(reply).map(|(status, _)| status)
}

#[test]
fn a_standby_names_the_leader_and_the_leader_itself() {
    let mut rig = Rig::new();
    let refused = rig.ask(&GetLeader {}.emit()).expect("a reply at once");
    assert_eq!(status(&refused), Ok(Status::NotLeader));
    let text = "\nno coordinator was elected yet";
    assert_eq!(failure_text(&refused), text);
    let leader = "tcp:other".into();
    rig.candidate.election(rig.now, Election::Standby { leader });
    let refused = rig.ask(&enlist()).expect("a reply at once");
    assert_eq!(control::leader_in(failure_text(&refused)), ("tcp:other", ""));
    rig.candidate.election(rig.now, Election::Unsure { why: "no etcd".into() });
    let refused = rig.ask(b"").expect("a reply at once, whatever the request is");
    assert_eq!(control::leader_in(failure_text(&refused)), ("tcp:other", "no etcd"));

    rig.elect(5, vec![]);
    rig.persist();
    let reply = rig.ask(&GetLeader {}.emit()).expect("a reply at once");
    assert_eq!(Leader::parse(&reply), Ok(Leader { term: 5, locators: "tcp:me" }));
}

/// The beat of a leader may be late. From the end of its time on the leader answers nothing and
/// calls no server. It leads on as before when a beat was good after all.
#[test]
fn a_leader_is_silent_from_the_end_of_its_time_on() {
    let mut rig = Rig::new();
    rig.elect(5, vec![]);
    assert_eq!(rig.ask(&enlist()), None);
    assert_eq!(rig.persist().len(), 1);
    assert_eq!(
        rig.ask(&CreateTable { span: 1, durability: TableDurability::Cluster, name: "t" }.emit()),
        None
    );
    rig.now = rig.now.after(900 * MS - 1);
    assert!(rig.ask(&ListServers { from: 0 }.emit()).is_none_or(|r| status(&r) == Ok(Status::Ok)));
    rig.now = rig.now.after(1);
    let refused = rig.ask(&ListServers { from: 0 }.emit()).expect("a reply at once");
    assert_eq!(status(&refused), Ok(Status::NotLeader));
    assert!(rig.outputs().is_empty() && !rig.candidate.has_output());
    assert_eq!(rig.candidate.deadline(), None);
    assert!(!rig.candidate.tick(rig.now));

    // For longer than a server's lease with its margins, no renewal was answered.
    rig.now = rig.now.after(10 * SECOND);
    rig.candidate.election(rig.now, Election::Extended { until: rig.now.after(900 * MS) });
    rig.candidate.tick(rig.now);
    assert!(rig.candidate.has_output());
    rig.persist();
    let cluster = rig.candidate.leading(rig.now).map_or(0, |leading| leading.cluster());
    let server = ServerId { index: 0, generation: 1 };
    let usage = Usage::default();
    let renewed = rig.ask(&RenewServer { cluster, server, usage }.emit()).expect("at once");
    assert_eq!(status(&renewed), Ok(Status::Ok), "its lease did not end meanwhile");
}

#[test]
fn a_leader_that_is_replaced_answers_what_waits() {
    let mut rig = Rig::new();
    rig.elect(5, vec![]);
    assert_eq!(rig.ask(&enlist()), None);
    let leader = "tcp:other".into();
    rig.candidate.election(rig.now, Election::Standby { leader });
    let [Output::Reply { message, .. }] = &rig.outputs()[..] else { panic!("one reply") };
    assert_eq!(status(&message.bytes), Ok(Status::NotLeader));
    // A confirmation that comes late is none of the next term.
    rig.candidate.persisted(rig.now, 1);
    rig.elect(7, vec![]);
    rig.candidate.persisted(rig.now, 0);
    assert_eq!(rig.ask(&enlist()), None);
    assert_eq!(rig.persist().len(), 1);
    assert_eq!(rig.candidate.leading(rig.now).map(|leading| leading.incarnation()), Some(7));
}

/// A call of an earlier term has the tag of none of the next term: its late result would count for
/// another call.
#[test]
fn the_result_of_a_call_of_an_earlier_term_is_none_of_the_next() {
    let mut rig = Rig::new();
    let create = CreateTable { span: 1, durability: TableDurability::Cluster, name: "t" }.emit();
    let mut tags = vec![];
    for term in [5, 7] {
        rig.elect(term, vec![]);
        assert_eq!(rig.ask(&enlist()), None);
        rig.persist();
        assert_eq!(rig.ask(&create), None);
        for _ in 0..3 {
            for output in rig.outputs() {
                match output {
                    Output::Persist { seq, .. } => rig.candidate.persisted(rig.now, seq),
                    Output::Call { tag, .. } => tags.push(tag),
                    _ => {}
                }
            }
        }
        rig.candidate.election(rig.now, Election::Standby { leader: "".into() });
        assert_eq!(rig.outputs().len(), 1, "the creation is given up");
    }
    assert!(tags.len() == 2 && tags[0] != tags[1], "{tags:?}");
    rig.elect(9, vec![]);
    let reply = control::done();
    rig.candidate.response(rig.now, tags[0], Ok(Payload::Borrowed(&reply)));
    rig.candidate.response(rig.now, tags[1], Err(RpcError::NotExecuted));
    assert_eq!(rig.ask(&enlist()), None);
    assert_eq!(rig.persist().len(), 1);
}

#[test]
fn a_malformed_state_stops_the_process() {
    let mut rig = Rig::new();
    rig.elect(5, vec![(vec![b'x'], vec![])]);
    let outputs = rig.outputs();
    assert!(matches!(&outputs[..], [Output::Stop { reason }] if reason.contains("damaged")));
}
