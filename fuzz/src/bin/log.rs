//! Fuzzes log entries: no bytes make the parser, the seal or a replay panic, and a sealed entry is
//! replayed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::checksum::crc32c;
use sprat_store::objects::entry::{self, Entry};
use sprat_store::objects::record::{Record, RecordKey};

fuzz_target!(|bytes: &[u8]| {
    let _ = entry::replay(crc32c, bytes).count();
    if let Some(key) = RecordKey::parse(bytes) {
        assert_eq!(key.bytes(), bytes);
    }
    if let Some(record) = Record::parse(bytes) {
        assert_eq!(Record::parse(&record.bytes()), Some(record));
    }
    let mut sealed = bytes.to_vec();
    let Some(len) = entry::seal(crc32c, 0, &mut sealed) else { return };
    assert!(len <= sealed.len());
    let first = entry::parse(&sealed).expect("what was sealed").0;
    let is_header = matches!(first, Entry::Header(_));
    assert_eq!(entry::replay(crc32c, &sealed).next(), is_header.then_some((0, first)));
    let _ = entry::replay(crc32c, &sealed).count();
    if let Entry::Object(object, _) = first {
        assert_eq!(entry::object(&sealed), object);
        let mut copy = vec![0; object.entry_len()];
        entry::copy(&mut copy, &sealed, object.older);
        assert_eq!(entry::parse(&copy), Some((Entry::Object(object, None), copy.len())));
    }
    let parsed = entry::parse(&sealed).map(|(first, len)| (format!("{first:?}"), len));
    entry::mark_dead(&mut sealed);
    entry::mark_record_dead(&mut sealed);
    let head = entry::Head::of(&sealed).expect("what was sealed");
    assert_eq!((head.is_all_dead(), head.entry_len()), (true, len));
    assert_eq!(entry::parse(&sealed).map(|(first, len)| (format!("{first:?}"), len)), parsed);
});
