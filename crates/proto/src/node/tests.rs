//! Tests of a node with a machine and a host that the tests control, in virtual time: calls, lanes,
//! races, timers and the disk.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::machine::{Caller, Link, Output};
use super::{ConnectError, Written};
use crate::Instant;
use crate::rpc::{CloseReason, Event, Message, Payload, RpcError, RpcId, ServerRpc, Slice};
use crate::time::MS;

mod fake;

use fake::{TestNode, at, node};

const A: Link = Link(0);

fn connect(link: Link, locator: &str) -> Output {
    Output::Connect { link, locator: locator.into() }
}

fn call(link: Link, tag: u64) -> Output {
    Output::Call { link, tag, message: vec![1].into(), deadline: Instant::NEVER }
}

/// Runs one turn of the node at `us` microseconds, in which the machine wants the actions `wants`.
fn turn(node: &mut TestNode, us: u64, wants: impl IntoIterator<Item = Output>) -> bool {
    node.machine().wants.extend(wants);
    node.mark_unsent();
    node.turn(at(us), &[])
}

fn request(rpc: u64, byte: u8) -> Event<'static> {
    let payload = Payload::Owned(vec![byte]);
    Event::Request { rpc: ServerRpc(rpc), payload, deadline: Instant::NEVER }
}

/// Takes the calls that ended since `ended` was last called.
fn ended(node: &mut TestNode) -> Vec<fake::Ended> {
    core::mem::take(&mut node.machine().ended)
}

/// The number of requests in progress on each living session of a transport.
fn load(node: &TestNode, wire: usize) -> Vec<usize> {
    let sessions = node.host().wires[wire].sessions.iter();
    sessions.filter(|s| !s.ended).map(|s| s.calls.len()).collect()
}

#[test]
fn a_call_goes_to_its_server_and_its_reply_to_the_machine() {
    let mut node = node(1);
    turn(&mut node, 0, [connect(A, "0.a"), connect(Link(5), "1.b"), call(Link(5), 3), call(A, 4)]);
    assert_eq!(node.machine().sent, [(3, 1, RpcId(1)), (4, 0, RpcId(1))]);
    assert!(node.is_awaiting());
    node.host_mut().wires[1].answer(0);
    assert!(turn(&mut node, 1, []), "an answer is work");
    assert_eq!(ended(&mut node), [(3, Ok(3))]);
    node.host_mut().wires[0].answer(0);
    turn(&mut node, 2, []);
    assert_eq!(ended(&mut node), [(4, Ok(4))]);
    assert!(!node.is_awaiting() && !turn(&mut node, 3, []));
}

#[test]
fn a_link_bound_anew_closes_its_old_session() {
    let mut node = node(1);
    turn(&mut node, 0, [connect(A, "0.a"), call(A, 0), connect(A, "0.b"), call(A, 1)]);
    assert_eq!(node.host().wires[0].living(), [1]);
    turn(&mut node, 1, []);
    assert_eq!(ended(&mut node), [(0, Err(RpcError::MaybeExecuted))], "and nothing else");
    turn(&mut node, 2, [Output::Disconnect { link: A }, call(A, 2)]);
    turn(&mut node, 3, []);
    assert_eq!(node.host().wires[0].living(), [] as [u32; 0]);
    let failed = [(2, Err(RpcError::NotExecuted)), (1, Err(RpcError::MaybeExecuted))];
    assert_eq!(ended(&mut node), failed);
}

#[test]
fn a_lost_session_is_opened_anew_by_the_next_call() {
    let mut node = node(1);
    turn(&mut node, 0, [connect(A, "0.a"), call(A, 0)]);
    node.host_mut().wires[0].end(0, CloseReason::PeerGone);
    turn(&mut node, 1, []);
    assert_eq!(ended(&mut node), [(0, Err(RpcError::MaybeExecuted))]);
    assert_eq!(node.machine().unreachable, [(A, "0.a: the server is gone".into())]);
    assert_eq!(node.machine().ended_servers, [], "it has given up the connection");
    turn(&mut node, 2, [call(A, 1)]);
    assert_eq!((load(&node, 0), node.host().tried.len()), (vec![1], 2));
}

