//! The structures that C programs share with the library, field for field as `include/sprat.h`
//! declares them. A test compares their sizes and offsets with those of a C compiler.

use std::ffi::c_void;

pub use crate::error::Error;
use crate::pointer::{Buffer, Bytes, Memory, Plain, Text};

/// The bytes of a table's name, with the zero byte at its end.
pub const NAME_SIZE: usize = 256;

/// The bytes of an index's name, with the zero byte at its end.
pub const INDEX_NAME_SIZE: usize = 72;

/// The settings of a client, `sprat_options`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Options {
    pub size: usize,
    pub timeout_ms: u64,
    pub try_timeout_ms: u64,
    pub transports: Text,
    pub local: Text,
    pub max_operations: u32,
    pub insecure_network: i32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            timeout_ms: 0,
            try_timeout_ms: 0,
            transports: Text::NULL,
            local: Text::NULL,
            max_operations: 0,
            insecure_network: 0,
        }
    }
}

// SAFETY: The structure has integers and pointers alone.
unsafe impl Plain for Options {}

/// The settings of a table, `sprat_table_options`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct TableOptions {
    pub size: usize,
    pub span: u32,
    pub durability: i32,
}

// SAFETY: The structure has integers alone.
unsafe impl Plain for TableOptions {}

/// A table of a list, `sprat_table_info`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct TableInfo {
    pub table: u64,
    pub tablets: u32,
    pub lost: u32,
    pub recovering: u32,
    pub durability: i32,
    pub name: [u8; NAME_SIZE],
}

/// A condition on an object, `sprat_condition`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Condition {
    pub kind: i32,
    pub reserved: i32,
    pub version: u64,
}

/// The settings of one operation, `sprat_operation_options`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct OperationOptions {
    pub size: usize,
    pub timeout_ms: u64,
    pub condition: Condition,
}

// SAFETY: The structure has integers alone.
unsafe impl Plain for OperationOptions {}

/// The result of an operation on an object, `sprat_result`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Result {
    pub version: u64,
    pub length: u64,
    pub integer: i64,
    pub real: f64,
    pub value: Memory,
    pub old_version: u64,
    pub lifetime_ms: u64,
    pub reserved: [u64; 1],
}

impl Default for Result {
    fn default() -> Self {
        Self {
            version: 0,
            length: 0,
            integer: 0,
            real: 0.0,
            value: Memory::NULL,
            old_version: 0,
            lifetime_ms: 0,
            reserved: [0; 1],
        }
    }
}

/// An operation of a multi-operation, `sprat_part`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Part {
    pub kind: i32,
    pub status: i32,
    pub table: u64,
    pub key: Bytes,
    pub key_length: usize,
    pub value: Bytes,
    pub value_length: usize,
    pub integer: i64,
    pub real: f64,
    pub condition: Condition,
    pub buffer: Buffer,
    pub room: usize,
    pub result: Result,
    pub message: Memory,
    pub lifetime_ms: u64,
    pub reserved: [u64; 3],
}

/// The counters of a client, `sprat_counters`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Counters {
    pub size: usize,
    pub started: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub retried: u64,
    pub late: u64,
    pub route_refreshes: u64,
    pub bundles: u64,
    pub saved_round_trips: u64,
}

// SAFETY: The structure has integers alone.
unsafe impl Plain for Counters {}

/// An object that a scan has found, `sprat_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Entry {
    pub key: *const c_void,
    pub key_length: usize,
    pub value: *const c_void,
    pub value_length: usize,
    pub version: u64,
}

/// The part of an object that is its key in an index, `sprat_index_source`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct IndexSource {
    pub kind: i32,
    pub number: u32,
    pub separator: u32,
    pub at: u32,
    pub length: u32,
    pub reserved: [u32; 3],
}

/// An index of a list, `sprat_index_info`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct IndexInfo {
    pub source: IndexSource,
    pub ready: i32,
    pub node_bytes: u32,
    pub reserved: [u64; 2],
    pub name: [u8; INDEX_NAME_SIZE],
}

/// A range of index keys, `sprat_index_keys`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct IndexKeys {
    pub from: Bytes,
    pub from_length: usize,
    pub to: Bytes,
    pub to_length: usize,
    pub from_bound: i32,
    pub to_bound: i32,
    pub reserved: [u64; 2],
}

/// An object that a scan of an index has found, `sprat_index_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct IndexEntry {
    pub index_key: *const c_void,
    pub index_key_length: usize,
    pub key: *const c_void,
    pub key_length: usize,
    pub value: *const c_void,
    pub value_length: usize,
    pub version: u64,
}

/// Bytes that the caller lends with their length, `sprat_bytes`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Lent {
    pub bytes: Bytes,
    pub length: usize,
}

/// A part of the bytes that the caller lends, as the call sets it, `sprat_bytes`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the header says what each field is")]
pub struct Piece {
    pub bytes: *const c_void,
    pub length: usize,
}
