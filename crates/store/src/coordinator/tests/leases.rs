//! Tests of the coordinator's leases of clients.

use super::*;

#[test]
fn leases_end_and_never_come_back() {
    let mut w = World::new(config());
    let term = w.config.client_term_ns;
    let a = w.lease(LeaseId(0)).unwrap();
    let b = w.lease(LeaseId(0)).unwrap().lease;
    assert_eq!(a.term_ns, term);
    let a = a.lease;
    assert_eq!(w.check(&[a, b, LeaseId(99)]), [term, term, 0]);
    w.pass(term / 2, &[]);
    assert!(w.lease(a).is_ok());
    w.pass(term / 2, &[]);
    assert_eq!(w.lease(b), Err(Status::ExpiredLease));
    assert_eq!(w.check(&[a, b]), [term / 2, 0]);
    let cluster = w.coordinator.cluster();
    // After a restart the times of renewals are unknown: every lease that had not expired has a
    // full term.
    w.restart();
    assert_eq!(w.check(&[a, b]), [term, 0]);
    w.pass(term - SECOND, &[]);
    assert_eq!(w.check(&[a, b]), [SECOND, 0]);
    w.pass(SECOND, &[]);
    assert_eq!(w.check(&[a, b]), [0, 0]);
    w.restart();
    assert_eq!(w.lease(a), Err(Status::ExpiredLease));
    let c = w.lease(LeaseId(0)).unwrap().lease;
    assert!(c > b);
    assert_eq!(w.answer(RenewClient { cluster, lease: c, release: true }.emit()), done());
    assert_eq!(w.answer(RenewClient { cluster, lease: c, release: true }.emit()), done());
    assert_eq!(w.lease(c), Err(Status::ExpiredLease));
    assert_eq!(w.disk.keys().filter(|key| key[0] == b'l').count(), 0);
    let foreign = RenewClient { cluster: cluster ^ 1, lease: a, release: false }.emit();
    assert_eq!(Leased::parse(&w.answer(foreign)), Err(Status::ExpiredLease));
    let foreign = CheckLease { cluster: cluster ^ 1, leases: vec![] }.emit();
    assert_eq!(LeaseTimes::parse(&w.answer(foreign)), Err(Status::NotInCluster));
}

#[test]
fn that_a_lease_has_ended_is_said_only_when_it_is_durable() {
    let mut w = World::new(config());
    let a = w.lease(LeaseId(0)).unwrap().lease;
    w.disk_stalls = true;
    // A request ends the lease, not a tick.
    let end = w.now.after(w.config.client_term_ns);
    while w.now < end {
        w.now = w.now.after(100 * MS);
        w.coordinator.notice(w.now);
    }
    let cluster = w.coordinator.cluster();
    let check = w.ask(CheckLease { cluster, leases: vec![a] }.emit());
    let renew = w.ask(RenewClient { cluster, lease: a, release: false }.emit());
    assert!(w.replies.is_empty());
    w.disk_stalls = false;
    w.run();
    assert_eq!(LeaseTimes::parse(&w.replies[&check]).unwrap().valid_ns, [0]);
    assert_eq!(Leased::parse(&w.replies[&renew]), Err(Status::ExpiredLease));
}