#[test]
fn the_machine_learns_that_a_server_has_ended_from_the_driver_and_the_host() {
    let mut node = node(1);
    turn(&mut node, 0, [connect(A, "0.a"), call(A, 0)]);
    node.host_mut().down = vec!["0.a"];
    node.host_mut().wires[0].end(0, CloseReason::Reset);
    turn(&mut node, 1, []);
    assert_eq!(node.machine().ended_servers, [], "the server itself has ended the session");
    node.host_mut().down = vec![];
    turn(&mut node, 2, [call(A, 1)]);
    node.host_mut().down = vec!["0.a"];
    node.host_mut().wires[0].end(1, CloseReason::PeerGone);
    turn(&mut node, 3, []);
    assert_eq!(node.machine().ended_servers, [A]);
    assert_eq!(node.machine().unreachable.len(), 2);
}

#[test]
fn a_call_that_no_server_can_take_fails_at_once() {
    let mut node = node(1);
    node.host_mut().down = vec!["0.a"];
    turn(&mut node, 0, [call(A, 0), connect(A, "0.a"), call(A, 1), connect(A, "x"), call(A, 2)]);
    let not = Err(RpcError::NotExecuted);
    assert_eq!(ended(&mut node), [(0, not), (1, not), (2, not)]);
    let whys = [(A, "0.a: down".into()), (A, "x: no such transport".into())];
    assert_eq!(node.machine().unreachable, whys);
    // A full session refuses, and the machine tries again.
    turn(&mut node, 1, [connect(A, "0.b"), call(A, 3)]);
    node.host_mut().wires[0].queue = 0;
    node.host_mut().wires[0].channels = 1;
    turn(&mut node, 2, [call(A, 4)]);
    assert!(matches!(ended(&mut node)[..], [(4, Err(RpcError::Busy { .. }))]));
}

fn slice(segment: u32, offset: u32) -> Slice {
    Slice { segment, offset, len: 7 }
}

/// A call whose message has a slice.
fn call_with(tag: u64, slice: Slice, deadline: Instant) -> Output {
    let message = Message { bytes: vec![1], slices: [slice].into_iter().collect() };
    Output::Call { link: A, tag, message, deadline }
}

/// The machine has no other way to learn that a call's memory is free.
#[test]
fn slices_of_calls_that_no_transport_takes_come_back() {
    let mut node = node(1);
    node.host_mut().down = vec!["0.a"];
    let late = [connect(A, "0.a"), call_with(0, slice(1, 0), Instant::NEVER)];
    turn(&mut node, 0, late);
    assert_eq!(node.machine().released, [slice(1, 0)], "the server cannot be reached");
    turn(&mut node, 1, [connect(A, "0.b")]);
    node.host_mut().wires[0].queue = 0;
    turn(&mut node, 2, (0..3).map(|i| call_with(1 + i, slice(2 + i as u32, 0), Instant::NEVER)));
    assert_eq!(node.machine().released[1..], [slice(4, 0)], "the session is full");
    turn(&mut node, 3, [connect(A, "0.c;1.d"), call_with(4, slice(5, 0), at(100))]);
    assert_eq!(node.machine().released.len(), 2, "the call waits for the race");
    turn(&mut node, 100, []);
    assert_eq!(node.machine().released[2..], [slice(5, 0)], "its deadline has passed");
}

#[test]
fn slices_of_what_is_lent_have_the_bytes_of_the_turn() {
    let mut node = node(1);
    let (own, lent) = (slice(1, 0), slice(Slice::LENT, 3));
    let calls = [own, lent].map(|slice| call_with(1, slice, Instant::NEVER));
    node.machine().wants.extend([connect(A, "0.a")].into_iter().chain(calls));
    node.host_mut().wires[0].more = 10;
    let bytes = |node: &TestNode| node.host().wires[0].bytes.clone();
    node.finish(at(0), b"___the value");
    assert_eq!(bytes(&node), [b"machine", b"the val"]);
    node.turn(at(1), b"...another");
    assert_eq!(bytes(&node), [b"machine", b"another"]);
    node.pause(at(2), b"---and one");
    assert_eq!(bytes(&node), [b"machine", b"and one"]);
    node.turn(at(3), &[]);
    assert_eq!(bytes(&node), [b"machine", b"machine"], "the machine has what is lent no more");
}

