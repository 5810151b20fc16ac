//! Tests of a node's link table alone, with sessions that the tests name.

use alloc::borrow::ToOwned;
use alloc::format;

use super::*;

fn list(text: &str) -> Vec<String> {
    text.split(';').map(str::to_owned).collect()
}

fn table(lanes: u16) -> Links<&'static str> {
    Links::new(lanes)
}

const RESET: CloseReason = CloseReason::Reset;
const NOW: Instant = Instant::ZERO;

#[test]
fn links_share_servers_and_lead_to_their_sessions_and_back() {
    let mut links = table(1);
    let texts = ["fast+shm:name=a", "tcp:host=::1,port=1"];
    let targets = [0, 1].map(|i: usize| links.learn(texts[i], list(texts[i])));
    // Nothing was bound to the first: the second takes its place.
    assert_eq!((links.known(texts[0]), targets), (None, [0, 0]));
    let a = links.learn(texts[0], list(texts[0]));
    links.bind(Link(5), a);
    links.bind(Link(2), a);
    assert_eq!((links.known(texts[0]), links.known(texts[1])), (Some(a), None));
    assert_eq!((links.bound_to(Link(2)), links.bound_to(Link(3))), (Some(a), None));
    links.target(a).choose(0, 3);
    let [first, second] = [SessionId::new(1, 9), SessionId::new(2, 9)];
    links.opened(Link(5), (3, first));
    assert_eq!(links.session(Link(5)), Some((3, first)));
    let closed = links.closed(NOW, (3, first), RESET, Some("broken".into())).unwrap();
    assert_eq!((closed.link, &*closed.why), (Link(5), "fast+shm:name=a: broken"));
    assert_eq!(closed.gone, None, "the peer is there");
    assert_eq!(links.session(Link(5)), None);
    links.opened(Link(2), (3, second));
    for (transport, session) in [(3, first), (2, second), (9, second), (3, SessionId::new(2, 99))] {
        assert!(links.closed(NOW, (transport, session), RESET, None).is_none());
        assert_eq!(
            links.session(Link(2)),
            Some((3, second)),
            "{session:?} at {transport} is another one"
        );
    }
    assert_eq!(links.unbind(Link(2)), [(3, second)]);
    assert!(links.closed(NOW, (3, second), RESET, None).is_none());
    for link in [Link(2), Link(5), Link(77)] {
        assert_eq!(links.unbind(link), []);
    }
    assert_eq!(links.known(texts[0]), None, "nothing is bound to it any more");
}

#[test]
fn a_race_knows_its_sessions_and_each_cause() {
    let mut links = table(1);
    let text = "fast+shm:name=a;tcp:host=::1,port=1;fast+udp:host=::1,port=2";
    let target = links.learn(text, list(text));
    links.bind(Link(0), target);
    links.begin_race(NOW, target, Link(0));
    links.target(target).failed(0, "not there");
    let sessions = [(1, SessionId::new(1, 4)), (2, SessionId::new(1, 4))];
    let (race, _) = links.target(target).race.as_mut().unwrap();
    race.failed(NOW, 0);
    for (candidate, session) in (1..).zip(sessions) {
        race.began(NOW, candidate, session);
    }
    assert!(links.closed(NOW, sessions[0], CloseReason::Version, None).is_none());
    let why = links.target(target).why();
    let other = "what listens there speaks another protocol, or another version of ours";
    let each = ["fast+shm:name=a: not there", "fast+udp:host=::1,port=2: no answer"];
    assert_eq!(why, format!("{}; tcp:host=::1,port=1: {other}; {}", each[0], each[1]));
    assert_eq!(links.unbind(Link(0)), [sessions[1]], "nothing waits for it any more");
    assert!(links.racing().is_empty());
}

#[test]
fn a_server_whose_session_ends_is_tried_from_the_best_locator_again() {
    let mut links = table(1);
    let text = "fast+shm:name=a;tcp:host=::1,port=1";
    let target = links.learn(text, list(text));
    links.bind(Link(0), target);
    let next = |links: &mut Links<_>, reason| {
        links.target(target).choose(0, 7);
        let session = (7, SessionId::new(1, 0));
        links.opened(Link(0), session);
        let closed = links.closed(NOW, session, reason, None).unwrap();
        let is_gone = reason == CloseReason::PeerGone;
        assert_eq!(closed.gone.as_deref(), is_gone.then_some("fast+shm:name=a"));
        assert_eq!(links.target(target).chosen(), None);
        links.begin_race(NOW, target, Link(0));
        links.end_race(target).unwrap().0.due(NOW)
    };
    assert_eq!(next(&mut links, RESET), Some(0));
    assert_eq!(
        next(&mut links, CloseReason::Version),
        Some(1),
        "there is no such server at the first"
    );
    assert_eq!(next(&mut links, CloseReason::PeerGone), Some(0));
}

/// Builds a link table with link 1 of four lanes. Its lanes `open` have sessions, at places 10 and
/// on.
fn with_lanes(open: &[u32]) -> Links<&'static str> {
    let mut links = table(4);
    let target = links.learn("a", list("a"));
    for lane in links.lanes(Link(1)).collect::<Vec<_>>() {
        links.bind(lane, target);
    }
    for lane in open {
        links.opened(Link(4 + lane), (0, SessionId::new(1, 10 + lane)));
    }
    links
}

/// The lane that the link table chooses for a call while the lanes `idle` have an idle channel.
fn lane(links: &mut Links<&'static str>, idle: &[u32]) -> u32 {
    let lane = links.lane(Link(1), |(_, session)| idle.contains(&(session.place() - 10)));
    lane.0 - 4
}

#[test]
fn a_call_stays_on_its_lane_while_that_has_an_idle_channel() {
    let mut links = with_lanes(&[0, 1, 2, 3]);
    assert_eq!([(); 3].map(|()| lane(&mut links, &[0, 1, 2, 3])), [0, 0, 0]);
    assert_eq!([(); 3].map(|()| lane(&mut links, &[1, 2])), [1, 1, 1]);
    assert_eq!([(); 3].map(|()| lane(&mut links, &[0, 1, 2, 3])), [1, 1, 1]);
}

#[test]
fn an_idle_channel_is_found_on_any_lane() {
    for idle in 0..4 {
        for last in 0..4 {
            let mut links = with_lanes(&[0, 1, 2, 3]);
            assert_eq!(lane(&mut links, &[last]), last);
            assert_eq!(lane(&mut links, &[idle]), idle, "after {last}");
        }
    }
}

#[test]
fn a_session_is_opened_only_if_no_other_has_an_idle_channel() {
    let mut links = with_lanes(&[]);
    assert_eq!([(); 2].map(|()| lane(&mut links, &[])), [0, 0], "the first, until it has one");
    let mut links = with_lanes(&[0]);
    assert_eq!(lane(&mut links, &[0]), 0);
    assert_eq!(lane(&mut links, &[]), 1);
    let mut links = with_lanes(&[0, 2]);
    assert_eq!([lane(&mut links, &[2]), lane(&mut links, &[])], [2, 1]);
    assert_eq!([lane(&mut links, &[0]), lane(&mut links, &[2])], [0, 2]);
}

#[test]
fn full_lanes_take_turns() {
    let mut links = with_lanes(&[0, 1, 2, 3]);
    assert_eq!([(); 6].map(|()| lane(&mut links, &[])), [1, 2, 3, 0, 1, 2]);
    assert_eq!(links.lane(Link(70), |_| true), Link(280), "which is not bound");
    let mut one = table(1);
    assert_eq!(one.lane(Link(7), |_| panic!("there is no choice")), Link(7));
}
