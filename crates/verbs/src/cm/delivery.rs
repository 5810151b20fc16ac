//! Delivery of rdma_cm's events: the engine's events of ids become events of programs.

use std::ffi::c_int;

use sprat_rdma::{CmEvent, ConnectError, ConnectRequest, Connection, MAX_READ_DEPTH, StartupError};

use super::channel::Channel;
use super::event::{
    self, CONNECT_ERROR, CONNECT_REQUEST, Content, DISCONNECTED, ESTABLISHED, REJECTED,
    UNREACHABLE, USER, allocate, decode, depth, encode_with_argument, unreachable,
};
use super::id::{self, Id, Stage};
use super::log;
use crate::abi::cm::{Event as Raw, EventChannel, Id as RawId};
use crate::entry::{AGAIN, Errno, INVALID, export, put};
use crate::log::log;
use crate::qp::Qp;

/// Translates the new state of a connection into an event of rdma_cm; returns `None` if the program
/// knows it already.
fn translate(connection: Connection) -> Option<Content> {
    let error = match connection {
        Connection::Opening => return None,
        Connection::Ready(agreed) => {
            let depths = (depth(agreed.ord), depth(agreed.ird));
            return Some(Content {
                private_data: agreed.private_data,
                depths,
                ..Content::plain(ESTABLISHED, 0)
            });
        }
        Connection::Not(error) => error,
    };
    let (event, status) = match error {
        ConnectError::Idle | ConnectError::TimedOut => return None,
        ConnectError::Rejected { private_data, .. } => {
            return Some(Content { private_data, ..Content::plain(REJECTED, -libc::ECONNREFUSED) });
        }
        ConnectError::Unreachable(kind) => unreachable(kind),
        ConnectError::Failed(StartupError::Timeout) => (UNREACHABLE, -libc::ETIMEDOUT),
        ConnectError::Failed(StartupError::Ended(_)) => (REJECTED, -libc::ECONNRESET),
        ConnectError::Failed(StartupError::Cancelled) => (CONNECT_ERROR, -libc::ECONNABORTED),
        ConnectError::Failed(_) => (CONNECT_ERROR, -libc::EPROTO),
        ConnectError::Disconnected { .. } => (DISCONNECTED, 0),
    };
    Some(Content::plain(event, status))
}

/// Creates the rdma_cm id of a connection request, and the content of its event.
fn new_request(listener: &Id, request: ConnectRequest) -> Result<(*mut RawId, Content), Errno> {
    let raw = listener.raw();
    // SAFETY: The listener stays allocated until this event is acknowledged.
    let (channel, context, ps, kind) =
        unsafe { ((*raw).channel, (*raw).context, (*raw).ps, (*raw).qp_type) };
    let channel = if listener.state().synchronous { std::ptr::null_mut() } else { channel };
    let new = Id::create(channel, context, ps, kind)?;
    // SAFETY: The id was created above.
    let id = unsafe { Id::usable(new) }?;
    let (local, peer) = (request.local(), request.peer());
    if let Err(error) = id.set_device(local) {
        drop(request);
        // SAFETY: The id was created above, and no other reference exists.
        unsafe { id::destroy(new) }?;
        return Err(error);
    }
    id.set_route(Some(local), Some(peer));
    // A peer that states no depth permits the maximum.
    let depths = (
        depth(request.ird().unwrap_or(MAX_READ_DEPTH)),
        depth(request.ord().unwrap_or(MAX_READ_DEPTH)),
    );
    let private_data = request.private_data().to_vec();
    log!(Info, "{peer} connects to {local} with {} bytes of private data", private_data.len());
    let mut state = id.state();
    (state.stage, state.depths) = (Stage::Requested(request), depths);
    Ok((new, Content { private_data, depths, ..Content::plain(CONNECT_REQUEST, 0) }))
}

