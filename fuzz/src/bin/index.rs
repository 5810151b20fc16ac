//! Fuzzes the catalog, the nodes, edits of leaves and look-ups in them, and values with packed
//! keys: no bytes make the parsers panic, an edited leaf is intact if it was, an answer to a
//! look-up is intact, and what was packed comes back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::btree::edit::Edits;
use sprat_store::index::{Source, answer_query, is_intact, is_intact_answer, pack, unpack};

fuzz_target!(|bytes: &[u8]| {
    let _ = is_intact(bytes);
    let _ = is_intact_answer(bytes);
    let [a, b, c, ..] = *bytes else { return };
    if let Some((leaf, query)) = bytes[1..].split_at_checked(a.into())
        && let Ok(answer) = answer_query(leaf, query)
    {
        assert!(is_intact_answer(&answer));
    }
    if let Some((leaf, edits)) = bytes[1..].split_at_checked(a.into())
        && let Ok(edits) = Edits::parse(edits)
        && let Ok(Some(edited)) = edits.apply(leaf)
        // The entries that stay are copied as they are.
        && is_intact(leaf)
    {
        assert!(is_intact(&edited));
        let again = edits.apply(&edited).expect("the same edits");
        assert!(again.is_none_or(|again| again == edited));
    }
    for source in [
        Source::Key,
        Source::Bytes { at: a.into(), len: b.into() },
        Source::Field { number: a.into(), separator: c },
        Source::Packed { number: a.into() },
    ] {
        let _ = source.key_of(&bytes[..2], bytes);
    }
    if let Some((keys, value)) = unpack(bytes)
        && let Ok(packed) = pack(&keys, value)
    {
        assert_eq!(packed, bytes);
    }
});
