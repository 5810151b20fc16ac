//! Connections of rdma_cm: connecting, listening, accepting, rejecting, disconnecting.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::Duration;

use sprat_rdma::{AcceptOptions, ConnectOptions, MAX_READ_DEPTH, Qp};

use super::address;
use super::delivery::{wait_next, wait_outcome};
use super::event::{self, MAX_PRIVATE_DATA, own, unreachable};
use super::id::{Id, Stage, State};
use super::{queues, resolve, rnr};
use crate::abi::cm::{ConnParam, Ece, Event, Id as Raw};
use crate::entry::{Errno, INVALID, at, export, put};
use crate::log::log;
use crate::qp::Qp as PairObject;

/// The time that TCP may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for which a refused connection to loopback is retried: a server that was started by
/// other means may be about to listen.
const REFUSED_RETRY: Duration = Duration::from_millis(100);
/// The time for which a refused connection to another machine is retried.
const REFUSED_RETRY_REMOTE: Duration = Duration::from_millis(500);
/// The delay of the first message after a peer's reply. Linux's siw overlooks a message that
/// arrives with its reply. Loopback has no delay. The variable `SPRAT_HOLD_MS` sets another one,
/// for peers on slow machines.
const FIRST_MESSAGE_DELAY_NS: u64 = 20_000_000;
const DELAY_VARIABLE: &str = "SPRAT_HOLD_MS";
/// The time for which an accepting peer delays its first message if the connecting peer sends none.
/// Connecting peers of this engine send one at once; siw sends none and does not wait either.
const FIRST_MESSAGE_WAIT_NS: u64 = 50_000_000;
/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: the value by which a program requests the highest
/// depth of Reads.
const MAXIMUM: u8 = u8::MAX;
/// The backlog of a listener whose program states none.
const BACKLOG: usize = 1024;

/// The parameters of a connection: those of the program, completed by `initiator` and `responder`.
struct Terms {
    pair: Qp,
    private_data: Vec<u8>,
    ord: u8,
    ird: u8,
    rnr_timeout_ns: Option<u64>,
}

impl Terms {
    /// Combines the program's parameters with defaults.
    ///
    /// # Safety
    /// The id is alive. The parameters are null, or they and their private data may be read.
    unsafe fn new(id: *mut Raw, param: *const ConnParam, state: &State) -> Result<Self, Errno> {
        // SAFETY: The caller guarantees it.
        let param = unsafe { param.as_ref() };
        // SAFETY: The id is alive, and its queue pair is null or alive.
        let pair = unsafe { PairObject::from_raw((*id).qp) }.ok();
        let own = pair.map(|pair| pair.pair.number().0);
        let timer = pair.map_or(0, PairObject::min_rnr_timer);
        let pair = own.or_else(|| param.map(|p| p.qp_num)).ok_or(INVALID)?;
        let most = MAX_READ_DEPTH as u8;
        let depth = |wanted: Option<u8>, default: u8| match wanted {
            None | Some(MAXIMUM) => Ok(default.min(most)),
            Some(depth) if depth > most => Err(INVALID),
            Some(depth) => Ok(depth),
        };
        let mut private_data = state.connect_data.clone();
        if let Some(param) = param
            && !param.private_data.is_null()
        {
            let len = usize::from(param.private_data_len);
            // SAFETY: The caller guarantees it.
            private_data
                .extend_from_slice(unsafe { std::slice::from_raw_parts(param.private_data, len) });
        }
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(INVALID);
        }
        Ok(Self {
            pair: Qp(pair),
            private_data,
            ord: depth(param.map(|p| p.initiator_depth), state.depths.0)?,
            ird: depth(param.map(|p| p.responder_resources), state.depths.1)?,
            rnr_timeout_ns: rnr::timeout_ns(
                param.map_or(rnr::FOREVER, |p| p.rnr_retry_count),
                timer,
            ),
        })
    }
}

