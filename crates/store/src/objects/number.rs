//! Numbers in objects: decimal text, as in Redis, so that a counter can be read as text and any
//! such text can be incremented.
//!
//! ```text
//! integer   0 | [-] 1..9 digits                          64 bits, two's complement
//! double    [+-] digits [. digits] [e [+-] digits]       at most LONGEST bytes, finite
//! ```
//!
//! Invariants: an integer has one text, and text of another form is no number. A double accepts any
//! decimal text and becomes the shortest text that reads as it, with an exponent in place of many
//! zeros. An infinity or NaN is never the value of an object.

use alloc::string::{String, ToString as _};

use crate::message::Status;
use crate::message::data::Amount;

/// The longest text of a number that is accepted as a double, in bytes. It is longer than the
/// output of any program.
const LONGEST: usize = 400;
/// The least absolute value from which on a double is written with an exponent.
const LARGE: f64 = 1e16;
/// The absolute value below which a double is written with an exponent.
const SMALL: f64 = 1e-5;

/// Adds `amount` to an object of `value` (a missing one counts as zero). Returns the text of the
/// sum and its 64 bits.
///
/// # Errors
/// The verdict: [`Status::NotANumber`] or [`Status::Overflow`].
pub fn add(value: Option<&[u8]>, amount: Amount) -> Result<(String, [u8; 8]), Status> {
    let value = value.unwrap_or(b"0");
    match amount {
        Amount::Integer(amount) => {
            let sum = integer(value)
                .ok_or(Status::NotANumber)?
                .checked_add(amount)
                .ok_or(Status::Overflow)?;
            Ok((sum.to_string(), sum.to_be_bytes()))
        }
        Amount::Double(amount) => {
            let sum = double(value).ok_or(Status::NotANumber)? + amount;
            if sum.is_finite() {
                Ok((double_text(sum), sum.to_be_bytes()))
            } else {
                Err(Status::Overflow)
            }
        }
    }
}

/// Returns the integer that `text` denotes.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let is_plain = matches!(text, [b'0'] | [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..]);
    core::str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// Returns the double that `text` denotes.
#[must_use]
pub fn double(text: &[u8]) -> Option<f64> {
    let is_decimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    if text.len() > LONGEST || !text.iter().all(is_decimal) {
        return None;
    }
    core::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the shortest text that reads as `number`, which is finite.
#[must_use]
pub fn double_text(number: f64) -> String {
    // There is one zero.
    let number = if number == 0.0 { 0.0 } else { number };
    let size = number.abs();
    if size == 0.0 || (SMALL..LARGE).contains(&size) {
        number.to_string()
    } else {
        alloc::format!("{number:e}")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_have_one_text() {
        for number in [0, 1, -1, 42, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
        let others: [&[u8]; 19] = [
            b"",
            b"-",
            b"+1",
            b"-0",
            b"00",
            b"01",
            b"-01",
            b" 1",
            b"1 ",
            b"1\n",
            b"1.0",
            b"1e3",
            b"0x1",
            b"abcdefgh",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"99999999999999999999999",
            b"1\0",
            "١".as_bytes(),
        ];
        for text in others {
            assert_eq!(integer(text), None, "{text:?}");
        }
    }

    #[test]
    fn doubles_are_decimal_and_finite() {
        for (text, number) in [
            ("0", 0.0),
            ("-0", 0.0),
            ("1", 1.0),
            ("+1.50", 1.5),
            ("-2.25", -2.25),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1E-3", 0.001),
            ("179e306", 179e306),
        ] {
            assert_eq!(double(text.as_bytes()), Some(number), "{text}");
        }
        for text in [
            "", ".", "e3", "1e", "--1", "1e999", "-1e999", "inf", "nan", "NaN", "infinity", "1,5",
            " 1", "0x1p3",
        ] {
            assert_eq!(double(text.as_bytes()), None, "{text}");
        }
        assert_eq!(double(&[b'1'; LONGEST + 1]), None);
        assert_eq!(double(&[b'0'; LONGEST]), Some(0.0));
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (-1.75, "-1.75"),
            (1e15, "1000000000000000"),
            (1e16, "1e16"),
            (0.00001, "0.00001"),
            (1.5e-7, "1.5e-7"),
            (f64::MAX, "1.7976931348623157e308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(double_text(number), text);
        }
    }

    #[test]
    fn sums_that_do_not_fit_are_refused() {
        let integer =
            |value: &str, by| add(Some(value.as_bytes()), Amount::Integer(by)).map(|sum| sum.0);
        assert_eq!(add(None, Amount::Integer(-5)), Ok(("-5".into(), (-5i64).to_be_bytes())));
        assert_eq!(integer("42", 1), Ok("43".into()));
        assert_eq!(integer("9223372036854775806", 1), Ok(i64::MAX.to_string()));
        assert_eq!(integer("9223372036854775807", 1), Err(Status::Overflow));
        assert_eq!(integer("-9223372036854775808", -1), Err(Status::Overflow));
        assert_eq!(integer("1.5", 1), Err(Status::NotANumber));
        assert_eq!(integer("abcdefgh", 1), Err(Status::NotANumber));
        let double =
            |value: &str, by| add(Some(value.as_bytes()), Amount::Double(by)).map(|sum| sum.0);
        assert_eq!(add(None, Amount::Double(0.5)), Ok(("0.5".into(), 0.5f64.to_be_bytes())));
        assert_eq!(double("42", 0.5), Ok("42.5".into()));
        assert_eq!(double("0.5", 0.5), Ok("1".into()), "an integer again");
        assert_eq!(double("1.7e308", 1.7e308), Err(Status::Overflow));
        for amount in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(
                double("1", amount),
                Err(Status::Overflow),
                "and never the value of an object"
            );
        }
        assert_eq!(double("inf", 1.0), Err(Status::NotANumber));
    }

    proptest! {
        #[test]
        fn every_number_reads_as_what_was_written(number: i64, bits: u64) {
            prop_assert_eq!(integer(number.to_string().as_bytes()), Some(number));
            let number = f64::from_bits(bits);
            if number.is_finite() {
                let text = double_text(number);
                prop_assert!(text.len() <= 25, "{text}");
                prop_assert_eq!(double(text.as_bytes()), Some(number));
            }
        }

        #[test]
        fn arbitrary_text(text: Vec<u8>) {
            if let Some(number) = integer(&text) {
                prop_assert_eq!(number.to_string().into_bytes(), text.clone());
            }
            let _ = double(&text);
        }
    }
}
