//! Ids of rdma_cm: creating, migrating and destroying them, and their options.
//!
//! ```text
//!   Idle ─► Bound ─► Resolved ─► Routed ─► Connecting ─► Connected ─► Closed
//!     └───────┴────► Listening    Requested ──┘ (or rejected)
//! ```
//!
//! Invariant: the program's pointer is also the id's key at the engine, which does not deliver the
//! key after the id is destroyed. An id stays allocated until every event that the program received
//! of it is acknowledged.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use sprat_rdma::{BoundAddress, ConnectRequest, ConnectionId, SocketOptions};

use super::addrinfo::{IPOIB, Lookup, RC, TCP, UDP};
use super::channel::{self, Channel};
use super::{address, devices, event};
use crate::abi::attr::QpInit;
use crate::abi::cm::{EventChannel, Id as Raw};
use crate::engine::Engine;
use crate::entry::{Errno, INVALID, UNSUPPORTED, at, export, put};
use crate::object::{EventCounts, lock};

/// `RDMA_PS_IB`: InfiniBand's port space.
const IB: c_int = 0x013f;
/// The number of an RDMA device's only port.
const PORT: u8 = 1;
/// `RDMA_OPTION_IB`: the level of InfiniBand's only option of an rdma_cm id.
const OPTION_IB: c_int = 1;
const IB_PATH: c_int = 1;
/// `RDMA_OPTION_ID`: the level of an rdma_cm id's own options.
const OPTION_ID: c_int = 0;
const TOS: c_int = 0;
const REUSE: c_int = 1;
const ONLY_V6: c_int = 2;
const ACK_TIMEOUT: c_int = 3;

/// The progress of an rdma_cm id towards a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// The rdma_cm id has no address.
    Idle,
    /// The rdma_cm id has a local address.
    Bound,
    /// The rdma_cm id has the peer's address and a device.
    Resolved,
    /// The rdma_cm id has a route to the peer.
    Routed,
    /// The rdma_cm id has sent a connection request or accepted one.
    Connecting,
    /// The rdma_cm id represents a peer's connection request.
    Requested(ConnectRequest),
    /// The rdma_cm id accepts connection requests.
    Listening,
    /// The connection of the rdma_cm id is established.
    Connected,
    /// The connection of the rdma_cm id has ended, or could not be established.
    Closed,
}

/// The changing state of an rdma_cm id.
pub(super) struct State {
    pub(super) stage: Stage,
    /// True if the rdma_cm id is synchronous: it has a private channel, on which each call waits
    /// for its event.
    pub(super) synchronous: bool,
    pub(super) options: SocketOptions,
    /// The socket that reserves the local address of the rdma_cm id.
    pub(super) bound: Option<BoundAddress>,
    /// The depths of Reads that the peer proposed: those that this end may issue, and those that it
    /// serves.
    pub(super) depths: (u8, u8),
    /// The attributes for the queue pairs of accepted connections, if the rdma_cm id is a listener.
    pub(super) pair_attr: Option<QpInit>,
    /// The data that precede the private data of a connection request (`ai_connect`).
    pub(super) connect_data: Vec<u8>,
    /// The name resolution of the rdma_cm id.
    pub(super) lookup: Lookup,
}

/// An rdma_cm id: one end of a connection, or a listener.
#[repr(C)]
pub(super) struct Id {
    raw: UnsafeCell<Raw>,
    pub(super) engine: &'static Engine,
    pub(super) id: ConnectionId,
    pub(super) event_counts: EventCounts,
    state: Mutex<State>,
}

impl Id {
    /// Converts the program's pointer to a reference.
    ///
    /// # Errors
    /// The pointer is null, or a parent process created the id.
    ///
    /// # Safety
    /// The pointer is null, or the id stays alive while the reference is in use.
    pub(super) unsafe fn usable<'a>(id: *mut Raw) -> Result<&'a Self, Errno> {
        // SAFETY: The caller guarantees it. C's structure is the first field of `Self`.
        let id = unsafe { at(id.cast::<Self>()) }?;
        if id.engine.is_current() { Ok(id) } else { Err(INVALID) }
    }