#[test]
fn connect_says_why_at_once() {
    let mut node = node(1);
    node.host_mut().down = vec!["0.a", "1.b"];
    let error = node.connect(at(0), A, "x").unwrap_err();
    assert!(matches!(error, ConnectError::Locators(why) if why == "x: no such transport"));
    let error = node.connect(at(0), A, "0.a;1.b").unwrap_err();
    let ConnectError::Unreachable { first, why } = error else { panic!("{error:?}") };
    assert_eq!((first.as_deref(), &*why), (Some("down"), "0.a: down; 1.b: down"));
    node.connect(at(0), A, "0.a;1.c").unwrap();
    node.connect(at(0), A, "1.c").unwrap();
}

#[test]
fn calls_take_lanes_with_idle_channels() {
    let mut node = node(3);
    turn(&mut node, 0, [connect(A, "0.a")]);
    turn(&mut node, 1, (0..6).map(|tag| call(A, tag)));
    assert_eq!(load(&node, 0), [2, 2, 2], "a session more only when the others are full");
    for (free, us) in [(1, 10), (0, 20), (2, 30), (2, 40)] {
        node.host_mut().wires[0].answer(free);
        turn(&mut node, us, [call(A, 10 + us)]);
        assert_eq!(load(&node, 0), [2, 2, 2], "the call goes to session {free}");
    }
    turn(&mut node, 50, (0..3).map(|tag| call(A, 100 + tag)));
    assert_eq!(load(&node, 0), [3, 3, 3], "full ones take turns");
}

#[test]
fn calls_of_bytes_take_lanes_as_calls_of_messages_do() {
    let mut node = node(3);
    let send = |node: &mut TestNode, tag| node.call_bytes(at(1), A, tag, &[1], Instant::NEVER);
    turn(&mut node, 0, [connect(A, "0.a")]);
    (0..6).for_each(|tag| send(&mut node, tag));
    assert_eq!(load(&node, 0), [2, 2, 2]);
    node.host_mut().wires[0].answer(1);
    turn(&mut node, 10, []);
    send(&mut node, 6);
    assert_eq!(load(&node, 0), [2, 2, 2], "the call goes to the session with an idle channel");
    (7..10).for_each(|tag| send(&mut node, tag));
    assert_eq!(load(&node, 0), [3, 3, 3], "what no channel takes waits in the sessions in turn");
    assert_eq!(node.machine().sent.len(), 10);
    node.host_mut().wires[0].queue = 0;
    send(&mut node, 10);
    assert!(matches!(ended(&mut node)[..], [(2, Ok(2)), (10, Err(RpcError::Busy { .. }))]));
    node.host_mut().down = vec!["0.b"];
    turn(&mut node, 20, [connect(Link(1), "0.b"), Output::Disconnect { link: A }]);
    ended(&mut node);
    [A, Link(1)].into_iter().zip(20..).for_each(|(link, tag)| {
        node.call_bytes(at(21), link, tag, &[1], Instant::NEVER);
    });
    let not = Err(RpcError::NotExecuted);
    assert_eq!(ended(&mut node), [(20, not), (21, not)], "no server");
    assert_eq!(node.host().tried, ["0.a", "0.a", "0.a", "0.b"], "each call tries once");
}

#[test]
fn calls_wait_for_a_race_and_go_out_by_its_winner() {
    let mut node = node(1);
    let message = vec![1].into();
    let late = Output::Call { link: A, tag: 2, message, deadline: at(100) };
    turn(&mut node, 0, [connect(A, "0.a;1.b;0.c"), call(A, 0), call(A, 1), late]);
    assert!(node.is_awaiting() && load(&node, 0) == [0], "only the best was tried");
    turn(&mut node, 100, []);
    let deadline = Err(RpcError::Deadline { maybe_executed: false });
    assert_eq!(ended(&mut node), [(2, deadline)]);
    assert_eq!(node.machine().unreachable, [(A, "0.a: no answer".into())]);
    let (_, transport, rpc) = node.machine().sent[1];
    turn(&mut node, 200, [Output::Cancel { transport, rpc }]);
    assert_eq!(ended(&mut node), [(1, Err(RpcError::Cancelled))]);
    turn(&mut node, 250_000, []);
    assert_eq!(node.host().tried, ["0.a", "1.b"]);
    node.host_mut().wires[1].session(0).is_open = true;
    turn(&mut node, 250_001, []);
    assert_eq!((load(&node, 0), load(&node, 1)), (vec![0], vec![0]), "the better may yet open");
    turn(&mut node, 300_001, []);
    assert_eq!((load(&node, 0), load(&node, 1)), (vec![], vec![1]), "the loser is closed");
    node.host_mut().wires[1].answer(0);
    turn(&mut node, 300_002, [call(A, 3)]);
    assert_eq!(ended(&mut node), [(0, Ok(0))]);
    assert_eq!(load(&node, 1), [1], "the winner is used from now on");
}

