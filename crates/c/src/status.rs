//! The status codes of the C API, and the failures that carry them.

use std::any::Any;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io;

use sprat::kv;

/// Declares the status codes: each with the number and the name that the header has, and its text.
macro_rules! statuses {
    ($($name:ident = $number:literal, $c_name:literal, $text:literal;)*) => {
        /// The outcome of a call, `sprat_status`.
        #[repr(i32)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)]
        pub enum Status {
            $($name = $number,)*
        }

        impl Status {
            /// All status codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name that C programs use.
            #[must_use]
            pub fn c_name(self) -> &'static str {
                match self {
                    $(Self::$name => $c_name,)*
                }
            }

            /// Returns a few words that describe the status.
            #[must_use]
            pub fn text(self) -> &'static std::ffi::CStr {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

statuses! {
    Ok = 0, "SPRAT_OK", c"success";
    InvalidArgument = 1, "SPRAT_INVALID_ARGUMENT", c"an argument is invalid";
    BufferTooSmall = 2, "SPRAT_BUFFER_TOO_SMALL", c"the buffer is too small for the value";
    InUse = 3, "SPRAT_IN_USE", c"another thread uses the client";
    Disconnected = 4, "SPRAT_DISCONNECTED", c"the client was disconnected";
    NotReady = 5, "SPRAT_NOT_READY", c"the operation is in progress";
    Taken = 6, "SPRAT_TAKEN", c"the result of the operation was taken before";
    Cancelled = 7, "SPRAT_CANCELLED", c"the operation was cancelled";
    End = 8, "SPRAT_END", c"the scan has returned all objects";
    NoMemory = 9, "SPRAT_NO_MEMORY", c"no memory is left for the result";
    Internal = 10, "SPRAT_INTERNAL", c"the library has a bug";
    System = 11, "SPRAT_SYSTEM", c"a locator is malformed, or the machine lacks something";
    KeyTooLong = 12, "SPRAT_KEY_TOO_LONG", c"the key is too long";
    ValueTooLong = 13, "SPRAT_VALUE_TOO_LONG", c"the value is too long";
    TooManyParts = 14, "SPRAT_TOO_MANY_PARTS", c"the multi-operation has too many parts";
    TooManyOperations = 15, "SPRAT_TOO_MANY_OPERATIONS", c"too many operations are in progress";
    BadName = 16, "SPRAT_BAD_NAME", c"the name of the table or the index is invalid";
    NotFinite = 17, "SPRAT_NOT_FINITE", c"the amount to add must be finite";
    TransactionTooLarge = 18, "SPRAT_TRANSACTION_TOO_LARGE", c"the transaction is too large";
    TableNotFound = 32, "SPRAT_TABLE_NOT_FOUND", c"the table does not exist";
    ObjectNotFound = 33, "SPRAT_OBJECT_NOT_FOUND", c"the object does not exist";
    ObjectExists = 34, "SPRAT_OBJECT_EXISTS", c"the object exists";
    WrongVersion = 35, "SPRAT_WRONG_VERSION", c"the object has another version";
    NotANumber = 36, "SPRAT_NOT_A_NUMBER", c"the object is not a number";
    Overflow = 37, "SPRAT_OVERFLOW", c"the sum is too large";
    NoSpace = 38, "SPRAT_NO_SPACE", c"the server has no space left";
    TabletLost = 39, "SPRAT_TABLET_LOST", c"the data is lost";
    TooFewServers = 40, "SPRAT_TOO_FEW_SERVERS", c"too few servers are up";
    NotDurable = 41, "SPRAT_NOT_DURABLE", c"the coordinator cannot write its state";
    Refused = 42, "SPRAT_REFUSED", c"the server refused the request";
    Conflict = 43, "SPRAT_CONFLICT", c"an object of the transaction has changed";
    IndexNotFound = 44, "SPRAT_INDEX_NOT_FOUND", c"the index does not exist";
    IndexNotReady = 45, "SPRAT_INDEX_NOT_READY", c"the index is being built";
    IndexExists = 46, "SPRAT_INDEX_EXISTS", c"the table has another index of this name";
    TooManyIndexes = 47, "SPRAT_TOO_MANY_INDEXES", c"the table can have no more indexes";
    IndexKeyTooLong = 48, "SPRAT_INDEX_KEY_TOO_LONG", c"the index key is too long";
    IndexDamaged = 49, "SPRAT_INDEX_DAMAGED", c"the index is damaged";
    Deadline = 64, "SPRAT_DEADLINE", c"the deadline passed";
    Unknown = 65, "SPRAT_UNKNOWN", c"the change was executed once or not at all";
    NoTransport = 66, "SPRAT_NO_TRANSPORT", c"the server lists no transport for this client";
    ClusterReplaced = 67, "SPRAT_CLUSTER_REPLACED", c"the coordinator is that of another cluster";
    Other = 68, "SPRAT_OTHER", c"the operation failed";
}

/// The failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The status that the call returns.
    pub(crate) status: Status,
    /// True if the operation may have been executed.
    pub(crate) maybe_executed: bool,
    /// The version of the object that the failure is about, or 0.
    pub(crate) version: u64,
    /// The text of the failure with its causes.
    pub(crate) message: String,
}

impl Failure {
    /// Makes a failure that the API itself finds.
    #[cold]
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, maybe_executed: false, version: 0, message: message.into() }
    }

    /// Makes a failure whose text is that of its status.
    #[cold]
    pub(crate) fn of(status: Status) -> Self {
        Self::new(status, status.text().to_string_lossy())
    }

    /// Makes the failure of a call with an invalid argument.
    #[cold]
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }

    /// Makes the failure of a call in which the library panicked.
    #[cold]
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a text");
        let message = format!("a bug of the library: {text}; disconnect the client");
        Self { maybe_executed: true, ..Self::new(Status::Internal, message) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            // Some errors print their cause as a part of their own text.
            if !message.contains(&text) {
                let _ = write!(message, ": {text}");
            }
            cause = inner.source();
        }
        Self::new(Status::System, message)
    }
}