    /// The id that a key of the engine names.
    ///
    /// # Safety
    /// The key came with an event that is not acknowledged, so the id is alive.
    pub(super) unsafe fn of_key<'a>(key: u64) -> &'a Self {
        // SAFETY: The caller guarantees it. The address was exposed when the id was created.
        unsafe { &*std::ptr::with_exposed_provenance::<Self>(key as usize) }
    }

    /// Creates an rdma_cm id and leaks it to the program. Without a channel it is synchronous.
    ///
    /// # Errors
    /// The system has no descriptor left, or a parent process created the channel.
    pub(super) fn create(
        channel: *mut EventChannel,
        context: *mut c_void,
        ps: c_int,
        kind: c_int,
    ) -> Result<*mut Raw, Errno> {
        let synchronous = channel.is_null();
        let at = if synchronous { channel::create()? } else { channel };
        // SAFETY: The channel is one that the program passed, or the one created above.
        let own = unsafe { Channel::usable(at) }?;
        let opened = own.open()?;
        // SAFETY: All zeros are a valid value of a structure of numbers and pointers.
        let zeros: Raw = unsafe { std::mem::zeroed() };
        let raw = Raw { channel: at, context, ps, qp_type: kind, ..zeros };
        let place = Box::into_raw(Box::<Self>::new_uninit());
        let key = place.expose_provenance() as u64;
        let id = Self {
            raw: UnsafeCell::new(raw),
            engine: own.engine,
            id: ConnectionId::new(&opened, key),
            event_counts: EventCounts::default(),
            state: Mutex::new(State {
                stage: Stage::Idle,
                synchronous,
                options: SocketOptions::default(),
                bound: None,
                depths: (u8::MAX, u8::MAX),
                pair_attr: None,
                connect_data: Vec::new(),
                lookup: Lookup::None,
            }),
        };
        // SAFETY: The memory was allocated above for an `Id`, and no other reference exists.
        unsafe { (*place).write(id) };
        Ok(place.cast())
    }

    /// The C structure of the rdma_cm id, which the program also writes.
    pub(super) fn raw(&self) -> *mut Raw {
        self.raw.get()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes the addresses of the route to the C structure of the rdma_cm id.
    pub(super) fn set_route(&self, from: Option<SocketAddr>, to: Option<SocketAddr>) {
        // SAFETY: The id is alive, and programs do not write these fields.
        let addr = unsafe { &raw mut (*self.raw()).route.addr };
        for (at, which) in [(from, 0), (to, 1)] {
            if let Some(at) = at {
                // SAFETY: The id is alive, and both fields have room for any address.
                unsafe {
                    let storage = if which == 0 {
                        &raw mut (*addr).source
                    } else {
                        &raw mut (*addr).destination
                    };
                    address::write(storage, at);
                }
            }
        }
    }

    /// Assigns the device of a local address, and writes its GID to the C structure.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the address.
    pub(super) fn set_device(&self, own: SocketAddr) -> Result<(), Errno> {
        let (context, pd) = devices::of(own.ip())?;
        let raw = self.raw();
        // SAFETY: The id is alive, and programs do not write these fields.
        unsafe {
            (*raw).verbs = context;
            (*raw).port_num = PORT;
            (*raw).route.addr.ib.sgid = address::gid(own.ip());
            if (*raw).pd.is_null() {
                (*raw).pd = pd;
            }
        }
        Ok(())
    }
}

export! {
    /// Creates an rdma_cm id.
    minus fn sprat_rdma_create_id(
        channel: *mut EventChannel,
        to: *mut *mut Raw,
        context: *mut c_void,
        ps: c_int,
    ) -> c_int {
        if to.is_null() {
            return Err(INVALID);
        }
        let id = create(channel, context, ps, RC)?;
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(to, id) }?;
        Ok(0)
    }

    /// Destroys an rdma_cm id and its connection or listener. Waits until all its events are
    /// acknowledged.
    minus fn sprat_rdma_destroy_id(id: *mut Raw) -> c_int {
        // SAFETY: The program passes null or an id that it does not use afterwards.
        unsafe { destroy(id) }?;
        Ok(0)
    }

