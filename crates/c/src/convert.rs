//! Conversions between the structures of C and the types of the store's client.

use std::time::Duration;

use sprat::kv;

use crate::abi;
use crate::pointer::{Bytes, Memory, Structure};
use crate::status::Failure;

/// The settings of one operation.
pub(crate) struct Call {
    /// The time that the operation may take, if it is not the client's.
    pub(crate) timeout: Option<Duration>,
    /// The condition of the operation.
    pub(crate) condition: kv::Condition,
}

impl Call {
    /// Makes the settings of what C passed.
    #[inline]
    pub(crate) fn new(options: &Structure<abi::OperationOptions>) -> Result<Self, Failure> {
        let options = options.copied("sprat_operation_options")?;
        let condition = condition(options.condition)?;
        Ok(Self { timeout: milliseconds(options.timeout_ms), condition })
    }

    /// Returns the settings of an operation that takes none: it may take the client's time.
    pub(crate) fn of_client() -> Self {
        Self { timeout: None, condition: kv::Condition::always() }
    }

    /// Makes the settings of a multi-operation, whose parts have the conditions.
    pub(crate) fn of_parts(options: &Structure<abi::OperationOptions>) -> Result<Self, Failure> {
        Self::unconditional(options, "a multi-operation has a condition; set those of parts")
    }

    /// Makes the settings of an operation that has no condition. `otherwise` describes one.
    pub(crate) fn unconditional(
        options: &Structure<abi::OperationOptions>,
        otherwise: &str,
    ) -> Result<Self, Failure> {
        let call = Self::new(options)?;
        if call.condition != kv::Condition::always() {
            return Err(Failure::invalid(otherwise));
        }
        Ok(call)
    }
}

/// Returns a time in milliseconds, or `None` for 0.
#[inline]
pub(crate) fn milliseconds(time: u64) -> Option<Duration> {
    (time != 0).then(|| Duration::from_millis(time))
}

/// Returns the condition that C describes.
#[inline]
pub(crate) fn condition(condition: abi::Condition) -> Result<kv::Condition, Failure> {
    let version = kv::Version(condition.version);
    if condition.reserved != 0 {
        return Err(Failure::invalid("the reserved field of a condition is not 0"));
    }
    Ok(match condition.kind {
        0 => kv::Condition::always(),
        1 => kv::Condition::if_absent(),
        2 => kv::Condition::if_exists(),
        3 => kv::Condition::if_version(version),
        4 => kv::Condition::if_newer_than(version),
        other => return Err(Failure::invalid(format!("no condition has the kind {other}"))),
    })
}

/// Returns the key that C lends.
#[inline]
pub(crate) fn key(key: &Bytes, length: usize) -> Result<&[u8], Failure> {
    key.of(length, kv::MAX_KEY, |length| kv::Error::KeyTooLong(length).into())
}

/// Returns the value that C lends.
#[inline]
pub(crate) fn value(value: &Bytes, length: usize) -> Result<&[u8], Failure> {
    value.of(length, kv::MAX_VALUE, |length| kv::Error::ValueTooLong(length).into())
}

/// Returns the result of an operation that has only a version.
#[inline]
pub(crate) fn versioned(version: kv::Version) -> abi::Result {
    abi::Result { version: version.0, ..abi::Result::default() }
}

/// Returns the result of an increment of an integer.
pub(crate) fn integer(version: kv::Version, sum: i64) -> abi::Result {
    abi::Result { integer: sum, ..versioned(version) }
}

/// Returns the result of an increment of a double.
pub(crate) fn real(version: kv::Version, sum: f64) -> abi::Result {
    abi::Result { real: sum, ..versioned(version) }
}

/// Returns the result of an append.
pub(crate) fn length(version: kv::Version, length: u64) -> abi::Result {
    abi::Result { length, ..versioned(version) }
}

/// Returns the result of a read whose value lies in `memory`.
#[inline]
pub(crate) fn object(version: kv::Version, value: &[u8], memory: Memory) -> abi::Result {
    abi::Result { length: value.len() as u64, value: memory, ..versioned(version) }
}

/// Returns the result of a read, whose value it copies to new memory.
pub(crate) fn allocated(version: kv::Version, value: &[u8]) -> Result<abi::Result, Failure> {
    Ok(object(version, value, Memory::copy(value)?))
}

/// Returns the result of a swap. The value of the object before is `value`, which lies in `memory`.
pub(crate) fn replaced(
    version: kv::Version,
    before: kv::Version,
    value: &[u8],
    memory: Memory,
) -> abi::Result {
    abi::Result { old_version: before.0, ..object(version, value, memory) }
}

/// Returns the result of a swap, and copies the value of the object before, if there was one, to
/// new memory.
pub(crate) fn swapped(
    version: kv::Version,
    before: kv::Version,
    value: &[u8],
) -> Result<abi::Result, Failure> {
    let was_there = before != kv::Version(0);
    let memory = if was_there { Memory::copy(value)? } else { Memory::NULL };
    Ok(replaced(version, before, value, memory))
}

/// Converts a lifetime in milliseconds.
pub(crate) fn lifetime(ms: u64) -> Result<Duration, Failure> {
    let lifetime = Duration::from_millis(ms);
    if lifetime > kv::MAX_LIFETIME {
        let most = kv::MAX_LIFETIME.as_millis();
        return Err(Failure::invalid(format!("a lifetime of {ms} ms, the limit is {most} ms")));
    }
    Ok(lifetime)
}

/// Converts the lifetime of a touch or a swap, `SPRAT_FOREVER` or milliseconds.
pub(crate) fn new_lifetime(ms: u64) -> Result<Option<Duration>, Failure> {
    (ms != u64::MAX).then(|| lifetime(ms)).transpose()
}
