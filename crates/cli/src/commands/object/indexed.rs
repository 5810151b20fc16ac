//! Swaps, appends and increments in tables with indexes. Each reads the object, and writes it with
//! its entries if no other change came between.

use std::time::Duration;

use serde_json::Value;
use sprat::kv::{Condition, Error, IndexError, IndexedTable, Object, Version};
use sprat_store::message::Status;
use sprat_store::message::data::Amount;
use sprat_store::objects::number::add;

/// Writes an object. Returns its version, and the object before.
pub(super) fn swap(
    indexed: &IndexedTable<'_>,
    key: &[u8],
    (value, lifetime): (&[u8], Option<Duration>),
    condition: Condition,
) -> Result<(Version, Option<Object>), IndexError> {
    let mut before = None;
    let version = indexed.update_if(key, condition, |object, _| {
        before = object.cloned();
        Some((value.to_vec(), lifetime))
    })?;
    Ok((version.unwrap_or_default(), before))
}

/// Adds bytes to the end of an object's value. Returns the new length and version.
pub(super) fn append(
    indexed: &IndexedTable<'_>,
    key: &[u8],
    bytes: &[u8],
    condition: Condition,
) -> Result<(u64, Version), IndexError> {
    let mut length = 0;
    let version = indexed.update_if(key, condition, |object, rest| {
        let before = object.map_or(&[][..], |object| &object.value);
        let value = [before, bytes].concat();
        length = value.len() as u64;
        Some((value, rest))
    })?;
    Ok((length, version.unwrap_or_default()))
}

/// Adds to an object that is a number. Returns the sum, its text and the new version.
pub(super) fn increment(
    indexed: &IndexedTable<'_>,
    key: &[u8],
    by: Amount,
    condition: Condition,
) -> Result<(Value, String, Version), IndexError> {
    let mut outcome = Ok((Value::Null, String::new()));
    let version = indexed.update_if(key, condition, |object, rest| {
        let version = object.map_or(Version(0), |object| object.version);
        outcome = add(object.map(|object| &object.value[..]), by)
            .map(|(text, bits)| {
                let sum = match by {
                    Amount::Integer(_) => Value::from(i64::from_be_bytes(bits)),
                    Amount::Double(_) => Value::from(f64::from_be_bytes(bits)),
                };
                (sum, text)
            })
            .map_err(|why| match why {
                Status::Overflow => Error::Overflow(version),
                _ => Error::NotANumber(version),
            });
        let (_, text) = outcome.as_ref().ok()?;
        Some((text.clone().into_bytes(), rest))
    })?;
    let (sum, text) = outcome?;
    Ok((sum, text, version.unwrap_or_default()))
}
