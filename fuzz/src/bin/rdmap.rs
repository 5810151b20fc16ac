//! Fuzzes RDMAP's messages: no bytes panic; a message that parses is written back as the same
//! bytes, except for reserved bits and fields that an operation does not use; a Terminate that we
//! would send is parsed with the same meaning.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::wire::rdmap::{
    AtomicOp, AtomicRequest, AtomicResponse, Cause, IMMEDIATE, Offending, ReadRequest, Terminate,
    parse_immediate,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = ReadRequest::parse(bytes) {
        assert_eq!(request.emit(), bytes);
        let rest = request.after(u32::from(bytes[0]));
        assert!(rest.size <= request.size && rest.source_stag == request.source_stag);
    }
    if let Ok(request) = AtomicRequest::parse(bytes) {
        let again = request.emit();
        let compares = matches!(request.op, AtomicOp::CompareSwap { .. });
        let used = if compares { bytes.len() } else { 36 };
        assert_eq!((again[3], &again[4..used]), (bytes[3] & 0x0f, &bytes[4..used]));
        assert_eq!(AtomicRequest::parse(&again), Ok(request));
        let _ = request.op.apply(request.to);
    }
    if let Ok(response) = AtomicResponse::parse(bytes) {
        assert_eq!(response.emit(), bytes);
    }
    assert_eq!(parse_immediate(bytes).is_ok(), bytes.len() == IMMEDIATE);
    terminates(bytes);
});

fn terminates(bytes: &[u8]) {
    let Some(terminate) = Terminate::parse(bytes) else {
        assert!(bytes.len() < 4);
        return;
    };
    // What came may be cut short or in siw's order: what we make of it is neither.
    let cause = terminate.cause;
    assert!(terminate.or.is_none_or(|or| or.name().is_some() && cause.name().is_some()));
    let again = Terminate::emit(cause, terminate.about.as_ref());
    assert_eq!(again[..2], [cause.layer << 4 | cause.etype, cause.code]);
    let about = terminate.about.filter(|about| cause.shows_header() && !about.header.is_empty());
    let about =
        about.map(|a| Offending { read: a.read.filter(|_| cause.layer == Cause::RDMAP), ..a });
    let read = Terminate::parse(&again).expect("what we send is whole");
    if about.is_some() {
        assert_eq!(read, Terminate { cause, or: None, about });
    } else {
        // Without headers the other order may be the one that has a name.
        assert!(read.about.is_none() && (read.cause == cause || read.cause.name().is_some()));
    }
}
