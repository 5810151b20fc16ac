//! Messages between clients and masters: no bytes panic, and whatever parses stays the same when it is written and parsed
//! again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::message::data::{self, *};

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
    same!(bytes, Read Write Remove Increment Enumerate);
    let _ = data::read_reply(bytes);
    let _ = data::mutation_reply(bytes);
    let _ = data::increment_reply(bytes);
    let _ = data::echo_reply(bytes);
    let _ = data::stats_reply(bytes);
    if let Ok(objects) = data::objects_reply(bytes) {
        let length: usize = objects.map(|(key, _, value)| key.len() + value.len()).sum();
        assert!(length <= bytes.len());
    }
});
