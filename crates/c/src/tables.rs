//! Tables, and texts of the library and of its statuses.

use std::ffi::{CStr, c_char, c_int};

use sprat::kv;

use crate::abi;
use crate::client::Client;
use crate::entry::export;
use crate::error::ErrorIn;
use crate::pointer::{Handle, Memory, Out, Structure, Text};
use crate::status::{Failure, Status};

/// The version of the library.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Converts the settings of a table.
fn options(options: abi::TableOptions) -> Result<kv::TableOptions, Failure> {
    let durability = match options.durability {
        0 => kv::TableDurability::Cluster,
        1 => kv::TableDurability::Async,
        other => return Err(Failure::invalid(format!("no durability has the number {other}"))),
    };
    let span = if options.span == 0 { 1 } else { options.span };
    Ok(kv::TableOptions { span, durability })
}

/// Converts a table of a list.
fn info(table: &kv::TableInfo) -> abi::TableInfo {
    let mut name = [0; abi::NAME_SIZE];
    let length = table.name.len().min(abi::NAME_SIZE - 1);
    name[..length].copy_from_slice(&table.name.as_bytes()[..length]);
    abi::TableInfo {
        table: table.table.0,
        tablets: table.tablets.into(),
        lost: table.lost.into(),
        recovering: table.recovering.into(),
        durability: match table.durability {
            kv::TableDurability::Cluster => 0,
            kv::TableDurability::Async => 1,
        },
        name,
    }
}

export! {
    /// Creates a table.
    fn sprat_create_table(
        client: Handle<Client>,
        name: Text,
        settings: Structure<abi::TableOptions>,
        table: Out<u64>,
    ) {
        table.require("the place for the table")?;
        let name = name.required("the table's name")?;
        let options = options(settings.copied("sprat_table_options")?)?;
        let id = client.required("the client")?.with(|state| {
            Ok(state.client()?.create_table(name, options)?.id())
        })?;
        table.set(id.0);
        Ok(())
    }

    /// Finds a table.
    fn sprat_open_table(client: Handle<Client>, name: Text, table: Out<u64>) {
        table.require("the place for the table")?;
        let name = name.required("the table's name")?;
        let client = client.required("the client")?;
        let id = client.with(|state| Ok(state.client()?.table(name)?.id()))?;
        table.set(id.0);
        Ok(())
    }

    /// Drops a table.
    fn sprat_drop_table(client: Handle<Client>, name: Text) {
        let name = name.required("the table's name")?;
        client.required("the client")?.with(|state| Ok(state.client()?.drop_table(name)?))
    }

    /// Lists all tables.
    fn sprat_list_tables(client: Handle<Client>, tables: Out<Memory>, count: Out<usize>) {
        tables.require("the place for the tables")?;
        count.require("the place for their number")?;
        let list = client.required("the client")?.with(|state| Ok(state.client()?.tables()?))?;
        let list: Vec<abi::TableInfo> = list.iter().map(info).collect();
        tables.set(Memory::copy_all(&list)?);
        count.set(list.len());
        Ok(())
    }
}

export! {
    /// Returns the text of a status.
    plain(c"unknown status".as_ptr()) fn sprat_status_text(status: c_int) -> *const c_char {
        let found = Status::ALL.iter().find(|known| **known as c_int == status);
        found.map_or(c"unknown status", |status| status.text()).as_ptr()
    }

    /// Returns the version of the library.
    plain(c"".as_ptr()) fn sprat_version() -> *const c_char {
        CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default().as_ptr()
    }

    /// Returns the text of an error.
    plain(c"".as_ptr()) fn sprat_error_message(error: ErrorIn) -> *const c_char {
        error.message(Status::InvalidArgument.text())
    }
}
