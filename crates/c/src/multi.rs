//! Multi-operations that wait for their results, and the parts of all multi-operations.

use sprat::kv::{self, PartAnswer};

use crate::abi;
use crate::client::Client;
use crate::convert::{self, Call, condition, key, value};
use crate::entry::export;
use crate::pointer::{Array, Handle, Memory, Structure};
use crate::status::{Failure, Status};

/// Converts the part that C describes.
fn request(part: &abi::Part) -> Result<kv::Part<'_>, Failure> {
    let table = kv::TableId(part.table);
    let key = key(&part.key, part.key_length)?;
    let value = || value(&part.value, part.value_length);
    let request = match part.kind {
        1 => {
            part.buffer.check(part.room)?;
            kv::Part::get(table, key)
        }
        2 => kv::Part::put(table, key, value()?),
        3 => kv::Part::remove(table, key),
        4 => kv::Part::increment(table, key, part.integer),
        5 => kv::Part::increment_double(table, key, part.real),
        6 => kv::Part::append(table, key, value()?),
        7 => kv::Part::put_expiring(table, key, value()?, convert::lifetime(part.lifetime_ms)?),
        8 => kv::Part::touch(table, key, convert::new_lifetime(part.lifetime_ms)?),
        9 => {
            part.buffer.check(part.room)?;
            kv::Part::swap(table, key, value()?, convert::new_lifetime(part.lifetime_ms)?)
        }
        other => return Err(Failure::invalid(format!("no part has the kind {other}"))),
    };
    if part.reserved.iter().any(|field| *field != 0) {
        return Err(Failure::invalid("a reserved field is not 0"));
    }
    Ok(request.only(condition(part.condition)?))
}

/// Converts the `count` parts that C describes. A failure names its part.
pub(crate) fn requests(
    parts: &Array<abi::Part>,
    count: usize,
) -> Result<Vec<kv::Part<'_>>, Failure> {
    // Too many are refused before they are read.
    if count > kv::MAX_PARTS {
        return Err(kv::Error::TooManyParts(count).into());
    }
    let converted = parts.slice(count, "the parts")?.iter().enumerate().map(|(index, part)| {
        request(part).map_err(|failure| {
            let message = format!("part {index}: {}", failure.message);
            Failure { message, ..failure }
        })
    });
    converted.collect()
}

/// Converts the answer to a part. The value of a read or a swap goes into the buffer of `part`, or
/// into new memory.
fn answered(part: &abi::Part, answer: PartAnswer<'_>) -> (abi::Result, Result<(), Failure>) {
    let (version, before, value) = match answer {
        PartAnswer::Object { version, value } => (version, kv::Version(0), value),
        PartAnswer::Swapped { version, before, value } if before != kv::Version(0) => {
            (version, before, value)
        }
        PartAnswer::Swapped { version, .. } => return (convert::versioned(version), Ok(())),
        PartAnswer::Version(version) => return (convert::versioned(version), Ok(())),
        PartAnswer::Integer { version, sum } => return (convert::integer(version, sum), Ok(())),
        PartAnswer::Double { version, sum } => return (convert::real(version, sum), Ok(())),
        PartAnswer::Length { version, length } => {
            return (convert::length(version, length), Ok(()));
        }
        _ => return (abi::Result::default(), Err(Failure::of(Status::Other))),
    };
    if part.buffer.is_null() {
        return match Memory::copy(value) {
            Ok(memory) => (convert::replaced(version, before, value, memory), Ok(())),
            Err(failure) => (abi::Result::default(), Err(failure)),
        };
    }
    let result = convert::replaced(version, before, value, part.buffer.memory());
    if part.buffer.fill(part.room, value) {
        return (result, Ok(()));
    }
    (result, Err(Failure::of(Status::BufferTooSmall)))
}

/// Returns the result of the only part of a multi-operation, whose value is allocated.
pub(crate) fn only(parts: &kv::Parts) -> Result<abi::Result, Failure> {
    match parts.get(0)? {
        PartAnswer::Integer { version, sum } => Ok(convert::integer(version, sum)),
        PartAnswer::Length { version, length } => Ok(convert::length(version, length)),
        _ => Err(Failure::of(Status::Other)),
    }
}

/// Sets the outcomes of parts.
pub(crate) fn set(parts: &mut [abi::Part], answers: &kv::Parts) {
    for (part, answer) in parts.iter_mut().zip(answers.iter()) {
        let (result, outcome) = match answer {
            Ok(answer) => answered(part, answer),
            Err(error) => (abi::Result::default(), Err(error.into())),
        };
        part.result = result;
        (part.status, part.message) = match outcome {
            Ok(()) => (Status::Ok as i32, Memory::NULL),
            Err(failure) => {
                // Without memory the status has to do.
                let message = Memory::copy(failure.message.as_bytes()).unwrap_or(Memory::NULL);
                (failure.status as i32, message)
            }
        };
    }
}

export! {
    /// Executes several operations on objects.
    fn sprat_multi(
        client: Handle<Client>,
        parts: Array<abi::Part>,
        count: usize,
        options: Structure<abi::OperationOptions>,
    ) {
        let call = Call::of_parts(&options)?;
        let client = client.required("the client")?;
        let requests = requests(&parts, count)?;
        let answers =
            client.with(|state| state.ask(&call, |client| Ok(client.multi(requests)?)))?;
        let mut parts = parts;
        set(parts.slice_mut(count, "the parts")?, &answers);
        Ok(())
    }
}

export! {
    /// Frees the memory of parts.
    plain(()) fn sprat_free_parts(parts: Array<abi::Part>, count: usize) -> () {
        let mut parts = parts;
        for part in parts.slice_mut(count, "the parts").into_iter().flatten() {
            if !part.result.value.is(part.buffer) {
                part.result.value.free();
            }
            part.result.value = Memory::NULL;
            part.message.free();
            part.message = Memory::NULL;
        }
    }
}
