//! Operations on one object that wait for their result.

use sprat::kv;

use crate::abi;
use crate::client::{Client, State};
use crate::convert::{
    self, Call, allocated, key, length, lifetime, new_lifetime, object, value, versioned,
};
use crate::entry::export;
use crate::pointer::{Buffer, Bytes, Handle, Memory, Out, Structure};
use crate::status::{Failure, Status};

/// Reads an object and lends it to `f`.
fn read<T>(
    state: &State,
    table: u64,
    key: &[u8],
    call: &Call,
    f: impl FnOnce(kv::Version, &[u8]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let object = state.ask(call, |client| {
        let table = client.table_by_id(kv::TableId(table));
        // The read without a condition copies no value.
        if call.condition == kv::Condition::always() {
            return Ok(table.get_with(key, f)?);
        }
        let object = table.get_if(key, call.condition)?;
        Ok(object.map(|object| f(object.version, &object.value)))
    })?;
    object.unwrap_or_else(|| Err(kv::Error::ObjectDoesntExist.into()))
}

/// Runs an operation that changes an object, and writes its result.
fn change(
    client: &Handle<Client>,
    table: u64,
    options: &Structure<abi::OperationOptions>,
    result: &Out<abi::Result>,
    body: impl FnOnce(kv::Table<'_>, kv::Condition) -> Result<abi::Result, kv::Error>,
) -> Result<(), Failure> {
    let call = Call::new(options)?;
    let done = client.required("the client")?.with(|state| {
        let table = kv::TableId(table);
        state.ask(&call, |client| Ok(body(client.table_by_id(table), call.condition)?))
    })?;
    result.set(done);
    Ok(())
}

export! {
    /// Reads an object into a buffer of the caller.
    fn sprat_read(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        buffer: Buffer,
        room: usize,
        result: Out<abi::Result>,
    ) {
        let call = Call::new(&options)?;
        let key = key(&name, name_length)?;
        buffer.check(room)?;
        client.required("the client")?.with(|state| {
            read(state, table, key, &call, |version, value| {
                let fits = buffer.fill(room, value);
                result.set(object(version, value, buffer.memory()));
                if fits {
                    return Ok(());
                }
                let message = format!("the value has {} bytes, the buffer {room}", value.len());
                Err(Failure::new(Status::BufferTooSmall, message))
            })
        })
    }

    /// Reads an object into new memory.
    fn sprat_read_alloc(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        result.require("the place for the result")?;
        let call = Call::new(&options)?;
        let key = key(&name, name_length)?;
        let client = client.required("the client")?;
        result.set(client.with(|state| read(state, table, key, &call, allocated))?);
        Ok(())
    }

    /// Reads an object and the rest of its lifetime into new memory.
    fn sprat_read_expiring(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        result.require("the place for the result")?;
        let (key, call) = (key(&name, name_length)?, Call::new(&options)?);
        let found = client.required("the client")?.with(|state| {
            state.ask(&call, |client| {
                let table = client.table_by_id(kv::TableId(table));
                Ok(table.start_read_expiring_if(key, call.condition).wait()?)
            })
        })?;
        let (object, rest) = found.ok_or(kv::Error::ObjectDoesntExist)?;
        let lifetime_ms = rest.map_or(u64::MAX, |rest| rest.as_millis() as u64);
        let read = allocated(object.version, &object.value)?;
        result.set(abi::Result { lifetime_ms, ..read });
        Ok(())
    }

    /// Writes an object.
    fn sprat_write(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        change(&client, table, &options, &result, |table, condition| {
            table.put_if(key, value, condition).map(versioned)
        })
    }

    /// Writes an object that expires.
    fn sprat_write_expiring(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        lifetime_ms: u64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let lifetime = lifetime(lifetime_ms)?;
        change(&client, table, &options, &result, |table, condition| {
            table.put_expiring_if(key, value, lifetime, condition).map(versioned)
        })
    }

    /// Gives an object another lifetime.
    fn sprat_touch(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        lifetime_ms: u64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, lifetime) = (key(&name, name_length)?, new_lifetime(lifetime_ms)?);
        change(&client, table, &options, &result, |table, condition| {
            table.touch_if(key, lifetime, condition).map(versioned)
        })
    }

    /// Writes an object and returns the one before.
    fn sprat_swap(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        lifetime_ms: u64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        result.require("the place for the result")?;
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let (call, lifetime) = (Call::new(&options)?, new_lifetime(lifetime_ms)?);
        let client = client.required("the client")?;
        let (version, before) = client.with(|state| {
            state.ask(&call, |client| {
                let table = client.table_by_id(kv::TableId(table));
                Ok(table.swap_if(key, value, lifetime, call.condition)?)
            })
        })?;
        let (old, value) = before.map_or_else(Default::default, |it| (it.version, it.value));
        result.set(convert::swapped(version, old, &value)?);
        Ok(())
    }

    /// Removes an object.
    fn sprat_remove(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let key = key(&name, name_length)?;
        change(&client, table, &options, &result, |table, condition| {
            let version = table.remove_if(key, condition)?;
            Ok(versioned(version.unwrap_or(kv::Version(0))))
        })
    }

    /// Adds to an object that is an integer.
    fn sprat_increment(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        amount: i64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let key = key(&name, name_length)?;
        change(&client, table, &options, &result, |table, condition| {
            let sum = table.increment_if(key, amount, condition)?;
            Ok(convert::integer(sum.version, sum.value))
        })
    }

    /// Adds to an object that is a double.
    fn sprat_increment_double(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        amount: f64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let key = key(&name, name_length)?;
        change(&client, table, &options, &result, |table, condition| {
            let sum = table.increment_double_if(key, amount, condition)?;
            Ok(convert::real(sum.version, sum.value))
        })
    }

    /// Adds bytes to the end of an object's value.
    fn sprat_append(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, bytes) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        change(&client, table, &options, &result, |table, condition| {
            let whole = table.append_if(key, bytes, condition)?;
            Ok(length(whole.version, whole.value))
        })
    }
}

export! {
    /// Frees memory that a function allocated.
    plain(()) fn sprat_free(memory: Memory) -> () {
        memory.free();
    }
}