#[test]
fn calls_fail_when_a_race_is_lost() {
    let mut node = node(1);
    node.host_mut().down = vec!["1.b"];
    turn(&mut node, 0, [connect(A, "1.b;0.a"), connect(Link(1), "1.b;0.a"), call(A, 0)]);
    turn(&mut node, 1, [call(Link(1), 1)]);
    assert_eq!(node.host().tried, ["1.b", "0.a"], "one race for one server");
    node.host_mut().wires[0].end(0, CloseReason::Unreachable);
    turn(&mut node, 2, []);
    let not = Err(RpcError::NotExecuted);
    assert_eq!(ended(&mut node), [(0, not), (1, not)]);
    let why = "1.b: down; 0.a: no answer";
    assert_eq!(node.machine().unreachable, [(A, why.into()), (Link(1), why.into())]);
    assert!(!node.is_awaiting());
}

#[test]
fn requests_are_answered_where_they_came_from() {
    let mut node = node(1);
    node.machine().reply = Some(9);
    node.host_mut().wires[1].events.push_back(request(4, 7));
    turn(&mut node, 0, []);
    assert_eq!(node.host().wires[1].replies, [(ServerRpc(4), 9)]);
    node.machine().reply = None;
    node.host_mut().wires[0].events.push_back(request(5, 8));
    turn(&mut node, 1, []);
    let (caller, byte) = node.machine().requests[1];
    assert_eq!((caller, byte), (Caller { transport: 0, rpc: ServerRpc(5), at: at(1) }, 8));
    let reply = |caller| Output::Reply { caller, message: Message::from(&[6][..]) };
    let counters = Output::Counters { caller, message: Message::default() };
    let nowhere = Caller { transport: 2, rpc: ServerRpc(5), at: Instant::ZERO };
    turn(&mut node, 2, [reply(nowhere), reply(caller), counters]);
    assert_eq!(node.host().wires[0].replies, [(ServerRpc(5), 6), (ServerRpc(5), b'{')]);
    let text = |count: u32| {
        let answers = format!("\"answered_1024ns\":{count},\"answered_ns\":{count}000");
        format!("{{\"a\":1,{answers},\"own\":7,\"fake\":{{\"turns\":5}}}}")
    };
    assert_eq!(node.host().wires[0].last_reply, text(2).as_bytes());
    // Those counters were an answer, too.
    assert_eq!(node.counters(), text(3).as_bytes());
}

#[test]
fn a_full_turn_leaves_requests_to_the_next_one_which_begins_with_another_transport() {
    let mut node = node(1);
    node.machine().reply = Some(9);
    for (wire, byte) in [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)] {
        node.host_mut().wires[wire].events.push_back(request(u64::from(byte), byte));
    }
    let mut orders = Vec::new();
    for us in 0..5 {
        node.machine().is_full = true;
        assert!(turn(&mut node, us, []), "what was left is work");
        let requests = core::mem::take(&mut node.machine().requests);
        orders.push(requests.iter().map(|request| request.1).collect::<Vec<_>>());
    }
    assert_eq!(orders, [[1], [4], [2], [5], [3]]);
    assert!(!turn(&mut node, 5, []));
}

