//! Fuzzes the messages between clients and masters: no bytes panic, and a parsed message stays the
//! same when it is emitted and parsed again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::message::data::Amount;
use sprat_store::message::list::objects_reply;
use sprat_store::message::multi::Parts;
use sprat_store::message::transaction::{self, Answered, Decide};
use sprat_store::ops::{
    Append, ChangeIndexed, Commit, Enumerate, Increment, Kind, LookUp, Multi, Operation as _,
    Prepare, Read, ReadExpiring, Remove, Request, Scan, Swap, Touch, Validate, Write,
};
use sprat_store::types::TableId;

macro_rules! same {
    ($bytes:expr, $($message:ident)*) => { $(
        if let Ok(message) = $message::parse($bytes) {
            // Compared as bytes, since a double that is no number does not equal itself.
            let written = message.emit();
            let again = $message::parse(&written).map(|message| message.emit());
            assert_eq!(again.as_ref(), Ok(&written));
        }
    )* };
}

fuzz_target!(|bytes: &[u8]| {
    same!(bytes, LookUp Read ReadExpiring Write Append Touch Swap Remove Increment Enumerate Multi);
    same!(bytes, ChangeIndexed Prepare Commit Validate Decide);
    for parts in 1..4 {
        if let Ok(Answered::Done(answers)) = transaction::answered(bytes, parts) {
            assert_eq!(answers.len(), parts);
        }
    }
    let amounts = [Amount::Integer(1), Amount::Double(1.0)].map(Request::Increment);
    let others = [
        Request::Append(()),
        Request::Read(()),
        Request::ReadExpiring(()),
        Request::LookUp(()),
        Request::ChangeIndexed((TableId(8), Kind::Remove)),
        Request::Write(None),
        Request::Touch(None),
        Request::Swap(None),
        Request::Echo(()),
        Request::Stats(()),
    ];
    for request in others.into_iter().chain(amounts).chain([Request::Enumerate(Scan::default())]) {
        let _ = request.completion(bytes);
    }
    if let Ok(parts) = Parts::of_reply(bytes) {
        let length: usize = parts.map(|part| 4 + part.len()).sum();
        assert_eq!(4 + length, bytes.len());
    }
    if let Ok(objects) = objects_reply(bytes) {
        let length: usize = objects.map(|it| it.key.len() + it.value.len()).sum();
        assert!(length <= bytes.len());
    }
});
