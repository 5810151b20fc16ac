//! Tests of a master that learns of lost replicas, and of a backup that reports them.

use super::*;
use crate::durability::Durability;
use crate::message::control::{MAX_PAGE, Server, ServerPage, ServerState, Usage};
use crate::message::damage::{LostReplica, ReplicaDamaged};
use crate::message::data::head;
use crate::message::replica::{self, WriteReplica};
use crate::objects::entry::{HEADER, Header, put_header};
use crate::objects::segment::SegmentId;
use crate::site::Site;

const OTHER: ServerId = ServerId { index: 4, generation: 2 };
const SEGMENT: SegmentId = SegmentId(3);

fn report() -> ReplicaDamaged {
    let replicas = vec![LostReplica { segment: SEGMENT, epoch: 1 }];
    ReplicaDamaged { cluster: CLUSTER, master: ME, backup: OTHER, replicas }
}

fn counter(rig: &Rig, name: &str) -> u64 {
    rig.master.counter(name)
}

#[test]
fn a_report_names_this_master_and_at_most_a_page() {
    let mut rig = Rig::serving(Config { replicas: 1, ..Config::default() });
    let later = ServerId { generation: ME.generation + 1, ..ME };
    for wrong in [
        ReplicaDamaged { cluster: CLUSTER + 1, ..report() },
        ReplicaDamaged { master: later, ..report() },
    ] {
        assert_eq!(rig.status(wrong.emit()), Some(Status::NotInCluster));
    }
    let page = |len| {
        let replicas = vec![report().replicas[0].clone(); len];
        ReplicaDamaged { replicas, ..report() }.emit()
    };
    assert_eq!(rig.status(page(MAX_PAGE + 1)), Some(Status::BadFormat));
    assert_eq!(counter(&rig, "replica_reports_unknown"), 0);
    assert_eq!(rig.ask(page(MAX_PAGE)), done(), "of replicas that it does not have");
    assert_eq!(counter(&rig, "replica_reports_unknown"), MAX_PAGE as u64);
}

/// Lets the server know `servers`, all of them up.
fn list(rig: &mut Rig, servers: &[ServerId]) {
    let server = |&server: &ServerId| Server {
        server,
        state: ServerState::Up,
        tablets: 0,
        usage: Usage::default(),
        rate: 0,
        replicas: 1,
        durability: Durability::Memory,
        site: Site::default(),
        control: "",
        data: "other",
        blocked: "",
    };
    let servers = servers.iter().map(server).collect();
    answer(rig, Opcode::ListServers, ServerPage { next: 0, servers }.emit());
}

/// Answers the only call with this opcode. Returns its request.
fn answer(rig: &mut Rig, to: Opcode, reply: Vec<u8>) -> Vec<u8> {
    let is_to = |(_, request): &(u64, Vec<u8>)| opcode(request) == Ok(to);
    let at = rig.calls.iter().position(is_to).expect("a call");
    let (tag, request) = rig.calls.remove(at);
    assert!(!rig.calls.iter().any(is_to), "one at a time");
    rig.master.response(rig.now, tag, Ok(Payload::Borrowed(&reply)));
    rig.pump();
    request
}

#[test]
fn a_backup_repeats_its_report_until_the_master_has_answered() {
    let config =
        Config { replicas: 1, segment_bytes: 1 << 12, backup_bytes: 1 << 14, ..Config::default() };
    let mut rig = Rig::serving(config);
    let mut data = [0; HEADER];
    let (cluster, server, segment) = (CLUSTER, OTHER, SEGMENT);
    let header = Header { cluster, server, segment, capacity: 1 << 12, safe_version: Version(1) };
    put_header(&mut data, &header);
    let target = replica::Target { cluster, backup: ME, master: OTHER, segment };
    let (epoch, offset, open, close, commit, sync) = (1, 0, true, true, true, false);
    let write = WriteReplica { target, epoch, offset, open, close, commit, sync, data: &data };
    assert_eq!(rig.ask(write.emit()), replica::written(HEADER as u32));
    rig.master.backup.mark_damaged((OTHER, SEGMENT));
    rig.master.reports.look();
    rig.pump();
    assert_eq!(counter(&rig, "replicas_unreported"), 1, "the server does not know the master");
    list(&mut rig, &[OTHER]);
    let wanted = ReplicaDamaged { master: OTHER, backup: ME, ..report() };
    for refusal in [Status::Retry, Status::NotInCluster, Status::NotServing] {
        let sent = answer(&mut rig, Opcode::ReplicaDamaged, head(refusal).to_vec());
        assert_eq!(ReplicaDamaged::parse(&sent), Ok(wanted.clone()));
        rig.pass(200 * MS);
    }
    answer(&mut rig, Opcode::ReplicaDamaged, done());
    assert_eq!(counter(&rig, "replicas_unreported"), 0);
    assert_eq!(counter(&rig, "replicas_damaged"), 1, "until its master frees it");
}