#[test]
fn a_turn_takes_a_bounded_number_of_requests_from_a_transport() {
    let mut node = node(1);
    node.machine().reply = Some(9);
    node.host_mut().wires[0].events.extend((0..150).map(|i| request(i, 1)));
    let counts: Vec<_> = (0..4)
        .map(|us| {
            turn(&mut node, us, []);
            core::mem::take(&mut node.machine().requests).len()
        })
        .collect();
    assert_eq!(counts, [64, 64, 22, 0]);
}

#[test]
fn an_answer_takes_until_the_end_of_its_turn_without_the_pause_behind_it() {
    let mut node = node(1);
    node.machine().reply = Some(9);
    let mut answered = |us, pauses: bool| {
        node.host_mut().wires[0].events.push_back(request(us, 1));
        turn(&mut node, us, []);
        if pauses {
            node.pause(at(us + 3), &[]);
        }
        turn(&mut node, us + 100, []);
        String::from_utf8(node.counters()).unwrap()
    };
    let text = answered(1_000, true);
    assert!(text.contains("\"answered_4096ns\":1,\"answered_ns\":3000"), "{text}");
    let text = answered(2_000, false);
    assert!(text.contains("\"answered_131072ns\":1,\"answered_ns\":103000"), "{text}");
    // A reply that comes later has the time since its request.
    node.machine().reply = None;
    node.host_mut().wires[0].events.push_back(request(7, 1));
    turn(&mut node, 3_000, []);
    let (caller, _) = *node.machine().requests.last().unwrap();
    turn(&mut node, 3_007, [Output::Reply { caller, message: vec![1].into() }]);
    let text = String::from_utf8(node.counters()).unwrap();
    assert!(text.contains("\"answered_8192ns\":1,"), "{text}");
}

#[test]
fn requests_that_arrive_together_are_announced_before_the_first() {
    let mut node = node(1);
    node.machine().reply = Some(9);
    for (burst, expected) in [(1, 0), (3, 3)] {
        let requests = (0..burst).map(|i| request(i, i as u8));
        node.host_mut().wires[0].events.extend(requests);
        turn(&mut node, burst, []);
        assert_eq!(
            (node.machine().expected.len(), node.machine().prefetched),
            (expected, expected)
        );
    }
    assert_eq!(node.machine().requests.len(), 4, "each is executed once");
}

#[test]
fn a_turn_without_output_sends_nothing() {
    let mut node = node(1);
    turn(&mut node, 0, [connect(A, "0.a"), call(A, 1)]);
    let outputs = |node: &TestNode| node.host().wires[0].outputs;
    let before = outputs(&node);
    node.host_mut().wires[0].answer(0);
    assert!(node.turn(at(1), &[]));
    assert_eq!(outputs(&node), before, "the transport has nothing to send");
    node.host_mut().wires[0].more = 1;
    node.mark_unsent();
    node.turn(at(2), &[]);
    assert_eq!(outputs(&node), before + 1);
}

#[test]
fn timers_are_checked_every_20_us_and_after_a_pause() {
    let mut node = node(1);
    turn(&mut node, 0, []);
    node.machine().deadline = Some(at(5));
    node.host_mut().wires[0].deadline = Some(at(6));
    assert_eq!(node.machine().ticks, []);
    assert!(!turn(&mut node, 19, []) && turn(&mut node, 20, []));
    assert_eq!((node.machine().ticks.len(), node.host().wires[0].deadline), (1, None));
    // Before it pauses, a node does what the machine has left to do.
    node.machine().background = 2;
    assert_eq!(node.pause(at(30), &[]), None);
    assert_eq!(node.pause(at(31), &[]), None);
    assert_eq!(node.pause(at(32), &[]), Some(Instant::NEVER));
    node.machine().deadline = Some(at(34));
    node.host_mut().wires[1].deadline = Some(at(33));
    assert_eq!(node.pause(at(32), &[]), Some(at(33)));
    node.resume();
    assert!(turn(&mut node, 34, []), "timers are checked although 20 µs have not passed");
    turn(&mut node, 60, [connect(A, "0.a;1.b"), call(A, 0)]);
    node.turn(at(61), &[]);
    assert_eq!(node.pause(at(62), &[]), Some(at(60).after(250 * MS)), "when the race goes on");
}