/// The delay of the first message to a peer; see [`FIRST_MESSAGE_DELAY_NS`].
fn first_message_delay_ns(to: IpAddr) -> u64 {
    static CONFIGURED: OnceLock<Option<u32>> = OnceLock::new();
    let configured = CONFIGURED.get_or_init(|| std::env::var(DELAY_VARIABLE).ok()?.parse().ok());
    let default = if to.is_loopback() { 0 } else { FIRST_MESSAGE_DELAY_NS };
    configured.map_or(default, |ms| u64::from(ms) * 1_000_000)
}

/// True if an attempt to connect failed for a reason that most systems find later.
fn fails_at_once(error: &std::io::Error) -> bool {
    let is_known = unreachable(error.kind()).1 != -libc::EIO;
    is_known
        && (error.raw_os_error().is_some()
            || error.kind() == std::io::ErrorKind::NetworkUnreachable)
}

fn connect(id: &Id, terms: Terms, state: &mut State) -> Result<(), Errno> {
    // SAFETY: The id is alive, and its address was resolved.
    let to = unsafe { address::read((&raw const (*id.raw()).route.addr.destination).cast()) }?;
    if state.bound.is_none() && state.options.traffic_class.is_some() {
        let options = sprat_rdma::SocketOptions { connects: true, ..state.options };
        state.bound = Some(id.engine.device.bind(address::wildcard(to), options)?);
    }
    let options = ConnectOptions {
        ird: terms.ird.into(),
        ord: terms.ord.into(),
        private_data: terms.private_data,
        first_fpdu_delay_ns: first_message_delay_ns(to.ip()),
        open_with_write: true,
        rnr_timeout_ns: terms.rnr_timeout_ns,
        ..ConnectOptions::default()
    };
    let retry = if to.ip().is_loopback() { REFUSED_RETRY } else { REFUSED_RETRY_REMOTE };
    let pair = terms.pair.0;
    let begun = id.id.connect(terms.pair, state.bound.take(), to, options, CONNECT_TIMEOUT, retry);
    match begun {
        Ok(local) => {
            log!(Info, "queue pair {pair} connects to {to} from {local}");
            id.set_route(Some(local), None);
        }
        // Some systems fail at once. Report it by an event, as a later failure.
        Err(error) if fails_at_once(&error) => {
            let (event, status) = unreachable(error.kind());
            id.id.post(own(event, status));
        }
        Err(error) => return Err(error.into()),
    }
    state.stage = Stage::Connecting;
    Ok(())
}

fn accept(id: &Id, terms: Terms, state: &mut State) -> Result<(), Errno> {
    let Stage::Requested(request) = std::mem::replace(&mut state.stage, Stage::Closed) else {
        return Err(INVALID);
    };
    let options = AcceptOptions {
        ird: terms.ird.into(),
        ord: terms.ord.into(),
        private_data: terms.private_data,
        first_fpdu_timeout_ns: Some(FIRST_MESSAGE_WAIT_NS),
        rnr_timeout_ns: terms.rnr_timeout_ns,
    };
    id.id.accept(request, terms.pair, &options)?;
    state.stage = Stage::Connecting;
    Ok(())
}

