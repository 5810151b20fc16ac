//! The endpoint: one owner of all sessions, client and server side, of one driver.

use super::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use crate::probe::{NoProbe, Probe};
use crate::wire::checksum::Crc32c;
use crate::{Addr, Datagrams, Instant, Rng};

/// What can be set; the default suits a driver of kernel UDP.
#[derive(Clone, Debug)]
pub struct Config {
    /// Continues a CRC32C; `wire::checksum::crc32c` is the portable one.
    pub crc32c: Crc32c,
    /// Whether to accept sessions: false for a pure client.
    pub serve: bool,
    /// Most requests waiting on one session beyond its eight channels.
    pub queue_limit: usize,
}

/// All sessions of one driver, client and server side alike.
#[derive(Debug)]
pub struct Endpoint<P: Probe = NoProbe> {
    _probe: P,
}

impl<P: Probe> Endpoint<P> {
    /// An endpoint with no sessions.
    pub fn new(_config: Config, _rng: Rng, probe: P) -> Self {
        Self { _probe: probe }
    }

    // Input.

    /// Receives one burst from `driver`: checks and parses every header and loads each session's line. Returns the
    /// number of datagrams. [`Endpoint::event`] then processes them one by one.
    pub fn input<D: Datagrams>(&mut self, _now: Instant, _driver: &mut D) -> usize {
        unimplemented!()
    }

    /// What happened: call until `None` after each `input` and `tick`. Borrowed payloads live in the driver's burst.
    pub fn event<'b, D: Datagrams>(&mut self, _now: Instant, _driver: &'b D) -> Option<Event<'b>> {
        unimplemented!()
    }

    // Output.

    /// Sends what there is to send, up to the work budget of one turn, and flushes the driver. Returns true if more is
    /// waiting for nothing but the next turn.
    pub fn output<D: Datagrams>(
        &mut self,
        _now: Instant,
        _memory: &(impl Slices + ?Sized),
        _driver: &mut D,
    ) -> bool {
        unimplemented!()
    }

    /// A slice that is no longer needed; call until `None` after `output`, `event` and `tick`.
    pub fn released(&mut self) -> Option<Slice> {
        unimplemented!()
    }

    // Time.

    /// When `tick` wants to be called, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        unimplemented!()
    }

    /// It is `now`: timers that are due fire.
    pub fn tick(&mut self, _now: Instant) {
        unimplemented!()
    }

    // Commands.

    /// Begins a session with the server at `to`. Requests may follow at once; they wait until it is open.
    pub fn connect(&mut self, _now: Instant, _to: Addr) -> SessionId {
        unimplemented!()
    }

    /// Ends a session: its requests fail, the server is told.
    pub fn close(&mut self, _now: Instant, _session: SessionId) {
        unimplemented!()
    }

    /// Sends a request. `tag` comes back with its [`Event::Response`] or [`Event::Failed`]: exactly one of the two,
    /// always. `deadline` may be [`Instant::NEVER`].
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent.
    pub fn request(
        &mut self,
        _now: Instant,
        _session: SessionId,
        _tag: u64,
        _message: Message,
        _deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        unimplemented!()
    }

    /// Gives a request up: it ends with [`super::RpcError::Cancelled`] unless it has ended already.
    pub fn cancel(&mut self, _now: Instant, _rpc: RpcId) {
        unimplemented!()
    }

    /// Answers a request.
    ///
    /// # Panics
    /// If the message exceeds [`super::MAX_MESSAGE`].
    pub fn reply(&mut self, _now: Instant, _rpc: ServerRpc, _message: Message) {
        unimplemented!()
    }

    /// Refuses a request that was not executed: its client waits that long and tries again, within its deadline.
    pub fn refuse(&mut self, _now: Instant, _rpc: ServerRpc, _retry_after_ns: u64) {
        unimplemented!()
    }
}
