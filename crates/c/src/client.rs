//! A client of C programs: the store's client behind a lock that is never waited for, and the
//! outcomes of operations in progress until the program takes them.
//!
//! Every call holds the lock of its client from its start to its end. A call that finds it held
//! fails. So a program that uses a client from two threads gets an error instead of broken memory.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sprat::kv;
use sprat::locator::Locator;

use crate::abi;
use crate::convert::{Call, milliseconds};
use crate::entry::export;
use crate::pointer::{Handle, Out, OutHandle, OwnedHandle, Structure, StructureOut, Text};
use crate::status::{Failure, Status};

/// The time that a client's operations may take unless the program sets another.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time without work after which a wait with a limit sleeps, in nanoseconds. It is that of the
/// library's own waits.
const SPIN_NS: u64 = 300_000;

/// The client that C programs have, `sprat_client`.
pub(crate) struct Client {
    shared: Arc<Shared>,
}

/// A client with its lock, which its operations and scans keep.
pub(crate) struct Shared {
    state: Mutex<State>,
}

/// The state that the lock of a client protects.
pub(crate) struct State {
    /// The store's client, until the program disconnects it.
    client: Option<kv::Client>,
    timeout: Duration,
    /// The descriptor of the client, from its first use on.
    descriptor: Option<OwnedFd>,
    /// The operations in progress, by [`kv::OperationId::index`].
    running: Vec<Option<(kv::OperationId, Weak<Slot>)>>,
}

/// The place for the outcome of an operation.
pub(crate) struct Slot {
    progress: Mutex<Progress>,
}

/// The progress of an operation.
pub(crate) enum Progress {
    Running,
    Ended(kv::Outcome),
    Taken,
    Cancelled,
    Disconnected,
}

impl Slot {
    /// Returns the progress, locked. No code holds this lock for longer than a few instructions, so
    /// it is waited for.
    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true unless the operation is in progress.
    pub(crate) fn is_ready(&self) -> bool {
        !matches!(*self.progress(), Progress::Running)
    }

    /// Ends an operation that is in progress.
    fn end(&self, outcome: Progress) {
        let mut progress = self.progress();
        if matches!(*progress, Progress::Running) {
            *progress = outcome;
        }
    }
}

impl Client {
    /// Returns the part that operations and scans keep.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs one call.
    pub(crate) fn with<T>(
        &self,
        body: impl FnOnce(&mut State) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.shared.with(body)
    }
}

impl Shared {
    /// Runs one call, and delivers the outcomes that arrived meanwhile.
    pub(crate) fn with<T>(
        &self,
        body: impl FnOnce(&mut State) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return Err(Failure::of(Status::InUse)),
            Err(TryLockError::Poisoned(_)) => {
                let message = "an earlier call met a bug of the library; disconnect the client";
                return Err(Failure::new(Status::Internal, message));
            }
        };
        let result = body(&mut state);
        state.deliver();
        result
    }

    /// Ends the client and all its operations, also after a panic. Waits for another call.
    fn close(&self) {
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(poisoned) => {
                let state = poisoned.into_inner();
                if let Some(client) = &state.client {
                    // Nothing may run on what the panic has left.
                    client.skip_farewell();
                }
                state
            }
        };
        for (_, slot) in state.running.drain(..).flatten() {
            if let Some(slot) = slot.upgrade() {
                slot.end(Progress::Disconnected);
            }
        }
        state.descriptor = None;
        state.client = None;
    }
}

impl State {
    fn new(client: kv::Client, timeout: Duration) -> Self {
        Self { client: Some(client), timeout, descriptor: None, running: Vec::new() }
    }

    /// Returns the store's client. Fails if the program has disconnected it.
    pub(crate) fn client(&self) -> Result<&kv::Client, Failure> {
        self.client.as_ref().ok_or_else(|| Failure::of(Status::Disconnected))
    }

