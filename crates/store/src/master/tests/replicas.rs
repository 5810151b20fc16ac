//! Tests of a master as the backup of other masters, by requests.

use super::*;
use crate::durability::Durability;
use crate::master::membership::Membership;
use crate::message::control::ServerPage;
use crate::message::control::Usage;
use crate::message::data::head;
use crate::message::recovery::{ListReplicas, Replica, ReplicaPage};
use crate::message::replica::{self, FreeReplica, WriteReplica, written};
use crate::objects::entry::{HEADER, Header, put_header};
use crate::objects::segment::SegmentId;
use crate::site::OwnedSite;

const OTHER: ServerId = ServerId { index: 4, generation: 2 };
const SEGMENT: SegmentId = SegmentId(3);

#[test]
fn a_backup_answers_by_its_own_name_alone() {
    let config = Config { segment_bytes: 1 << 12, backup_bytes: 1 << 14, ..Config::default() };
    let mut rig = Rig::serving(config);
    let mut data = [0; HEADER];
    let header = Header {
        cluster: CLUSTER,
        server: OTHER,
        segment: SEGMENT,
        capacity: 1 << 12,
        safe_version: Version(1),
    };
    put_header(&mut data, &header);
    let target = replica::Target { cluster: CLUSTER, backup: ME, master: OTHER, segment: SEGMENT };
    let (epoch, offset, open, close, sync) = (1, 0, true, false, false);
    let write =
        WriteReplica { target, epoch, offset, open, close, commit: true, sync, data: &data };
    let list = ListReplicas {
        cluster: CLUSTER,
        term: TERM,
        backup: ME,
        master: OTHER,
        after: SegmentId(0),
    };
    let page = |replicas| ReplicaPage { more: false, replicas }.emit();
    let there = Replica { segment: SEGMENT, epoch: 1, len: HEADER as u32, closed: false };

    let later = ServerId { generation: ME.generation + 1, ..ME };
    for wrong in [
        replica::Target { cluster: CLUSTER + 1, ..target },
        replica::Target { backup: later, ..target },
    ] {
        let refused = Some(Status::NotInCluster);
        assert_eq!(rig.status(WriteReplica { target: wrong, ..write }.emit()), refused);
        assert_eq!(rig.status(FreeReplica { target: wrong, epoch: 9 }.emit()), refused);
        let list = ListReplicas { cluster: wrong.cluster, backup: wrong.backup, ..list.clone() };
        assert_eq!(rig.status(list.emit()), refused, "and fences nothing");
    }
    assert_eq!(rig.ask(write.emit()), written(HEADER as u32));
    assert_eq!(rig.ask(list.emit()), page(vec![there]));
    assert_eq!(rig.ask(write.emit()), head(Status::Fenced));
    assert_eq!(rig.ask(FreeReplica { target, epoch: 9 }.emit()), done());
    assert_eq!(rig.ask(list.emit()), page(vec![]));
    assert_eq!(rig.ask(FreeReplica { target, epoch: 9 }.emit()), done());
}

/// An order may overtake the reply by which the server learns its own id.
#[test]
fn a_server_that_joins_is_no_backup_yet() {
    let mut rig = Rig::new(Config::default());
    let target = replica::Target { cluster: CLUSTER, backup: ME, master: OTHER, segment: SEGMENT };
    assert_eq!(rig.status(FreeReplica { target, epoch: 9 }.emit()), Some(Status::Retry));
}

#[test]
fn a_master_without_backups_refuses_changes_after_a_while() {
    let mut rig = Rig::serving(Config { replicas: 1, ..Config::default() });
    rig.answer(Opcode::ListServers, ServerPage { next: 0, servers: Vec::new() }.emit());
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let write = |rpc| {
        Write { target: TARGET, once: once(1, rpc, 0), key: b"k", value: b"v", lifetime: None }
            .emit()
    };
    let waiting = rig.send(&write(1)).unwrap_err();
    rig.pass(SECOND / 2);
    assert!(rig.send(&write(2)).is_err(), "a server may join");
    rig.pass(SECOND);
    assert_eq!(rig.status(write(3)), Some(Status::TooFewServers));
    assert!(!rig.replies.contains_key(&waiting));
}