impl From<kv::Error> for Failure {
    fn from(error: kv::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&kv::Error> for Failure {
    fn from(error: &kv::Error) -> Self {
        use kv::Error as E;
        let mut version = 0;
        let status = match error {
            E::KeyTooLong(_) => Status::KeyTooLong,
            E::ValueTooLong(_) | E::NoRoomToAppend(_) => Status::ValueTooLong,
            E::LifetimeTooLong(_) => Status::InvalidArgument,
            E::TooManyOps => Status::TooManyOperations,
            E::TooManyParts(_) => Status::TooManyParts,
            E::IndexKeyTooLong(_) => Status::IndexKeyTooLong,
            E::DamagedIndex => Status::IndexDamaged,
            E::BadTransaction(_) | E::TransactionTooLong(_) => Status::TransactionTooLarge,
            E::Conflict { version: found, .. } => versioned(Status::Conflict, *found, &mut version),
            E::NotInProgress => Status::Taken,
            E::TableDoesntExist => Status::TableNotFound,
            E::ObjectDoesntExist => Status::ObjectNotFound,
            E::ObjectExists(found) => versioned(Status::ObjectExists, *found, &mut version),
            E::WrongVersion(found) => versioned(Status::WrongVersion, *found, &mut version),
            E::NotANumber(found) => versioned(Status::NotANumber, *found, &mut version),
            E::Overflow(found) => versioned(Status::Overflow, *found, &mut version),
            E::NotFinite => Status::NotFinite,
            E::NoSpace => Status::NoSpace,
            E::TabletLost => Status::TabletLost,
            E::Deadline { .. } => Status::Deadline,
            E::Unknown => Status::Unknown,
            E::TooFewServers => Status::TooFewServers,
            E::NotDurable { .. } => Status::NotDurable,
            E::BadName => Status::BadName,
            E::NoTransport(_) => Status::NoTransport,
            E::ClusterReplaced => Status::ClusterReplaced,
            E::Refused { .. } => Status::Refused,
            _ => Status::Other,
        };
        let maybe_executed = error.maybe_executed();
        Self { status, maybe_executed, version, message: error.to_string() }
    }
}

impl From<kv::IndexError> for Failure {
    fn from(error: kv::IndexError) -> Self {
        use kv::IndexError as E;
        let status = match &error {
            E::Store(error) => return error.into(),
            E::NoIndex(_) => Status::IndexNotFound,
            E::Unready(_) => Status::IndexNotReady,
            E::Exists(_) => Status::IndexExists,
            E::BadName(_) => Status::BadName,
            E::TooManyIndexes => Status::TooManyIndexes,
            E::TooManyKeys(_) => Status::InvalidArgument,
            _ => Status::Other,
        };
        Self::new(status, error.to_string())
    }
}

/// Returns the status, and puts the version that the error carries into `version`.
fn versioned(status: Status, found: kv::Version, version: &mut u64) -> Status {
    *version = found.0;
    status
}