    /// Runs `body` with the client, whose operations may take the time that the call allows.
    pub(crate) fn ask<T>(
        &self,
        call: &Call,
        body: impl FnOnce(&kv::Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let client = self.client()?;
        let Some(timeout) = call.timeout else { return body(client) };
        client.set_timeout(timeout);
        let result = body(client);
        client.set_timeout(self.timeout);
        result
    }

    /// Starts an operation and returns its id, with the place for its outcome.
    pub(crate) fn start(
        &mut self,
        call: &Call,
        begin: impl FnOnce(&kv::Client) -> kv::OperationId,
    ) -> Result<(kv::OperationId, Arc<Slot>), Failure> {
        let id = self.ask(call, |client| Ok(begin(client)))?;
        let slot = Arc::new(Slot { progress: Mutex::new(Progress::Running) });
        if id.index() >= self.running.len() {
            self.running.resize_with(id.index() + 1, || None);
        }
        self.running[id.index()] = Some((id, Arc::downgrade(&slot)));
        Ok((id, slot))
    }

    /// Gives an operation up that is in progress.
    pub(crate) fn cancel(&mut self, id: kv::OperationId, slot: &Slot) -> Result<(), Failure> {
        if slot.is_ready() {
            return Ok(());
        }
        self.client()?.cancel(id);
        if let Some(entry) = self.running.get_mut(id.index()) {
            entry.take_if(|(known, _)| *known == id);
        }
        slot.end(Progress::Cancelled);
        Ok(())
    }

    /// Puts the outcomes of operations that have ended into their places. The outcome of an
    /// operation that the program has released is dropped.
    fn deliver(&mut self) {
        let Some(client) = &self.client else { return };
        while let Some((id, outcome)) = client.next_completed() {
            let entry = self.running.get_mut(id.index());
            let entry = entry.and_then(|entry| entry.take_if(|(known, _)| *known == id));
            if let Some(slot) = entry.and_then(|(_, slot)| slot.upgrade()) {
                slot.end(Progress::Ended(outcome));
            }
        }
    }

    /// Makes progress until an operation has its outcome.
    pub(crate) fn wait(&mut self, slot: &Slot) -> Result<(), Failure> {
        while !slot.is_ready() {
            self.client()?.turn_and_rest();
            self.deliver();
        }
        Ok(())
    }

    /// Makes progress until an operation has its outcome, `limit_ns` nanoseconds at most.
    pub(crate) fn wait_up_to(&mut self, slot: &Slot, limit_ns: u64) -> Result<(), Failure> {
        let start = sprat_sys::clock::now();
        let mut worked = start;
        while !slot.is_ready() {
            let has_worked = self.client()?.turn();
            self.deliver();
            if slot.is_ready() {
                break;
            }
            let now = sprat_sys::clock::now();
            let left_ns = limit_ns.saturating_sub(now.since(start));
            if left_ns == 0 {
                return Err(Failure::of(Status::NotReady));
            }
            if has_worked {
                worked = now;
            } else if now.since(worked) > SPIN_NS {
                self.sleep(Duration::from_nanos(left_ns))?;
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Sleeps until the client has something to do, `limit` at most. Returns at once if it has.
    fn sleep(&mut self, limit: Duration) -> Result<(), Failure> {
        self.descriptor()?;
        let (Some(descriptor), Some(longest)) =
            (&self.descriptor, self.client()?.prepare_to_sleep())
        else {
            return Ok(());
        };
        let time = Timespec::try_from(longest.min(limit)).ok();
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(std::io::Error::from(errno).into()),
        }
    }

    /// Returns the number of the client's descriptor.
    fn descriptor(&mut self) -> Result<i32, Failure> {
        let descriptor = match self.descriptor.take() {
            Some(descriptor) => descriptor,
            None => self.client()?.descriptor()?,
        };
        Ok(self.descriptor.insert(descriptor).as_raw_fd())
    }
}

/// Makes the store's client by the options of C.
fn connect(coordinator: &str, options: &abi::Options) -> Result<State, Failure> {
    let mut builder = kv::Client::builder(coordinator);
    let timeout = milliseconds(options.timeout_ms).unwrap_or(TIMEOUT);
    builder = builder.timeout(timeout);
    if let Some(time) = milliseconds(options.try_timeout_ms) {
        builder = builder.try_timeout(time);
    }
    if let Some(text) = options.transports.optional("the list of transports")? {
        builder = builder.transports(text.split(';').filter(|name| !name.is_empty()));
    }
    if let Some(text) = options.local.optional("the list of local locators")? {
        let locators =
            Locator::list(text).map_err(|e| Failure::new(Status::System, e.to_string()))?;
        builder = locators.into_iter().fold(builder, kv::Builder::local);
    }
    if options.max_operations != 0 {
        builder = builder.max_operations(options.max_operations);
    }
    builder = match options.insecure_network {
        0 => builder,
        1 => builder.insecure_network(true),
        other => return Err(Failure::invalid(format!("insecure_network is {other}"))),
    };
    Ok(State::new(builder.connect()?, timeout))
}

export! {
    /// Makes a client.
    fn sprat_connect(
        coordinator: Text,
        options: Structure<abi::Options>,
        client: OutHandle<Client>,
    ) {
        client.clear("the place for the client")?;
        let coordinator = coordinator.required("the coordinator's locator")?;
        let state = connect(coordinator, &options.copied("sprat_options")?)?;
        client.give(Client { shared: Arc::new(Shared { state: Mutex::new(state) }) });
        Ok(())
    }

    /// Sets the time that each operation that starts from now on may take.
    fn sprat_set_timeout(client: Handle<Client>, timeout_ms: u64) {
        client.required("the client")?.with(|state| {
            let timeout = milliseconds(timeout_ms);
            let timeout = timeout.ok_or_else(|| Failure::invalid("the time is 0"))?;
            state.client()?.set_timeout(timeout);
            state.timeout = timeout;
            Ok(())
        })
    }

    /// Returns the counters of a client.
    fn sprat_client_counters(client: Handle<Client>, place: StructureOut<abi::Counters>) {
        let counters = client.required("the client")?.with(|state| Ok(state.client()?.counters()))?;
        let counters = abi::Counters {
            size: 0,
            started: counters.started,
            completed: counters.completed,
            cancelled: counters.cancelled,
            retried: counters.retried,
            late: counters.late,
            route_refreshes: counters.route_refreshes,
            bundles: counters.bundles,
            saved_round_trips: counters.saved_round_trips,
        };
        place.set(&counters, "sprat_counters")
    }

    /// Makes one turn of a client.
    fn sprat_poll(client: Handle<Client>, worked: Out<std::ffi::c_int>) {
        let has_worked = client.required("the client")?.with(|state| Ok(state.client()?.turn()))?;
        worked.set(i32::from(has_worked));
        Ok(())
    }

    /// Returns the descriptor of a client.
    fn sprat_descriptor(client: Handle<Client>, descriptor: Out<std::ffi::c_int>) {
        descriptor.require("the place for the descriptor")?;
        descriptor.set(client.required("the client")?.with(State::descriptor)?);
        Ok(())
    }

    /// Prepares for a wait on the descriptor of a client.
    fn sprat_prepare_to_sleep(client: Handle<Client>, timeout_ms: Out<std::ffi::c_int>) {
        timeout_ms.require("the place for the time")?;
        let client = client.required("the client")?;
        let longest = client.with(|state| Ok(state.client()?.prepare_to_sleep()))?;
        // A wait that ends before the time would be repeated at once: round up.
        let longest = longest.map_or(0, |time| time.as_nanos().div_ceil(1_000_000));
        timeout_ms.set(i32::try_from(longest).unwrap_or(i32::MAX));
        Ok(())
    }
}

export! {
    /// Ends a client and frees it.
    plain(()) fn sprat_disconnect(client: OwnedHandle<Client>) -> () {
        if let Some(client) = client.take() {
            client.shared.close();
        }
    }
}

/// Several threads may have these objects, so that the compiler has to see that they may.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Client>();
    shared::<Slot>();
};
