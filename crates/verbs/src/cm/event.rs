//! Events: what the engine tells of ids, as programs know it.
//!
//! Always holds: an event counts for the id that it is of, and for the listener where a peer asks, until it is acknowledged;
//! private data stays as long as its event.

use std::ffi::c_int;
use std::io::ErrorKind;

use sprat::verbs::{ConnectError, ConnectRequest, Connection, MAX_READ_DEPTH, News, Why};

use super::channel::Channel;
use super::id::{self, Id, Stage};
use super::told;
use crate::abi::cm::{ConnParam, Event as Seen, EventChannel, Id as SeenId};
use crate::abi::object::Qp as SeenQp;
use crate::entry::{AGAIN, Errno, INVALID, export, put};
use crate::log::log;
use crate::text;

/// `enum rdma_cm_event_type`.
pub(super) const ADDR_RESOLVED: c_int = 0;
pub(super) const ADDR_ERROR: c_int = 1;
pub(super) const ROUTE_RESOLVED: c_int = 2;
const CONNECT_REQUEST: c_int = 4;
const CONNECT_ERROR: c_int = 6;
const UNREACHABLE: c_int = 7;
const REJECTED: c_int = 8;
const ESTABLISHED: c_int = 9;
const DISCONNECTED: c_int = 10;
pub(super) const ADDRINFO_RESOLVED: c_int = 16;
const USER: c_int = 18;

/// Most octets of private data: programs get their number in one.
pub(super) const MOST_PRIVATE: usize = u8::MAX as usize;

/// An event that a program has.
#[repr(C)]
struct Event {
    seen: Seen,
    /// Whose acknowledgement it is.
    of: *const Id,
    private_data: [u8; MOST_PRIVATE],
}

/// What an event says.
struct What {
    event: c_int,
    status: c_int,
    private_data: Vec<u8>,
    /// What the program has said itself.
    argument: u64,
    /// `initiator_depth` and `responder_resources`.
    depths: (u8, u8),
}

impl What {
    const fn plain(event: c_int, status: c_int) -> Self {
        Self { event, status, private_data: Vec::new(), argument: 0, depths: (0, 0) }
    }
}

/// An event of an id's own, as words for the engine to keep.
pub(super) fn own(event: c_int, status: c_int) -> [u64; 2] {
    with_argument(event, status, 0)
}

fn with_argument(event: c_int, status: c_int, argument: u64) -> [u64; 2] {
    [u64::from(event.cast_unsigned()) << 32 | u64::from(status.cast_unsigned()), argument]
}

fn of_words([word, argument]: [u64; 2]) -> What {
    What { argument, ..What::plain((word >> 32) as c_int, (word as u32).cast_signed()) }
}

/// A depth as programs have it.
pub(super) fn depth(depth: u16) -> u8 {
    depth.min(MAX_READ_DEPTH) as u8
}

/// Which event a failure of TCP's to connect is, and its status.
pub(super) fn unreachable(kind: ErrorKind) -> (c_int, c_int) {
    match kind {
        ErrorKind::ConnectionRefused => (REJECTED, -libc::ECONNREFUSED),
        ErrorKind::ConnectionReset => (REJECTED, -libc::ECONNRESET),
        ErrorKind::TimedOut => (UNREACHABLE, -libc::ETIMEDOUT),
        ErrorKind::HostUnreachable => (UNREACHABLE, -libc::EHOSTUNREACH),
        ErrorKind::NetworkUnreachable => (UNREACHABLE, -libc::ENETUNREACH),
        ErrorKind::InvalidInput => (CONNECT_ERROR, -libc::EINVAL),
        _ => (CONNECT_ERROR, -libc::EIO),
    }
}

