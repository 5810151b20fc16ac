//! Operations that a program starts, and whose outcome it takes later.
//!
//! An operation has the number of the store's client, and a [`Slot`] for its outcome. The client
//! delivers outcomes at the end of every call. The slot belongs to the operation: an outcome that
//! arrives after the release finds none.

use std::ffi::c_int;
use std::mem;
use std::sync::Arc;

use sprat::kv::{self, Answer};

use crate::abi;
use crate::client::{Client, Progress, Shared, Slot};
use crate::convert::{self, Call, key, value};
use crate::entry::export;
use crate::multi;
use crate::pointer::{Array, Bytes, Handle, Out, OutHandle, OwnedHandle, Structure};
use crate::status::{Failure, Status};

/// The operation that C programs have, `sprat_operation`.
pub(crate) struct Operation {
    client: Arc<Shared>,
    id: kv::OperationId,
    slot: Arc<Slot>,
    /// The number of parts if it is a multi-operation of the program.
    parts: Option<usize>,
}

/// Starts an operation and gives it to the caller.
fn start(
    client: &Handle<Client>,
    call: &Call,
    parts: Option<usize>,
    place: &OutHandle<Operation>,
    begin: impl FnOnce(&kv::Client) -> kv::OperationId,
) -> Result<(), Failure> {
    let client = client.required("the client")?.shared();
    let (id, slot) = client.with(|state| state.start(call, begin))?;
    place.give(Operation { client: Arc::clone(client), id, slot, parts });
    Ok(())
}

impl Operation {
    /// Takes the outcome that `is_wanted` accepts; another one stays.
    fn take(&self) -> Result<Answer<'static>, Failure> {
        let mut progress = self.slot.progress();
        match &*progress {
            Progress::Running => return Err(Failure::of(Status::NotReady)),
            Progress::Taken => return Err(Failure::of(Status::Taken)),
            Progress::Cancelled => {
                return Err(Failure { maybe_executed: true, ..Failure::of(Status::Cancelled) });
            }
            Progress::Disconnected => {
                return Err(Failure { maybe_executed: true, ..Failure::of(Status::Disconnected) });
            }
            Progress::Ended(_) => {}
        }
        match mem::replace(&mut *progress, Progress::Taken) {
            Progress::Ended(outcome) => Ok(outcome?),
            _ => Err(Failure::of(Status::Taken)),
        }
    }
}

/// Converts the answer to an operation on one object.
fn result(answer: Answer<'_>) -> Result<abi::Result, Failure> {
    match answer {
        Answer::Object { version, value } => convert::allocated(version, &value),
        Answer::Version(version) => Ok(convert::versioned(version)),
        Answer::Swapped { version, before, value } => convert::swapped(version, before, &value),
        Answer::Parts(parts) => multi::only(&parts),
        _ => Err(Failure::of(Status::Other)),
    }
}

export! {
    /// Starts a read.
    fn sprat_start_read(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, call) = (key(&name, name_length)?, Call::new(&options)?);
        start(&client, &call, None, &operation, |client| {
            client.table_by_id(kv::TableId(table)).start_get_if(key, call.condition).queue()
        })
    }

    /// Starts a write.
    fn sprat_start_write(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let call = Call::new(&options)?;
        start(&client, &call, None, &operation, |client| {
            let table = client.table_by_id(kv::TableId(table));
            table.start_put_if(key, value, call.condition).queue()
        })
    }

    /// Starts a swap.
    fn sprat_start_swap(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        lifetime_ms: u64,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let (call, lifetime) = (Call::new(&options)?, convert::new_lifetime(lifetime_ms)?);
        start(&client, &call, None, &operation, |client| {
            let table = client.table_by_id(kv::TableId(table));
            table.start_swap_if(key, value, lifetime, call.condition).queue()
        })
    }

    /// Starts a removal.
    fn sprat_start_remove(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, call) = (key(&name, name_length)?, Call::new(&options)?);
        start(&client, &call, None, &operation, |client| {
            client.table_by_id(kv::TableId(table)).start_remove_if(key, call.condition).queue()
        })
    }

    /// Starts an increment of an integer.
    fn sprat_start_increment(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        amount: i64,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, call) = (key(&name, name_length)?, Call::new(&options)?);
        // The store's client starts an increment with a condition as a part only.
        let part = kv::Part::increment(kv::TableId(table), key, amount).only(call.condition);
        start(&client, &call, None, &operation, |client| client.start_multi([part]).queue())
    }

    /// Starts an append.
    fn sprat_start_append(
        client: Handle<Client>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let (key, bytes) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let call = Call::new(&options)?;
        // The store's client starts an append with a condition as a part only.
        let part = kv::Part::append(kv::TableId(table), key, bytes).only(call.condition);
        start(&client, &call, None, &operation, |client| client.start_multi([part]).queue())
    }

    /// Starts a multi-operation.
    fn sprat_start_multi(
        client: Handle<Client>,
        parts: Array<abi::Part>,
        count: usize,
        options: Structure<abi::OperationOptions>,
        operation: OutHandle<Operation>,
    ) {
        operation.clear("the place for the operation")?;
        let call = Call::of_parts(&options)?;
        let requests = multi::requests(&parts, count)?;
        start(&client, &call, Some(count), &operation, |client| {
            client.start_multi(requests).queue()
        })
    }

    /// Waits for the outcome of an operation.
    fn sprat_wait(operation: Handle<Operation>, timeout_ms: i64) {
        let operation = operation.required("the operation")?;
        // It may have ended with its client.
        if operation.slot.is_ready() {
            return Ok(());
        }
        operation.client.with(|state| match u64::try_from(timeout_ms) {
            Ok(limit) => state.wait_up_to(&operation.slot, limit.saturating_mul(1_000_000)),
            Err(_) => state.wait(&operation.slot),
        })
    }

    /// Takes the outcome of an operation on one object.
    fn sprat_take(operation: Handle<Operation>, place: Out<abi::Result>) {
        let operation = operation.required("the operation")?;
        if operation.parts.is_some() {
            return Err(Failure::invalid("the operation has parts: use sprat_take_parts"));
        }
        let answer = operation.take()?;
        let result = result(answer)?;
        place.set(result);
        Ok(())
    }

    /// Takes the outcome of a multi-operation.
    fn sprat_take_parts(
        operation: Handle<Operation>,
        parts: Array<abi::Part>,
        count: usize,
    ) {
        let operation = operation.required("the operation")?;
        if operation.parts != Some(count) {
            let wrong = operation.parts.map_or_else(
                || "the operation has no parts: use sprat_take".to_owned(),
                |started| format!("the operation has {started} parts, the array {count}"),
            );
            return Err(Failure::invalid(wrong));
        }
        let mut parts = parts;
        let parts = parts.slice_mut(count, "the parts")?;
        match operation.take()? {
            Answer::Parts(answers) => multi::set(parts, &answers),
            _ => return Err(Failure::of(Status::Other)),
        }
        Ok(())
    }

    /// Gives an operation up.
    fn sprat_cancel(operation: Handle<Operation>) {
        let operation = operation.required("the operation")?;
        operation.client.with(|state| state.cancel(operation.id, &operation.slot))
    }
}

export! {
    /// Returns 1 if an operation has its outcome.
    plain(0) fn sprat_is_ready(operation: Handle<Operation>) -> c_int {
        let operation = operation.required("the operation");
        c_int::from(operation.is_ok_and(|operation| operation.slot.is_ready()))
    }

    /// Frees an operation.
    plain(()) fn sprat_release(operation: OwnedHandle<Operation>) -> () {
        drop(operation.take());
    }
}
