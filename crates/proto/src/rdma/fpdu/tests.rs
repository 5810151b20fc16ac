//! FPDUs: the RFC's samples, every rule, random streams against an oracle.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::wire::checksum::crc32c;

/// Memory of one region.
struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        let at = span.offset as usize;
        self.0.get_mut(at..at + bytes.len()).ok_or(Unmapped)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let at = span.offset as usize;
        bytes.copy_from_slice(self.0.get(at..at + bytes.len()).ok_or(Unmapped)?);
        Ok(())
    }

    fn atomic(&mut self, _: Span, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }
}

/// The sample of RFC 5044 section 4.4: an untagged header with this MSN, and 24 zeros.
fn sample(msn: u8) -> [u8; 42] {
    let mut ulpdu = [0; 42];
    (ulpdu[0], ulpdu[1], ulpdu[13]) = (0x41, 0x43, msn);
    ulpdu
}

#[test]
fn f3_both_samples_of_rfc_5044() {
    let mut framer = Framer::new(Some(crc32c), true);
    let mut record = Record::default();
    let mut none = Bytes(vec![]);
    let mut put = |framer: &mut Framer, ulpdu: &[u8], record: &mut Record| {
        framer.frame(&ulpdu[..18], &[Piece::Bytes(&ulpdu[18..])], &mut none, record).unwrap();
    };
    put(&mut framer, &sample(1), &mut record);
    let first = [&[0, 0, 0, 0, 0, 42][..], &sample(1), &[0x52, 0x23, 0x99, 0x83]].concat();
    assert_eq!(record.bytes, first);

    // The second follows an FPDU that ends at 492.
    let mut framer = Framer::new(Some(crc32c), true);
    record.clear();
    let long = [[0x41, 0x43].as_slice(), &[0; 480]].concat();
    put(&mut framer, &long, &mut record);
    assert_eq!(record.len(), 492);
    put(&mut framer, &sample(2), &mut record);
    let (head, tail) = (&sample(2)[..18], &sample(2)[18..]);
    let second = [&[0, 42], head, &[0, 0, 0, 0x14], tail, &[0x84, 0x92, 0x58, 0x98]].concat();
    assert_eq!(record.bytes[492..], second);

    let mut deframer = Deframer::new(Some(crc32c), true);
    let mut at = 0;
    let mut scratch = Vec::new();
    for expected in [&long[..], &sample(2)] {
        let step = deframer.next(&record.bytes[at..], &mut scratch);
        let Step::Piece { header: Some(header), payload, rest: 0, last: true, consumed } = step else {
            panic!("{step:?}");
        };
        assert_eq!([header, payload].concat(), expected);
        at += consumed;
    }
    assert_eq!(at, record.len());
}