/// What a program is told of a connection that stands so; nothing if it knows.
fn of_connection(connection: Connection) -> Option<What> {
    let error = match connection {
        Connection::Opening => return None,
        Connection::Ready(agreed) => {
            let depths = (depth(agreed.ord), depth(agreed.ird));
            return Some(What {
                private_data: agreed.private_data,
                depths,
                ..What::plain(ESTABLISHED, 0)
            });
        }
        Connection::Not(error) => error,
    };
    let (event, status) = match error {
        ConnectError::Idle | ConnectError::TimedOut => return None,
        ConnectError::Rejected { private_data, .. } => {
            return Some(What { private_data, ..What::plain(REJECTED, -libc::ECONNREFUSED) });
        }
        ConnectError::Unreachable(kind) => unreachable(kind),
        ConnectError::Failed(Why::Timeout) => (UNREACHABLE, -libc::ETIMEDOUT),
        ConnectError::Failed(Why::Ended(_)) => (REJECTED, -libc::ECONNRESET),
        ConnectError::Failed(Why::Cancelled) => (CONNECT_ERROR, -libc::ECONNABORTED),
        ConnectError::Failed(_) => (CONNECT_ERROR, -libc::EPROTO),
        ConnectError::Disconnected { .. } => (DISCONNECTED, 0),
    };
    Some(What::plain(event, status))
}

/// An event for a program.
fn give(of: &Id, id: *mut SeenId, listener: *mut SeenId, what: &What) -> *mut Seen {
    log!(
        Debug,
        "event {} of id {id:p}, status {}",
        text::connection_event(what.event),
        what.status
    );
    // SAFETY: a structure of numbers and pointers, for which all zeros mean nothing.
    let zeros: Seen = unsafe { std::mem::zeroed() };
    let seen = Seen { id, listen_id: listener, event: what.event, status: what.status, ..zeros };
    let event = Box::into_raw(Box::new(Event { seen, of, private_data: [0; MOST_PRIVATE] }));
    let len = what.private_data.len().min(MOST_PRIVATE);
    // SAFETY: the event was made just now, and nobody else knows it.
    unsafe { (&mut (*event).private_data)[..len].copy_from_slice(&what.private_data[..len]) };
    // SAFETY: as above; an address alone.
    let place = unsafe { &raw const (*event).private_data };
    let private_data = if len == 0 { std::ptr::null() } else { place.cast() };
    let param = ConnParam {
        private_data,
        private_data_len: len as u8,
        responder_resources: what.depths.1,
        initiator_depth: what.depths.0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: as above; the parameters are a union, whose largest side has the place.
    unsafe {
        let place = &raw mut (*event).seen.param;
        if what.event == USER {
            place.cast::<u64>().write(what.argument);
        } else {
            place.cast::<ConnParam>().write(param);
        }
    }
    event.cast()
}

/// The id of a peer who asks.
fn asked(listener: &Id, request: ConnectRequest) -> Result<(*mut SeenId, What), Errno> {
    let seen = listener.seen();
    // SAFETY: the listener is there, as long as this event is not acknowledged.
    let (channel, context, ps, kind) =
        unsafe { ((*seen).channel, (*seen).context, (*seen).ps, (*seen).qp_type) };
    let channel = if listener.state().waits { std::ptr::null_mut() } else { channel };
    let new = Id::create(channel, context, ps, kind)?;
    // SAFETY: made just now.
    let id = unsafe { Id::to_use(new) }?;
    let (local, peer) = (request.local(), request.peer());
    if let Err(error) = id.takes_device(local) {
        drop(request);
        // SAFETY: as above; nobody else knows it.
        unsafe { id::destroy(new) }?;
        return Err(error);
    }
    id.show_route(Some(local), Some(peer));
    // What the peer does not say is as much as may be.
    let depths = (
        depth(request.ird().unwrap_or(MAX_READ_DEPTH)),
        depth(request.ord().unwrap_or(MAX_READ_DEPTH)),
    );
    let private_data = request.private_data().to_vec();
    log!(Info, "{peer} asks at {local}, with {} octets of private data", private_data.len());
    let mut state = id.state();
    (state.stage, state.depths) = (Stage::Asked(request), depths);
    Ok((new, What { private_data, depths, ..What::plain(CONNECT_REQUEST, 0) }))
}

/// A connection stands otherwise: what that means for its id and its queue pair.
fn follows(id: &Id, event: c_int) {
    id.state().stage = if event == ESTABLISHED { Stage::Connected } else { Stage::Over };
    let Some(pair) = id.id.pair() else { return };
    id.engine.qps.find(pair.0, |qp| {
        // SAFETY: who destroys a queue pair takes it out of the directory first, which is not possible now.
        unsafe {
            if event == REJECTED {
                (*qp).pair.fail();
            }
            (*qp.cast::<SeenQp>()).state = (*qp).state();
        }
    });
}

/// The next event of a channel; waits for it, unless the descriptor was made non-blocking.
///
/// # Errors
/// `EAGAIN` if there is none and it was, `EINTR` if a signal came, [`AGAIN`] if nothing did for a while.
pub(super) fn next(channel: &Channel) -> Result<*mut Seen, Errno> {
    loop {
        told::refused(channel.engine);
        let (key, news) = channel.channel.read()?;
        // SAFETY: these news are not acknowledged yet.
        let id = unsafe { Id::of_key(key) };
        let given = match news {
            News::Own(words) => Some(give(id, id.seen(), std::ptr::null_mut(), &of_words(words))),
            News::Connection(connection) => {
                told::moved(id, &connection);
                of_connection(connection).map(|what| {
                    follows(id, what.event);
                    give(id, id.seen(), std::ptr::null_mut(), &what)
                })
            }
            // Who finds no room for a peer refuses it.
            News::Request(request) => {
                let asked = asked(id, request);
                let asked = asked.inspect_err(|e| {
                    log!(Error, "refuses a peer, since its id cannot be made: {e:?}")
                });
                asked.ok().map(|(new, what)| give(id, new, id.seen(), &what))
            }
        };
        match given {
            Some(event) => return Ok(event),
            None => id.acks.ack(1),
        }
    }
}

/// The same for who waits until there is one.
///
/// # Errors
/// As [`next`].
pub(super) fn await_next(channel: &Channel) -> Result<*mut Seen, Errno> {
    loop {
        match next(channel) {
            Err(AGAIN) => {}
            done => return done,
        }
    }
}

/// What an event means for a call that has waited for it.
///
/// # Errors
/// What went wrong.
///
/// # Safety
/// The event was given and is not acknowledged.
pub(super) unsafe fn outcome(event: *const Seen) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (event, status) = unsafe { ((*event).event, (*event).status) };
    match (event, status) {
        (_, 0) => Ok(()),
        (REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// True if a peer asks by this event.
///
/// # Safety
/// The event was given and is not acknowledged.
pub(super) unsafe fn asks(event: *const Seen) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*event).event == CONNECT_REQUEST }
}