/// A recovery could not tell a log without a head from one whose head is lost.
#[test]
fn a_tablet_is_taken_when_the_log_has_a_head_on_all_backups() {
    let mut rig = Rig::new(Config { replicas: 1, ..Config::default() });
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM };
    rig.answer(Opcode::Enlist, enlisted.emit());
    let waiting = rig.send(&take(0, 99).emit()).unwrap_err();
    let again = rig.send(&take(0, 99).emit()).unwrap_err();
    let head = rig.master.memory().log.tail();
    assert!(head.segment == SegmentId(1) && head.offset > 0);
    rig.master.durable(head);
    rig.pump();
    assert_eq!((&rig.replies[&waiting], &rig.replies[&again]), (&done(), &done()));
    assert_eq!(rig.ask(take(100, 199).emit()), done(), "the log has a head");
}

#[test]
fn a_server_names_its_former_life_and_never_joins_another_cluster() {
    let site = OwnedSite { host: 7, rack: "r".into(), ..OwnedSite::default() };
    let membership = |former| {
        let mode = (1, Durability::Process);
        Membership::new(1, mode, site.clone(), former, "c".into(), "d".into())
    };
    let former = ServerId { index: 3, generation: 4 };
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM };
    let refused = failure(Status::NotInCluster, "");
    for (cluster, reply, stops) in [
        (None, refused.clone(), true),
        (None, enlisted.emit(), false),
        (Some(CLUSTER), enlisted.emit(), false),
        (Some(CLUSTER), refused, true),
        (Some(CLUSTER + 1), enlisted.emit(), true),
    ] {
        let mut member = membership(cluster.map(|cluster| (cluster, former)));
        let usage = Usage::default();
        let call = member.call(Instant::ZERO, 1, usage);
        let Some(Output::Call { message, .. }) = call else { panic!("{call:?}") };
        let enlist = Enlist::parse(&message.bytes).unwrap();
        let replaces = cluster.map_or_else(ServerId::default, |_| former);
        assert_eq!((enlist.cluster, enlist.replaces), (cluster.unwrap_or(0), replaces));
        assert_eq!(enlist.site.to_owned(), site);
        let output = member.response(Instant::ZERO, 1, Ok(Payload::Borrowed(&reply)));
        assert_eq!(matches!(output, Some(Output::Stop { .. })), stops, "{cluster:?}");
    }
}

#[test]
fn a_lone_server_holds_its_own_replica_if_it_may() {
    let config = Config {
        replicas: 1,
        own_replica: true,
        log_bytes: 16 << 12,
        segment_bytes: 1 << 12,
        backup_bytes: 16 << 12,
        ..Config::default()
    };
    let mut rig = Rig::new(config);
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM };
    rig.answer(Opcode::Enlist, enlisted.emit());
    rig.answer(Opcode::ListServers, ServerPage { next: 0, servers: Vec::new() }.emit());
    let waiting = rig.send(&take(0, u64::MAX).emit()).unwrap_err();
    assert_eq!(rig.replies.remove(&waiting), Some(done()), "the head is durable");
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    for rpc in 1..40 {
        let write = Write {
            target: TARGET,
            once: once(1, rpc, rpc - 1),
            key: b"k",
            value: &[7; 500],
            lifetime: None,
        };
        let waiting = rig.send(&write.emit()).unwrap_err();
        assert!(rig.replies.remove(&waiting).is_some(), "acknowledged at once");
    }
    let tail = rig.master.memory().log.tail();
    let own = rig.master.backup().bytes(ME, tail.segment).unwrap();
    assert_eq!((own.len(), rig.master.memory().log.durable()), (tail.offset as usize, tail));
    assert_eq!(rig.links, BTreeSet::from([COORDINATOR.0]), "by no link");
}
