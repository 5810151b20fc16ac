//! Delivery: the engine's events of ids become events of programs.

use std::ffi::c_int;

use sprat_rdma::{ConnectError, ConnectRequest, Connection, MAX_READ_DEPTH, News, StartupError};

use super::channel::Channel;
use super::event::{
    self, CONNECT_ERROR, CONNECT_REQUEST, DISCONNECTED, ESTABLISHED, REJECTED, UNREACHABLE, USER,
    What, depth, give, of_words, unreachable, with_argument,
};
use super::id::{self, Id, Stage};
use super::log;
use crate::abi::cm::{Event as Seen, EventChannel, Id as SeenId};
use crate::entry::{AGAIN, Errno, INVALID, export, put};
use crate::log::log;
use crate::qp::Qp;

/// Translates a change of a connection; none if the program knows it already.
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
        ConnectError::Failed(StartupError::Timeout) => (UNREACHABLE, -libc::ETIMEDOUT),
        ConnectError::Failed(StartupError::Ended(_)) => (REJECTED, -libc::ECONNRESET),
        ConnectError::Failed(StartupError::Cancelled) => (CONNECT_ERROR, -libc::ECONNABORTED),
        ConnectError::Failed(_) => (CONNECT_ERROR, -libc::EPROTO),
        ConnectError::Disconnected { .. } => (DISCONNECTED, 0),
    };
    Some(What::plain(event, status))
}

/// Creates the id of a connection request.
fn asked(listener: &Id, request: ConnectRequest) -> Result<(*mut SeenId, What), Errno> {
    let seen = listener.seen();
    // SAFETY: The listener stays allocated until this event is acknowledged.
    let (channel, context, ps, kind) =
        unsafe { ((*seen).channel, (*seen).context, (*seen).ps, (*seen).qp_type) };
    let channel = if listener.state().waits { std::ptr::null_mut() } else { channel };
    let new = Id::create(channel, context, ps, kind)?;
    // SAFETY: The id was created above.
    let id = unsafe { Id::to_use(new) }?;
    let (local, peer) = (request.local(), request.peer());
    if let Err(error) = id.takes_device(local) {
        drop(request);
        // SAFETY: The id was created above, and no other reference exists.
        unsafe { id::destroy(new) }?;
        return Err(error);
    }
    id.show_route(Some(local), Some(peer));
    // A peer that states no depth permits the maximum.
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

/// Applies a change of a connection to its id and queue pair.
fn follows(id: &Id, event: c_int) {
    id.state().stage = if event == ESTABLISHED { Stage::Connected } else { Stage::Over };
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

/// Waits for the next event of a channel, unless its descriptor is non-blocking.
///
/// # Errors
/// `EAGAIN` if nothing waits on a non-blocking descriptor, `EINTR` after a signal, [`AGAIN`] after
/// an interval without events.
pub(super) fn next(channel: &Channel) -> Result<*mut Seen, Errno> {
    loop {
        log::refused(channel.engine);
        let (key, news) = channel.channel.read()?;
        // SAFETY: The id stays allocated until this event is acknowledged.
        let id = unsafe { Id::of_key(key) };
        let given = match news {
            News::Own(words) => {
                Some(give(&id.acks, id.seen(), std::ptr::null_mut(), &of_words(words)))
            }
            News::Connection(connection) => {
                log::moved(id, &connection);
                of_connection(connection).map(|what| {
                    follows(id, what.event);
                    give(&id.acks, id.seen(), std::ptr::null_mut(), &what)
                })
            }
            // A connection request is rejected if no id can be created for it.
            News::Request(request) => {
                let asked = asked(id, request);
                let asked = asked.inspect_err(|e| {
                    log!(Error, "refuses a peer, since its id cannot be made: {e:?}")
                });
                asked.ok().map(|(new, what)| give(&id.acks, new, id.seen(), &what))
            }
        };
        match given {
            Some(event) => return Ok(event),
            None => id.acks.ack(1),
        }
    }
}

/// Waits for the next event of a channel, across intervals without events.
///
/// # Errors
/// `EAGAIN` if nothing waits on a non-blocking descriptor, `EINTR` after a signal.
pub(super) fn await_next(channel: &Channel) -> Result<*mut Seen, Errno> {
    loop {
        match next(channel) {
            Err(AGAIN) => {}
            done => return done,
        }
    }
}

/// Waits for the event of a synchronous id and returns its outcome; returns at once for other ids.
pub(super) fn completes(id: &Id) -> Result<(), Errno> {
    if !id.state().waits {
        return Ok(());
    }
    // SAFETY: The id and its private channel are alive.
    unsafe {
        let last = std::mem::replace(&mut (*id.seen()).event, std::ptr::null_mut());
        event::acknowledge(last);
        let next = await_next(Channel::to_use((*id.seen()).channel)?)?;
        (*id.seen()).event = next;
        event::outcome(next)
    }
}

export! {
    /// Waits for the next event of a channel, unless its descriptor is non-blocking.
    waits fn sprat_rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut Seen) -> c_int {
        // SAFETY: The program passes null or a live channel.
        let channel = unsafe { Channel::to_use(channel) }?;
        if event.is_null() {
            return Err(INVALID);
        }
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(event, next(channel)?) }?;
        Ok(0)
    }
}

export! {
    /// Queues an event of the program's own behind the waiting events of an id.
    minus fn sprat_rdma_write_cm_event(id: *mut SeenId, event: c_int, status: c_int, argument: u64) -> c_int {
        // SAFETY: The program passes null or a live id.
        let id = unsafe { Id::to_use(id) }?;
        if event != USER {
            return Err(INVALID);
        }
        id.id.say(with_argument(event, status, argument));
        Ok(0)
    }
}