/// Takes an event back; null is nothing.
///
/// # Safety
/// If it is not null, it was given and is not acknowledged yet.
pub(super) unsafe fn acknowledge(event: *mut Seen) {
    if event.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    // SAFETY: its id is there until this is counted.
    unsafe { (*event.of).acks.ack(1) };
}

export! {
    /// The next event of a channel; waits for one unless the descriptor was made non-blocking.
    waits fn sprat_rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Seen) -> c_int {
        // SAFETY: null, or a channel that is there during this call.
        let channel = unsafe { Channel::to_use(channel) }?;
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, and the program's to be written.
        unsafe { put(event, next(channel)?) }?;
        Ok(0)
    }
}

export! {
    /// Puts an event of the program's own behind those of an id that wait.
    minus fn sprat_rdma_write_cm_event(id: *mut SeenId, event: c_int, status: c_int, argument: u64) -> c_int {
        // SAFETY: null, or an id that is there.
        let id = unsafe { Id::to_use(id) }?;
        if event != USER {
            return Err(INVALID);
        }
        id.id.say(with_argument(event, status, argument));
        Ok(0)
    }

    /// An event was taken note of: it is not there any more.
    minus fn sprat_rdma_ack_cm_event(event: *mut Seen) -> c_int {
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, so it is to an event that the program gives back.
        unsafe { acknowledge(event) };
        Ok(0)
    }
}
