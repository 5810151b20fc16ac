//! Tests of operations whose request the client sends as soon as they start.

use super::super::drive::DIRECT_MOST;
use super::*;

#[test]
fn an_operation_on_a_known_tablet_goes_out_directly_and_once() {
    let mut s = Script::knowing();
    let op = s.client.read(T, b"key", NO_RULES, s.far());
    let call = s.client.direct(s.now, op).expect("a call");
    assert_eq!((call.link.0, call.tag), (1, op.0));
    assert_eq!(opcode(&call.bytes), Ok(Opcode::Read));
    assert_eq!(s.calls().len(), 0, "it does not go out a second time");
    assert!(s.client.direct(s.now, op).is_none(), "nor a third time");
    let call = Call { link: 1, tag: call.tag, request: call.bytes, deadline: call.deadline };
    assert_eq!(s.reply(&call, ok(2, b"")).expect("an end").op, op);
}

#[test]
fn what_cannot_go_out_directly_goes_out_in_its_turn() {
    // Its tablet is not known yet.
    let mut s = Script::new();
    let op = s.client.read(T, b"key", NO_RULES, s.far());
    assert!(s.client.direct(s.now, op).is_none());
    assert_eq!(s.object_call().tag, op.0);
    // It is long: its buffer moves to the transport.
    let mut s = Script::leasing();
    let op = s.client.write(T, b"", &[0; DIRECT_MOST + 1], NO_RULES, s.far());
    assert!(s.client.direct(s.now, op).is_none());
    assert_eq!(s.call().tag, op.0);
    // It has ended already.
    let op = s.client.read(T, &[0; MAX_KEY + 1], NO_RULES, s.far());
    assert!(s.client.direct(s.now, op).is_none());
    assert_eq!(s.event().op, op);
}

#[test]
fn a_direct_call_that_fails_goes_out_again() {
    let mut s = Script::knowing();
    let op = s.client.read(T, b"key", NO_RULES, s.far());
    let call = s.client.direct(s.now, op).expect("a call");
    let (tag, bytes) = (call.tag, call.bytes.clone());
    // The failure may come before the bytes are given back.
    let busy = Err(RpcError::Busy { retry_after_ns: MS });
    assert!(s.client.response(s.now, tag, busy).is_none());
    s.client.sent(op, call.bytes);
    s.tick();
    let again = s.object_call();
    assert_eq!((again.tag, &again.request), (op.0, &bytes));
    assert_eq!(s.reply(&again, ok(2, b"")).expect("an end").op, op);
}
