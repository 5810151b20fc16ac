//! Tests of files of records: round trips, and every way in which a line can be malformed.

use std::io::Cursor;

use super::*;

fn read_all(format: Format, bytes: &[u8]) -> Vec<Result<(u64, Record), Bad>> {
    let mut reader = reader(format, Cursor::new(bytes));
    let mut all = Vec::new();
    loop {
        match reader.next().expect("reads from memory") {
            Next::Record(line, record) => all.push(Ok((line, record))),
            Next::Bad(bad) => all.push(Err(bad)),
            Next::End => return all,
        }
    }
}

fn written(format: Format, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = writer(format, &mut bytes);
    records.iter().try_for_each(|record| writer.write(record)).expect("writes to memory");
    writer.finish().expect("writes to memory");
    drop(writer);
    bytes
}

fn record(key: &[u8], value: &[u8]) -> Record {
    Record { key: key.to_vec(), value: value.to_vec(), expires_ms: None }
}

/// Returns the faults of the malformed records in `text`, by line.
fn bad(format: Format, text: &str) -> Vec<(u64, String)> {
    read_all(format, text.as_bytes())
        .into_iter()
        .filter_map(Result::err)
        .map(|b| (b.line, b.why))
        .collect()
}

#[test]
fn what_is_written_reads_back() {
    let every_byte: Vec<u8> = (0..=255).collect();
    let records = [
        record(b"dune", "Frank Herbert, \"1965\" – ü".as_bytes()),
        record(b"", b""),
        record(b"lines", b"a\nb\r\nc\rd\n"),
        record(&every_byte, &every_byte),
        record(b"\xff", b"text"),
        record(b"text", b"\xff"),
        record(b"controls", b"\x00\x01\x7f\t"),
        record(b" spaces ", b" ,;' "),
        record(&[b'k'; MAX_KEY], &[0x01; MAX_VALUE]),
    ];
    for format in [Format::Jsonl, Format::Csv] {
        let bytes = written(format, &records);
        let back: Vec<Record> =
            read_all(format, &bytes).into_iter().map(|r| r.expect("is well formed").1).collect();
        assert_eq!(back, records, "{format:?}");
        assert!(std::str::from_utf8(&bytes).is_ok(), "a file of text: {format:?}");
        assert_eq!(
            read_all(format, &written(format, &[])),
            [],
            "{format:?}: no records is a file too"
        );
    }
}

#[test]
fn json_lines_look_as_documented() {
    let text =
        written(Format::Jsonl, &[record(b"dune", b"Frank Herbert"), record(b"\xff", b"\x00\xff")]);
    let text = String::from_utf8(text).expect("is text");
    assert_eq!(
        text,
        "{\"key\":\"dune\",\"value\":\"Frank \
         Herbert\"}\n{\"key64\":\"/w==\",\"value64\":\"AP8=\"}\n"
    );
}

#[test]
fn csv_looks_as_documented() {
    let text = written(Format::Csv, &[record(b"dune", b"Frank, Herbert"), record(b"\xff", b"x")]);
    let text = String::from_utf8(text).expect("is text");
    assert_eq!(text, "key,value,key64,value64,expires_ms\ndune,\"Frank, Herbert\",,,\n,x,/w==,,\n");
}

/// The end of a lifetime comes back as it was written; one that is no time is malformed.
#[test]
fn ends_of_lifetimes() {
    let expiring = Record { expires_ms: Some(1_700_000_000_000), ..record(b"k", b"v") };
    let both = [expiring, record(b"k", b"w")];
    for (format, golden) in [
        (
            Format::Jsonl,
            "{\"key\":\"k\",\"value\":\"v\",\"expires_ms\":1700000000000}\n\
             {\"key\":\"k\",\"value\":\"w\"}\n",
        ),
        (Format::Csv, "key,value,key64,value64,expires_ms\nk,v,,,1700000000000\nk,w,,,\n"),
    ] {
        let text = written(format, &both);
        assert_eq!(String::from_utf8_lossy(&text), golden);
        let back: Vec<_> = read_all(format, &text).into_iter().map(|it| it.unwrap().1).collect();
        assert_eq!(back, both);
    }
    let late = format!("{{\"key\":\"\",\"value\":\"\",\"expires_ms\":{}}}\n", 1_u64 << 48);
    assert!(bad(Format::Jsonl, &late)[0].1.contains("the limit is"), "{late}");
    let text = "{\"key\":\"\",\"value\":\"\",\"expires_ms\":\"soon\"}\n";
    assert!(bad(Format::Jsonl, text)[0].1.contains("expected u64"));
    let text = "key,value,expires_ms\n,,soon\n";
    assert_eq!(bad(Format::Csv, text), [(2, "expires_ms is no time in milliseconds: soon".into())]);
}