export! {
    /// Connects an rdma_cm id. An event reports the outcome.
    minus fn sprat_rdma_connect(id: *mut Raw, param: *mut ConnParam) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let mut state = own.state();
        // SAFETY: The program passes null or valid parameters.
        let terms = unsafe { Terms::new(id, param, &state) }?;
        if !matches!(state.stage, Stage::Routed) {
            return Err(INVALID);
        }
        connect(own, terms, &mut state)?;
        state.connect_data = Vec::new();
        drop(state);
        wait_outcome(own)?;
        Ok(0)
    }

    /// Listens at the address of an rdma_cm id. At most `backlog` connection requests wait until
    /// the program reads their events.
    minus fn sprat_rdma_listen(id: *mut Raw, backlog: c_int) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let mut state = own.state();
        if matches!(state.stage, Stage::Idle) {
            resolve::bind(own, &mut state, (Ipv4Addr::UNSPECIFIED, 0).into(), false)?;
        }
        if !matches!(state.stage, Stage::Bound) {
            return Err(INVALID);
        }
        let backlog = usize::try_from(backlog).ok().filter(|n| (1..BACKLOG).contains(n));
        let backlog = backlog.unwrap_or(BACKLOG);
        let from = state.bound.take().ok_or(INVALID)?;
        state.stage = Stage::Closed;
        let mut local = from.local_addr();
        let ip = local.ip();
        let is_specific = !ip.is_unspecified() && !ip.is_loopback();
        if is_specific && from.is_local_only() {
            let effect = "serves programs of this machine only";
            address::explain_restriction(from.local_addr(), effect);
        }
        local.set_port(own.id.listen(from, backlog)?.port());
        log!(Info, "listens on {local}");
        own.set_route(Some(local), None);
        state.stage = Stage::Listening;
        Ok(0)
    }

    /// Accepts a connection request. An event reports when the connection is established.
    minus fn sprat_rdma_accept(id: *mut Raw, param: *mut ConnParam) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let mut state = own.state();
        // SAFETY: The program passes null or valid parameters.
        let terms = unsafe { Terms::new(id, param, &state) }?;
        if !matches!(state.stage, Stage::Requested(_)) {
            return Err(INVALID);
        }
        accept(own, terms, &mut state)?;
        drop(state);
        wait_outcome(own)?;
        Ok(0)
    }

    /// Rejects a connection request.
    minus fn sprat_rdma_reject(id: *mut Raw, private_data: *const c_void, bytes: u8) -> c_int {
        // SAFETY: The program passes null or a live id, and states the length of its data.
        unsafe { reject(id, private_data, bytes) }
    }

    /// Rejects a connection request whose driver options do not match.
    minus fn sprat_rdma_reject_ece(id: *mut Raw, private_data: *const c_void, bytes: u8) -> c_int {
        // SAFETY: The program passes null or a live id, and states the length of its data.
        unsafe { reject(id, private_data, bytes) }
    }

    /// Ends the connection of an rdma_cm id after all posted requests are sent. An event reports
    /// the end.
    minus fn sprat_rdma_disconnect(id: *mut Raw) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let over = match own.state().stage {
            Stage::Connecting | Stage::Connected => false,
            Stage::Requested(_) | Stage::Closed => true,
            _ => return Err(INVALID),
        };
        own.id.disconnect();
        // The event was delivered already and is not repeated.
        if !over {
            wait_outcome(own)?;
        }
        Ok(0)
    }

    /// Completes a connection whose queue pair the program made itself.
    ///
    /// On InfiniBand the program thereby reports that the queue pair is ready. Here the engine has
    /// done that, so the call succeeds, for programs that work on both.
    minus fn sprat_rdma_establish(id: *mut Raw) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        // SAFETY: The id is alive.
        let has_pair = unsafe { !(*own.raw()).qp.is_null() };
        if has_pair || !matches!(own.state().stage, Stage::Connected) {
            return Err(INVALID);
        }
        Ok(0)
    }

    /// Ignores the program's notice that a message has arrived before the connection is
    /// established: the engine sees the message itself.
    minus fn sprat_rdma_notify(id: *mut Raw, _event: c_int) -> c_int {
        // SAFETY: The program passes null or a live id.
        match unsafe { Id::usable(id) }?.state().stage {
            Stage::Connecting | Stage::Connected | Stage::Closed | Stage::Requested(_) => Ok(0),
            _ => Err(INVALID),
        }
    }
}

