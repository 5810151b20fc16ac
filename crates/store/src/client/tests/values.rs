//! Tests of the long values of writes: the place of their bytes, and the time for which they are
//! kept.

use sprat_proto::rpc::{Message, Slice};

use super::super::values::LONG;
use super::*;

/// Returns the message of the client's next call to a master, with the call's tag.
fn message(s: &mut Script) -> (u64, Message) {
    while let Some(output) = s.client.output(s.now) {
        if let Output::Call { link: Link(1), tag, message, .. } = output {
            return (tag, message);
        }
    }
    panic!("no call to a master");
}

/// Makes a value of `len` bytes with a pattern.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8).collect()
}

/// Fails the call `tag` for a cause that leads to another try, and moves time to that try.
fn fail(s: &mut Script, tag: u64) {
    assert!(s.client.response(s.now, tag, Err(RpcError::Busy { retry_after_ns: MS })).is_none());
    s.tick();
}

#[test]
fn a_message_names_a_long_value_and_has_a_short_one() {
    for (len, slices) in [(LONG, 0), (LONG + 1, 1)] {
        let mut s = Script::leasing();
        s.client.write(T, b"key", &value(len), NO_RULES, s.far());
        let (tag, message) = message(&mut s);
        assert_eq!(message.slices.len(), slices);
        let mut bytes = message.bytes;
        message.slices.iter().for_each(|&slice| bytes.extend_from_slice(s.client.bytes(slice)));
        let write = Write::parse(&bytes).unwrap();
        assert!(write.key == b"key" && write.value == value(len));
        assert!(s.client.response(s.now, tag, Ok(Payload::Owned(ok(1, b"")))).is_some());
        assert_eq!(s.client.values.used(), slices, "the transport has the slice");
        message.slices.into_iter().for_each(|slice| s.client.released(slice));
        assert_eq!(s.client.values.used(), 0);
    }
}

#[test]
fn a_long_value_stays_until_the_operation_and_all_its_messages_have_ended() {
    let mut s = Script::leasing();
    let bytes = value(10_000);
    let at = bytes.as_ptr();
    let op = s.client.write_owned(T, b"key", bytes, NO_RULES, s.far());
    let (tag, first) = message(&mut s);
    fail(&mut s, tag);
    s.client.released(first.slices[0]);
    // Another try names it again, and a cancelled operation leaves it to the transport.
    let (_, second) = message(&mut s);
    assert_eq!(first.slices, second.slices);
    assert!(s.client.cancel(op));
    let slice = second.slices[0];
    assert_eq!(s.client.bytes(slice).as_ptr(), at, "it was not copied");
    assert!(
        s.client.bytes(Slice { offset: 9_000, len: 1_000, ..slice }) == &value(10_000)[9_000..]
    );
    s.client.released(slice);
    assert_eq!(s.client.values.used(), 0);
}

#[test]
fn a_value_that_is_lent_is_copied_only_if_a_message_outlives_the_loan() {
    let mut s = Script::leasing();
    for outlives in [true, false] {
        let lent = value(10_000);
        s.client.write_lent(T, b"key", &lent, NO_RULES, s.far());
        assert!(s.client.is_lending());
        let (tag, first) = message(&mut s);
        fail(&mut s, tag);
        s.client.released(first.slices[0]);
        let (tag, second) = message(&mut s);
        let slice = second.slices[0];
        assert_eq!((slice, slice.segment), (first.slices[0], Slice::LENT));
        assert!(s.client.response(s.now, tag, Ok(Payload::Owned(ok(1, b"")))).is_some());
        if !outlives {
            s.client.released(slice);
        }
        s.client.give_back(&lent);
        assert!(!s.client.is_lending());
        if outlives {
            assert!(s.client.bytes(slice) == lent);
            // Meanwhile the name is taken: the next value is copied.
            s.client.write_lent(T, b"key", &lent, NO_RULES, s.far());
            assert!(!s.client.is_lending());
            let write = s.call();
            assert!(Write::parse(&write.request).unwrap().value == lent);
            s.reply(&write, ok(2, b""));
            s.client.released(slice);
        }
        assert_eq!(s.client.values.used(), 0);
    }
}

#[test]
fn a_long_write_that_is_refused_keeps_nothing() {
    let mut s = Script::leasing();
    s.client.config.max_ops = 0;
    let lent = value(10_000);
    s.client.write(T, b"key", &lent, NO_RULES, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::TooManyOps);
    s.client.write_lent(T, b"key", &lent, NO_RULES, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::TooManyOps);
    s.client.give_back(&lent);
    assert_eq!(s.client.values.used(), 0);
}