#[test]
fn lines_keep_their_numbers() {
    let text = "\n{\"key\":\"a\",\"value\":\"1\"}\n\n  \
                \nnonsense\n{\"value\":\"2\",\"more\":[1,{}],\"key\":\"b\"}";
    let all = read_all(Format::Jsonl, text.as_bytes());
    assert_eq!(all[0], Ok((2, record(b"a", b"1"))));
    assert_eq!(all[1].as_ref().map_err(|b| b.line), Err(5));
    assert_eq!(all[2], Ok((6, record(b"b", b"2"))), "the last line needs no end");
    assert_eq!(all.len(), 3);

    let text = "key,value\na,\"1\n2\"\nb\nc,3\n";
    let all = read_all(Format::Csv, text.as_bytes());
    assert_eq!(all[0], Ok((2, record(b"a", b"1\n2"))));
    assert_eq!(all[1], Err(Bad { line: 4, why: "1 fields, but the header has 2".into() }));
    assert_eq!(all[2], Ok((5, record(b"c", b"3"))));
}

#[test]
fn malformed_json_says_why() {
    let text = "{\"key\":\"a\"}\n{\"value\":\"a\"}\n{\"key\":1,\"value\":\"\"}\n[]\n\
                {\"key\":\"a\",\"key64\":\"YQ==\",\"value\":\"\"}\n\
                {\"key64\":\"?\",\"value\":\"\"}\n{\"key\":\"a\",\"key\":\"b\",\"value\":\"\"}\n\
                {\"key\":\"a\",\"value\":\"\"} x\n{\"key\":\"a\",\"val";
    let bad = bad(Format::Jsonl, text);
    let expected = [
        "neither value nor value64",
        "neither key nor key64",
        "invalid type: integer `1`, expected a string",
        "not a JSON object",
        "both key and key64",
        "key64 is not base64",
        "duplicate field `key`",
        "trailing characters",
        "EOF while parsing",
    ];
    assert_eq!(bad.len(), expected.len(), "{bad:?}");
    for ((line, why), (number, part)) in bad.iter().zip((1..).zip(expected)) {
        assert_eq!(*line, number);
        assert!(why.contains(part), "line {line}: {why}");
        assert!(!why.contains("at line"), "line {line}: {why}");
    }
    assert_eq!(read_all(Format::Jsonl, b"{\"key\":\"\xff\",\"value\":\"\"}\n").len(), 1);
    assert!(read_all(Format::Jsonl, b"\xff\xfe\n")[0].is_err());
}

#[test]
fn what_is_too_long_is_malformed_and_passed_over() {
    let key = format!("{{\"key\":\"{}\",\"value\":\"\"}}\n", "k".repeat(MAX_KEY + 1));
    let value = format!("{{\"key\":\"\",\"value\":\"{}\"}}\n", "v".repeat(MAX_VALUE + 1));
    let line = format!("{}\n", "x".repeat(LINE_LIMIT + 5));
    let exact = format!("{}\n", "x".repeat(LINE_LIMIT));
    let text = format!("{key}{value}{line}{exact}{{\"key\":\"a\",\"value\":\"1\"}}");
    let all = read_all(Format::Jsonl, text.as_bytes());
    let whys: Vec<String> =
        all.iter().filter_map(|r| r.as_ref().err()).map(ToString::to_string).collect();
    assert!(whys[0].contains("line 1: the key has 65537 bytes, the limit is 65536"), "{}", whys[0]);
    assert!(
        whys[1].contains("line 2: the value has 1048577 bytes, the limit is 1048576"),
        "{}",
        whys[1]
    );
    assert!(whys[2].contains("line 3: longer than"), "{}", whys[2]);
    assert!(whys[3].contains("line 4:"), "{}", whys[3]);
    assert_eq!(all[4], Ok((5, record(b"a", b"1"))));
}

