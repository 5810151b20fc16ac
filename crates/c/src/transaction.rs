//! Transactions of several objects.
//!
//! A transaction is a draft between its calls. Each call lends it to the store's client.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat::kv;

use crate::abi;
use crate::client::{Client, Shared, State};
use crate::convert::{Call, allocated, condition, key, new_lifetime, value};
use crate::entry::export;
use crate::indexes::Indexed;
use crate::pointer::{Array, Bytes, Handle, Out, OutHandle, OwnedHandle, Structure};
use crate::status::Failure;

/// The complaint about a condition in the options of a transaction's call.
const CONDITION: &str = "a transaction has a condition; set it by sprat_transaction_check";

/// The transaction that C programs have, `sprat_transaction`.
pub(crate) struct Transaction {
    client: Arc<Shared>,
    /// The reads and changes so far. A call locks it within the lock of the client.
    draft: Mutex<kv::Draft>,
}

impl Transaction {
    fn draft(&self) -> MutexGuard<'_, kv::Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that goes on with the transaction.
    fn go_on<T>(
        &self,
        state: &State,
        call: &Call,
        body: impl FnOnce(&mut kv::Transaction<'_>, &kv::Client) -> Result<T, kv::Error>,
    ) -> Result<T, Failure> {
        state.ask(call, |client| {
            let mut draft = self.draft();
            let mut transaction = client.resume(mem::take(&mut draft));
            let result = body(&mut transaction, client);
            *draft = transaction.suspend();
            Ok(result?)
        })
    }

    /// Runs a call that sends nothing.
    fn plan(
        &self,
        table: u64,
        body: impl FnOnce(&mut kv::Transaction<'_>, kv::Table<'_>) -> Result<(), kv::Error>,
    ) -> Result<(), Failure> {
        self.client.with(|state| {
            self.go_on(state, &Call::of_client(), |transaction, client| {
                body(transaction, client.table_by_id(kv::TableId(table)))
            })
        })
    }
}

export! {
    /// Begins a transaction.
    fn sprat_transaction_open(client: Handle<Client>, transaction: OutHandle<Transaction>) {
        transaction.clear("the place for the transaction")?;
        let client = Arc::clone(client.required("the client")?.shared());
        transaction.give(Transaction { client, draft: Mutex::default() });
        Ok(())
    }

    /// Reads an object in a transaction.
    fn sprat_transaction_read(
        transaction: Handle<Transaction>,
        table: u64,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        result.require("the place for the result")?;
        let call = Call::unconditional(&options, CONDITION)?;
        let key = key(&name, name_length)?;
        let transaction = transaction.required("the transaction")?;
        let object = transaction.client.with(|state| {
            transaction.go_on(state, &call, |transaction, client| {
                transaction.get(&client.table_by_id(kv::TableId(table)), key)
            })
        })?;
        let object = object.ok_or(kv::Error::ObjectDoesntExist)?;
        result.set(allocated(object.version, &object.value)?);
        Ok(())
    }

    /// Plans to write an object.
    fn sprat_transaction_write(
        transaction: Handle<Transaction>,
        table: u64,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        lifetime_ms: u64,
    ) {
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let lifetime = new_lifetime(lifetime_ms)?;
        transaction.required("the transaction")?.plan(table, |transaction, table| match lifetime {
            Some(lifetime) => transaction.put_expiring(&table, key, value, lifetime),
            None => transaction.put(&table, key, value),
        })
    }

    /// Plans to remove an object.
    fn sprat_transaction_remove(
        transaction: Handle<Transaction>,
        table: u64,
        name: Bytes,
        name_length: usize,
    ) {
        let key = key(&name, name_length)?;
        let transaction = transaction.required("the transaction")?;
        transaction.plan(table, |transaction, table| transaction.remove(&table, key))
    }

    /// Lets the changes of a transaction keep the indexes of a table.
    fn sprat_transaction_keep_indexes(
        transaction: Handle<Transaction>,
        indexed: Handle<Indexed>,
    ) {
        let transaction = transaction.required("the transaction")?;
        let known = indexed.required("the table")?.table().known(&transaction.client)?;
        transaction.client.with(|state| {
            state.client()?;
            transaction.draft().keep_indexes(known);
            Ok(())
        })
    }

    /// Sets a condition on an object.
    fn sprat_transaction_check(
        transaction: Handle<Transaction>,
        table: u64,
        name: Bytes,
        name_length: usize,
        only: Array<abi::Condition>,
    ) {
        let key = key(&name, name_length)?;
        let only = condition(only.slice(1, "the condition")?[0])?;
        let transaction = transaction.required("the transaction")?;
        transaction.plan(table, |transaction, table| transaction.check(&table, key, only))
    }

    /// Makes all changes of a transaction, or none.
    fn sprat_transaction_commit(
        transaction: Handle<Transaction>,
        options: Structure<abi::OperationOptions>,
        versions: Array<u64>,
        room: usize,
    ) {
        let call = Call::unconditional(&options, CONDITION)?;
        let transaction = transaction.required("the transaction")?;
        let mut versions = versions;
        let places = versions.slice_mut(room, "the versions")?;
        let committed = transaction.client.with(|state| {
            state.ask(&call, |client| {
                let draft = mem::take(&mut *transaction.draft());
                Ok(client.resume(draft).commit()?)
            })
        })?;
        let made = committed.versions.iter().map(|version| version.0);
        for (place, version) in places.iter_mut().zip(made.chain(std::iter::repeat(0))) {
            *place = version;
        }
        Ok(())
    }

    /// Gives all reads and changes of a transaction up.
    fn sprat_transaction_abort(transaction: Handle<Transaction>) {
        let transaction = transaction.required("the transaction")?;
        transaction.client.with(|_| {
            *transaction.draft() = kv::Draft::default();
            Ok(())
        })
    }
}

export! {
    /// Frees a transaction.
    plain(()) fn sprat_transaction_close(transaction: OwnedHandle<Transaction>) -> () {
        drop(transaction.take());
    }
}