/// A timer of the machine becomes due between the last turn and the pause. The pause runs it, and
/// what it makes must be sent: `sprat get` once slept for ever with a try that was due and not
/// sent, after its coordinator had been killed.
#[test]
fn what_a_timer_makes_at_a_pause_is_sent() {
    let mut node = node(1);
    turn(&mut node, 0, []);
    node.machine().deadline = Some(at(5));
    assert_eq!(node.pause(at(6), &[]), None, "the machine may have output");
    assert_eq!(node.machine().ticks, [at(6)]);
    assert_eq!(node.pause(at(7), &[]), Some(Instant::NEVER));
}

#[test]
fn a_transport_that_is_not_due_is_not_polled() {
    let mut node = node(1);
    node.host_mut().asleep = true;
    turn(&mut node, 0, []);
    assert_eq!(node.host().wires.each_ref().map(|w| w.inputs), [1, 0]);
    turn(&mut node, 1, [connect(A, "0.a"), call(A, 0)]);
    node.host_mut().wires[0].answer(0);
    turn(&mut node, 2, []);
    assert_eq!(node.host().wires.each_ref().map(|w| w.inputs), [3, 1], "the first woke it");
}

#[test]
fn output_goes_on_while_a_transport_has_more() {
    let mut node = node(1);
    turn(&mut node, 0, []);
    let outputs = |node: &TestNode| node.host().wires.each_ref().map(|wire| wire.outputs);
    let before = outputs(&node);
    node.turn(at(1), &[]);
    assert_eq!(outputs(&node), before, "nothing happened");
    node.mark_unsent();
    node.host_mut().wires[1].more = 2;
    let slice = Slice { segment: 1, offset: 2, len: 3 };
    node.host_mut().wires[1].slices.push(slice);
    node.turn(at(2), &[]);
    node.turn(at(3), &[]);
    node.turn(at(4), &[]);
    assert_eq!(outputs(&node), [before[0], before[1] + 2]);
    assert_eq!(node.machine().released, [slice]);
}

/// Clients wait for it, and timers are checked more rarely.
#[test]
fn the_next_turn_takes_the_outcome_of_a_write() {
    let mut node = node(1);
    let persist = |seq| Output::Persist { seq, puts: vec![], deletes: vec![] };
    assert!(!node.is_awaiting());
    turn(&mut node, 0, [persist(2), persist(3)]);
    assert!(node.is_awaiting(), "an answer is under way");
    node.host_mut().written.push_back(Written::Durable(2));
    assert!(turn(&mut node, 1, []));
    assert!(node.machine().persisted == [2] && node.is_awaiting());
    node.host_mut().written.push_back(Written::Durable(3));
    assert!(turn(&mut node, 2, []) && !node.is_awaiting());
    for (seq, outcome) in [
        (4, Written::Refused { reason: "full".into(), durable: vec![] }),
        (5, Written::Failed("broken".into())),
    ] {
        turn(&mut node, 3, [persist(seq)]);
        node.host_mut().written.push_back(outcome);
        assert!(turn(&mut node, 4, []) && !node.is_awaiting());
    }
}

#[test]
fn writes_are_confirmed_refused_or_end_the_node() {
    let mut node = node(1);
    let persist = |seq| Output::Persist { seq, puts: vec![], deletes: vec![] };
    turn(&mut node, 0, [persist(1), persist(2), persist(3)]);
    assert_eq!(node.host().writes, [1, 2, 3]);
    assert_eq!(node.machine().persisted, [1], "this one needs no disk");
    node.host_mut().written.push_back(Written::Durable(2));
    let (reason, durable) = (String::from("full"), vec![]);
    node.host_mut().written.push_back(Written::Refused { reason, durable });
    assert!(turn(&mut node, 20, []));
    assert_eq!(node.machine().persisted, [1, 2]);
    assert_eq!(node.machine().refused, ["full"]);
    assert_eq!(node.take_stopped(), None);
    node.host_mut().written.push_back(Written::Failed("broken".into()));
    turn(&mut node, 40, []);
    assert_eq!(node.take_stopped().as_deref(), Some("broken"));
    turn(&mut node, 41, [Output::Stop { reason: "gone".into() }]);
    assert_eq!(node.take_stopped().as_deref(), Some("gone"));
}