/// Applies the event of a connection to its rdma_cm id and queue pair: sets their states.
fn apply_change(id: &Id, event: c_int) {
    id.state().stage = if event == ESTABLISHED { Stage::Connected } else { Stage::Closed };
    let Some(pair) = id.id.pair() else { return };
    id.engine.qps.find(pair.0, |qp| {
        // SAFETY: A queue pair leaves the directory, which is locked now, before it is freed.
        unsafe {
            let own = &*qp.cast::<Qp>();
            if event == REJECTED {
                own.pair.fail();
            }
            (*qp).state = own.state();
        }
    });
}

/// Waits for the next event of an rdma_cm channel, unless its descriptor is non-blocking.
///
/// # Errors
/// `EAGAIN` if nothing waits on a non-blocking descriptor, `EINTR` after a signal, [`AGAIN`] after
/// an interval without events.
pub(super) fn next(channel: &Channel) -> Result<*mut Raw, Errno> {
    loop {
        log::refused_peers(channel.engine);
        let (key, event) = channel.wait_open()?.read()?;
        // SAFETY: The id stays allocated until this event is acknowledged.
        let id = unsafe { Id::of_key(key) };
        let given = match event {
            CmEvent::Own(words) => {
                Some(allocate(&id.event_counts, id.raw(), std::ptr::null_mut(), &decode(words)))
            }
            CmEvent::Connection(connection) => {
                log::connection_changed(id, &connection);
                translate(connection).map(|content| {
                    apply_change(id, content.event);
                    allocate(&id.event_counts, id.raw(), std::ptr::null_mut(), &content)
                })
            }
            // A connection request is rejected if no id can be created for it.
            CmEvent::Request(request) => {
                let created = new_request(id, request);
                let created = created.inspect_err(|e| {
                    let why = std::io::Error::from_raw_os_error(e.0);
                    log!(Error, "rejects a peer because no id can be created: {why}")
                });
                created
                    .ok()
                    .map(|(new, content)| allocate(&id.event_counts, new, id.raw(), &content))
            }
        };
        match given {
            Some(event) => return Ok(event),
            None => id.event_counts.ack(1),
        }
    }
}

/// Waits for the next event of an rdma_cm channel, across intervals without events.
///
/// # Errors
/// `EAGAIN` if nothing waits on a non-blocking descriptor, `EINTR` after a signal.
pub(super) fn wait_next(channel: &Channel) -> Result<*mut Raw, Errno> {
    loop {
        match next(channel) {
            Err(AGAIN) => {}
            done => return done,
        }
    }
}

/// Waits for the event of a synchronous rdma_cm id and returns its outcome; returns at once for
/// other ids.
pub(super) fn wait_outcome(id: &Id) -> Result<(), Errno> {
    if !id.state().synchronous {
        return Ok(());
    }
    // SAFETY: The id and its private channel are alive.
    unsafe {
        let last = std::mem::replace(&mut (*id.raw()).event, std::ptr::null_mut());
        event::acknowledge(last);
        let next = wait_next(Channel::usable((*id.raw()).channel)?)?;
        (*id.raw()).event = next;
        event::outcome(next)
    }
}

export! {
    /// Waits for the next event of an rdma_cm channel, unless its descriptor is non-blocking.
    blocking fn sprat_rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Raw) -> c_int {
        // SAFETY: The program passes null or a live channel.
        let channel = unsafe { Channel::usable(channel) }?;
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(event, next(channel)?) }?;
        Ok(0)
    }
}

export! {
    /// Queues an event of the program's own behind the waiting events of an rdma_cm id.
    minus fn sprat_rdma_write_cm_event(
        id: *mut RawId,
        event: c_int,
        status: c_int,
        argument: u64,
    ) -> c_int {
        // SAFETY: The program passes null or a live id.
        let id = unsafe { Id::usable(id) }?;
        if event != USER {
            return Err(INVALID);
        }
        id.id.post(encode_with_argument(event, status, argument));
        Ok(0)
    }
}