#[test]
fn a_csv_file_needs_its_columns() {
    for text in ["", "a,b\n1,2\n", "key\nx\n", "value,value64\n"] {
        let error = reader(Format::Csv, Cursor::new(text.as_bytes())).next().expect_err(text);
        assert!(error.to_string().contains("line 1"), "{error}");
    }
    let text = "value64,ignored,key\nAP8=,x,k\n,x,empty\n";
    let all = read_all(Format::Csv, text.as_bytes());
    assert_eq!(all[0], Ok((2, record(b"k", b"\x00\xff"))));
    assert_eq!(
        all[1],
        Ok((3, record(b"empty", b""))),
        "the only column of values, and it is empty"
    );
    let both = bad(Format::Csv, "key,key64,value\na,YQ==,1\n");
    assert_eq!(both, [(2, "both key and key64 are given".to_owned())]);
    let broken = read_all(Format::Csv, b"key,value\na,\xff\nb,2\n");
    assert!(broken[0].is_err() && broken[1].is_ok(), "{broken:?}");
}

#[test]
fn a_column_that_is_named_twice_is_refused() {
    for name in ["key", "value64"] {
        let text = format!("key,value,key64,value64,{name}\na,1,,,b\n");
        let error = reader(Format::Csv, Cursor::new(text.as_bytes()))
            .next()
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains(&format!("line 1: the header names the column {name} twice")),
            "{error}"
        );
    }
    let spare = read_all(Format::Csv, b"key,value,,note,,note\na,1,x,y,z,w\n");
    assert_eq!(spare, [Ok((2, record(b"a", b"1")))], "columns that are ignored may have any name");
}

#[test]
fn a_byte_order_mark_at_the_start_is_no_part_of_the_text() {
    let json = "\u{feff}{\"key\":\"a\",\"value\":\"\u{feff}1\"}\n";
    for (format, text) in [(Format::Jsonl, json), (Format::Csv, "\u{feff}key,value\na,\u{feff}1\n")]
    {
        let all: Vec<_> =
            read_all(format, text.as_bytes()).into_iter().map(|r| r.map(|(_, r)| r)).collect();
        assert_eq!(all, [Ok(record(b"a", "\u{feff}1".as_bytes()))], "{format:?}");
    }
    let later = format!("{json}\u{feff}{{\"key\":\"b\",\"value\":\"2\"}}\n");
    assert_eq!(bad(Format::Jsonl, &later).len(), 1, "it is one at the start alone");
}

#[test]
fn an_open_quote_does_not_swallow_the_file() {
    let text = format!("key,value\na,1\nb,\"{}", "x\n".repeat(LINE_LIMIT));
    let mut reader = reader(Format::Csv, Cursor::new(text.as_bytes()));
    assert!(matches!(reader.next(), Ok(Next::Record(2, _))));
    let error = reader.next().expect_err("the record never ends").to_string();
    assert!(error.contains("line 3") && error.contains("quote"), "{error}");
}

#[test]
fn the_name_tells_the_format() {
    for (name, format) in [
        ("a.jsonl", Format::Jsonl),
        ("a.NDJSON", Format::Jsonl),
        ("a.json", Format::Jsonl),
        ("x/a.csv", Format::Csv),
    ] {
        assert_eq!(format_of(Path::new(name), None).ok(), Some(format), "{name}");
    }
    assert!(format_of(Path::new("-"), None).is_err());
    assert_eq!(format_of(Path::new("-"), Some(Format::Csv)).ok(), Some(Format::Csv));
}