/// Rejects a connection request.
///
/// # Safety
/// The id is null or alive, and `bytes` bytes may be read at `private_data` if it is not null.
unsafe fn reject(id: *mut Raw, private_data: *const c_void, bytes: u8) -> Result<c_int, Errno> {
    // SAFETY: The caller guarantees it.
    let own = unsafe { Id::usable(id) }?;
    let mut state = own.state();
    if !matches!(state.stage, Stage::Requested(_)) {
        return Err(INVALID);
    }
    let Stage::Requested(request) = std::mem::replace(&mut state.stage, Stage::Closed) else {
        return Err(INVALID);
    };
    let data = if private_data.is_null() {
        &[]
    } else {
        // SAFETY: The caller guarantees it.
        unsafe { std::slice::from_raw_parts(private_data.cast::<u8>(), bytes.into()) }
    };
    log!(Info, "rejects {} with {} bytes of private data", request.peer(), data.len());
    // A peer that has disconnected meanwhile counts as rejected.
    let _ = request.reject(data);
    Ok(0)
}

export! {
    /// Waits for a connection request at a synchronous listener, and returns its id.
    minus fn sprat_rdma_get_request(listener: *mut Raw, to: *mut *mut Raw) -> c_int {
        // SAFETY: The program passes null or a live listener.
        let own = unsafe { Id::usable(listener) }?;
        let pair_attr = {
            let state = own.state();
            if !state.synchronous || to.is_null() {
                return Err(INVALID);
            }
            state.pair_attr
        };
        // SAFETY: The listener and its private channel are alive.
        let next = unsafe {
            event::acknowledge(std::mem::replace(&mut (*listener).event, std::ptr::null_mut()));
            wait_next(super::channel::Channel::usable((*listener).channel)?)?
        };
        // SAFETY: The event was delivered above.
        let taken = unsafe { take(listener, next, pair_attr) };
        match taken {
            Ok(id) => {
                // SAFETY: The pointer is not null, and the program lets this call write there.
                unsafe { put(to, id) }?;
                Ok(0)
            }
            Err(error) => {
                // SAFETY: The listener is alive; the next call acknowledges the event.
                unsafe { (*listener).event = next };
                Err(error)
            }
        }
    }
}

/// Takes the rdma_cm id of a connection request out of a listener's event.
///
/// # Safety
/// The listener is alive, and the event was delivered and is not acknowledged.
unsafe fn take(
    listener: *mut Raw,
    event: *mut Event,
    pair_attr: Option<crate::abi::attr::QpInit>,
) -> Result<*mut Raw, Errno> {
    // SAFETY: The caller guarantees it.
    unsafe {
        event::outcome(event)?;
        if !event::is_connect_request(event) {
            return Err(INVALID);
        }
        let id = (*event).id;
        if let Some(mut pair_attr) = pair_attr {
            queues::create_pair(id, (*listener).pd, &mut pair_attr)?;
        }
        (*id).event = event;
        Ok(id)
    }
}

export! {
    /// Accepts the driver options of a program for rdma_cm's connection establishment. They have no
    /// effect.
    minus fn sprat_rdma_set_local_ece(id: *mut Raw, ece: *mut Ece) -> c_int {
        // SAFETY: The program passes null or a live id, and null or valid structures.
        let (own, ece) = unsafe { (Id::usable(id)?, at(ece)?) };
        // SAFETY: The id is alive.
        let has_pair = unsafe { !(*own.raw()).qp.is_null() };
        if has_pair || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(INVALID);
        }
        Ok(0)
    }

    /// Returns the peer's driver options: none, since iWARP does not transmit any.
    minus fn sprat_rdma_get_remote_ece(id: *mut Raw, ece: *mut Ece) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        // SAFETY: The id is alive. The program passes null or memory that it lets this call write.
        unsafe {
            if !(*own.raw()).qp.is_null() {
                return Err(INVALID);
            }
            put(ece, Ece { vendor_id: 0, options: 0, comp_mask: 0 })?;
        }
        Ok(0)
    }
}