    /// Moves an rdma_cm id, with its waiting events, to another channel, or makes it synchronous.
    minus fn sprat_rdma_migrate_id(id: *mut Raw, channel: *mut EventChannel) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let (was_synchronous, synchronous) = (own.state().synchronous, channel.is_null());
        if was_synchronous && synchronous {
            return Err(INVALID);
        }
        let to = if synchronous { channel::create()? } else { channel };
        // SAFETY: The channel is one that the program passed, or the one created above.
        let new_channel = unsafe { Channel::usable(to) }?;
        let delivered = own.id.migrate(&*new_channel.open()?);
        // SAFETY: The id is alive, and nothing else uses its private channel.
        unsafe {
            let from = std::mem::replace(&mut (*id).channel, to);
            if was_synchronous {
                event::acknowledge(std::mem::replace(&mut (*id).event, std::ptr::null_mut()));
                channel::free(from);
            }
        }
        own.state().synchronous = synchronous;
        own.event_counts.wait_all_acked(delivered);
        Ok(0)
    }

    /// Sets an option of an rdma_cm id's socket: its traffic class, or the exclusion of IPv4 from
    /// IPv6's wildcard address. Address reuse is always on, and the timeout of InfiniBand's
    /// acknowledgements has no effect.
    minus fn sprat_rdma_set_option(
        id: *mut Raw,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        bytes: usize,
    ) -> c_int {
        // SAFETY: The program passes null or a live id.
        let own = unsafe { Id::usable(id) }?;
        let wanted = match (level, name) {
            _ if value.is_null() && bytes > 0 => return Err(Errno(libc::EFAULT)),
            (OPTION_ID, TOS | ACK_TIMEOUT) => 1,
            (OPTION_ID, REUSE | ONLY_V6) => size_of::<c_int>(),
            // iWARP has no path records.
            (OPTION_IB, IB_PATH) => return Err(INVALID),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        if value.is_null() || bytes != wanted {
            return Err(INVALID);
        }
        let mut state = own.state();
        let fresh = matches!(state.stage, Stage::Idle);
        match name {
            // SAFETY: The pointer is not null, and the program states the length of its memory.
            TOS => state.options.traffic_class = Some(unsafe { value.cast::<u8>().read() }),
            ONLY_V6 if fresh => {
                // SAFETY: The pointer is not null, and the program states the length of its memory.
                // The read needs no alignment.
                state.options.v6_only = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            }
            REUSE if !matches!(state.stage, Stage::Listening) => {}
            ACK_TIMEOUT => {}
            _ => return Err(INVALID),
        }
        Ok(0)
    }
}

/// Creates an rdma_cm id for a program.
///
/// # Errors
/// `EOPNOTSUPP` for port spaces that iWARP lacks.
pub(super) fn create(
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: c_int,
    kind: c_int,
) -> Result<*mut Raw, Errno> {
    match ps {
        TCP if kind == RC => Id::create(channel, context, ps, kind),
        TCP | IPOIB | UDP | IB => Err(UNSUPPORTED),
        _ => Err(INVALID),
    }
}

/// Destroys an rdma_cm id.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or the program passes a live id and does not use it afterwards.
pub(super) unsafe fn destroy(id: *mut Raw) -> Result<(), Errno> {
    // SAFETY: The caller guarantees it.
    let own = unsafe { at(id.cast::<Id>()) }?;
    let ours = own.engine.is_current();
    if ours {
        let delivered = own.id.end();
        // SAFETY: The id is alive, and its event is null or not acknowledged.
        unsafe { event::acknowledge(std::mem::replace(&mut (*id).event, std::ptr::null_mut())) };
        own.event_counts.wait_all_acked(delivered);
    }
    let synchronous = own.state().synchronous;
    // SAFETY: The id is alive.
    let channel = unsafe { (*id).channel };
    // SAFETY: The constructor leaked this pointer to the program, and no event refers to the id any
    // more.
    let own = unsafe { Box::from_raw(id.cast::<Id>()) };
    if ours {
        drop(own)
    } else {
        std::mem::forget(own)
    }
    if synchronous {
        // SAFETY: The channel belongs to this id alone.
        unsafe { channel::free(channel) };
    }
    Ok(())
}
