//! The migration of a tablet from this master to another one.
//!
//! ```text
//!  PullTablet ─► waits for a tick
//!        tick ─► a page of objects and changes        (crate::objects::leaving)
//!             ─► close: this master serves the tablet no more
//!  FindTablet ─► the coordinator says: moving │ kept: serve again │ gone: sweep the objects
//! ```
//!
//! Invariants: a closed tablet is served again only if a coordinator says that the migration was
//! given up, in the term in which it began or a later one: then no coordinator will let the other
//! master have the tablet by this migration. A migration that has ended does not begin again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError};
use sprat_proto::time::MS;

use super::links::COORDINATOR;
use super::membership::CALL_NS;
use super::state::Master;
use crate::message::Status;
use crate::message::migration::{Fate, FindTablet, Found, PullTablet};
use crate::objects::leaving::{Asked, Leaving, NoPage};
use crate::objects::tablet::Tablet;

/// The pause between two questions to the coordinator while the tablet is served.
const SERVED_NS: u64 = 1000 * MS;
/// The pause between two questions to the coordinator once the tablet is closed.
const CLOSED_NS: u64 = 5 * MS;
/// The number of bits of a migration's number below the coordinator's term.
const TERM_SHIFT: u32 = 32;

impl Master {
    /// Keeps a request for a page until the next tick.
    ///
    /// # Errors
    /// [`Status::Retry`] if too many wait.
    pub(crate) fn keep_pull(&mut self, caller: Caller, pull: PullTablet) -> Result<(), Status> {
        self.departure.keep(caller, pull)?;
        self.busy = true;
        Ok(())
    }

    /// Answers one of the requests for pages, so that the requests of clients that arrive meanwhile
    /// come before the next one. Returns true if another one waits.
    pub(super) fn answer_pull(&mut self, now: Instant) -> bool {
        let Some((caller, pull)) = self.departure.next_pull() else { return false };
        let mut message = Message::default();
        let replied = match self.pull(now, &pull) {
            Ok(page) => {
                message = page.into();
                // What another master gets may not be lost here: a part of a transaction may be
                // elsewhere.
                self.gate(caller, &mut message, !pull.close)
            }
            Err(status) => {
                self.refuse(status, &mut message);
                Replied::Now
            }
        };
        if replied != Replied::Later {
            self.out.push_back(Output::Reply { caller, message });
        }
        self.departure.has_pulls()
    }

    /// Returns the page of the tablet that another master asks for, in the format of the reply.
    fn pull(&mut self, now: Instant, pull: &PullTablet) -> Result<Vec<u8>, Status> {
        self.membership.is_me(pull.cluster, pull.source)?;
        self.membership.check(now, pull.cluster)?;
        if pull.first > pull.last {
            return Err(Status::BadFormat);
        }
        let tablet = Tablet { table: pull.table, first: pull.first, last: pull.last };
        let known =
            self.memory.leaving.as_ref().map(|leaving| (leaving.number(), leaving.is_closed()));
        match known {
            Some((number, _)) if number == pull.migration => {}
            Some((number, _)) if number > pull.migration => return Err(Status::NoRecovery),
            // The coordinator has to say first what has become of the other tablet.
            Some((_, true)) => return Err(Status::Retry),
            _ => self.begin_departure(now, pull, tablet)?,
        }
        if self.memory.leaving.as_ref().is_none_or(|leaving| leaving.tablet() != tablet) {
            return Err(Status::BadFormat);
        }
        if pull.close && !known.is_some_and(|(_, is_closed)| is_closed) {
            self.memory.close_leaving();
            self.departure.ask_at(now.after(CLOSED_NS));
        }
        let asked = Asked { page: pull.page, attempt: pull.attempt, from: pull.from };
        self.memory.page((pull.cluster, pull.source), asked).map_err(|why| match why {
            // An earlier page may be on its way.
            NoPage::OutOfOrder => Status::Retry,
            NoPage::TooManyChanges => Status::NoSpace,
        })
    }

    fn begin_departure(
        &mut self,
        now: Instant,
        pull: &PullTablet,
        tablet: Tablet,
    ) -> Result<(), Status> {
        if pull.migration <= self.departure.ended || pull.from != 1 {
            return Err(Status::NoRecovery);
        }
        if !self.memory.tablets.owns(tablet) {
            // The coordinator's word that this master owns the tablet may be on its way.
            return Err(Status::Retry);
        }
        self.end_departure(true);
        self.memory.leaving = Some(Box::new(Leaving::new(pull.migration, tablet)));
        self.departure.ask_at(now.after(SERVED_NS));
        Ok(())
    }

    /// Ends the migration of the tablet that leaves, if there is one. If it is `kept`, this master
    /// serves it.
    pub(crate) fn end_departure(&mut self, kept: bool) {
        if let Some(leaving) = &self.memory.leaving {
            self.departure.ended = leaving.number();
            self.memory.end_leaving(kept);
            self.busy |= !kept;
        }
        self.departure.ask_at(Instant::NEVER);
    }

    /// Returns the question to the coordinator that is due.
    pub(super) fn ask_for_fate(&mut self, now: Instant, tag: u64) -> Option<Output> {
        let leaving = self.memory.leaving.as_ref()?;
        let (cluster, server) = (self.membership.cluster()?, self.membership.server()?);
        self.departure.asked = Some(tag);
        let Tablet { table, first, last } = leaving.tablet();
        let migration = leaving.number();
        let message = FindTablet { cluster, server, migration, table, first, last }.emit();
        let (message, deadline) = (message.into(), now.after(CALL_NS));
        Some(Output::Call { link: COORDINATOR, tag, message, deadline })
    }

    /// Takes the coordinator's answer to the question for the tablet that leaves.
    pub(super) fn take_fate(&mut self, now: Instant, result: Result<Payload<'_>, RpcError>) {
        let Some(leaving) = &self.memory.leaving else { return };
        let began_in = leaving.number() >> TERM_SHIFT;
        let pause_ns = if leaving.is_closed() { CLOSED_NS } else { SERVED_NS };
        self.departure.ask_at(now.after(pause_ns));
        let Some(found) = result.ok().and_then(|reply| Found::parse(&reply).ok()) else { return };
        if found.term < began_in || self.membership.follow(found.term).is_err() {
            return;
        }
        match found.fate {
            Fate::Moving => {}
            Fate::Kept => self.end_departure(true),
            Fate::Gone => self.end_departure(false),
        }
    }
}
