//! Tests of a master that another one takes a tablet over from.

use super::*;
use crate::message::migration::{Fate, FindTablet, Found, MOST_AHEAD, Page, PullTablet};

/// The first migration that a coordinator of the test's term has ordered.
const FIRST: u64 = TERM << 32 | 1;
/// The half of the table that leaves.
const HALF: (u64, u64) = (0, u64::MAX / 2);

impl Rig {
    /// Asks for a page. Returns the reply, or the number of the request if it waits.
    fn ask_for(&mut self, migration: u64, page: u64, close: bool) -> Result<Vec<u8>, u64> {
        let (first, last) = HALF;
        let pull = PullTablet {
            cluster: CLUSTER,
            source: ME,
            migration,
            table: TABLE,
            first,
            last,
            page,
            attempt: page,
            from: page,
            close,
        };
        self.send(&pull.emit())
    }

    /// Returns the reply to a request for a page, if there is one.
    fn page(&mut self, number: u64) -> Option<Result<(), Status>> {
        let reply = self.replies.remove(&number)?;
        Some(Page::parse(&reply).map(|_| ()))
    }

    fn pull(&mut self, migration: u64, page: u64, close: bool) -> Result<(), Status> {
        let number = self.ask_for(migration, page, close).expect_err("a page waits for a tick");
        self.pass(0);
        self.page(number).expect("a tick makes the page")
    }

    /// Returns the status of a read of a key in the half that leaves.
    fn leaving(&mut self) -> Result<(), Status> {
        let hasher = crate::hash::KeyHasher::from(KEY);
        let key = (0..).map(u64::to_be_bytes).find(|key| hasher.hash(key).0 <= HALF.1).unwrap();
        self.read(&key).map(|_| ())
    }

    /// Answers a question for the fate of the tablet that was asked before. Takes no question.
    fn late(&mut self, (tag, request): &(u64, Vec<u8>), fate: Fate) {
        assert!(FindTablet::parse(request).is_ok());
        let reply = Found { term: TERM, fate }.emit();
        self.master.response(self.now, *tag, Ok(Payload::Borrowed(&reply)));
        self.pump();
    }
}

const SERVED: Result<(), Status> = Err(Status::ObjectDoesntExist);
const CLOSED: Result<(), Status> = Err(Status::UnknownTablet);

#[test]
fn a_closed_tablet_is_served_again_when_the_coordinator_says_so() {
    let mut rig = Rig::small();
    assert_eq!(
        rig.pull(FIRST, 2, false),
        Err(Status::NoRecovery),
        "a migration begins with page 1"
    );
    assert_eq!(rig.pull(FIRST, 1, false), Ok(()));
    assert_eq!(rig.leaving(), SERVED);
    assert_eq!(rig.pull(FIRST, 2, true), Ok(()));
    assert_eq!(rig.leaving(), CLOSED);
    assert_eq!(rig.pull(FIRST + 1, 1, false), Err(Status::Retry), "the first one is not over");
    assert_eq!(rig.pull(FIRST - 1, 1, false), Err(Status::NoRecovery), "that one is");
    rig.pass(10 * MS);
    // A coordinator that another one has replaced knows nothing of the migration.
    rig.answer(Opcode::FindTablet, Found { term: TERM - 1, fate: Fate::Kept }.emit());
    assert_eq!(rig.leaving(), CLOSED);
    rig.pass(10 * MS);
    rig.answer(Opcode::FindTablet, Found { term: TERM, fate: Fate::Moving }.emit());
    assert_eq!(rig.leaving(), CLOSED);
    rig.pass(10 * MS);
    rig.answer(Opcode::FindTablet, Found { term: TERM, fate: Fate::Kept }.emit());
    assert_eq!(rig.leaving(), SERVED);
    assert_eq!(rig.pull(FIRST, 1, false), Err(Status::NoRecovery), "it has ended");
}

#[test]
fn a_tablet_that_has_gone_is_removed() {
    let mut rig = Rig::small();
    assert_eq!(rig.pull(FIRST, 1, true), Ok(()));
    rig.pass(10 * MS);
    rig.answer(Opcode::FindTablet, Found { term: TERM, fate: Fate::Gone }.emit());
    assert_eq!(rig.leaving(), CLOSED);
    rig.pass(10 * MS);
    assert!(rig.calls.is_empty(), "there is no more to ask");
    assert_eq!(rig.pull(FIRST + 1, 1, false), Err(Status::Retry), "the tablet is not here");
}

/// The answer to a question about one migration comes when another one has begun.
#[test]
fn a_late_answer_is_not_taken_for_another_migration() {
    for fate in [Fate::Gone, Fate::Kept] {
        let mut rig = Rig::small();
        assert_eq!(rig.pull(FIRST, 1, false), Ok(()));
        rig.pass(SECOND);
        let at = rig.calls.iter().position(|(_, call)| FindTablet::parse(call).is_ok()).unwrap();
        let question = rig.calls.remove(at);
        assert_eq!(rig.pull(FIRST + 1, 1, true), Ok(()));
        rig.late(&question, fate);
        assert_eq!(rig.leaving(), CLOSED);
        assert_eq!(rig.pull(FIRST + 1, 2, true), Ok(()), "it goes on");
    }
}

/// One page after the other, so that the requests of clients that arrive meanwhile do not wait for
/// all of them.
#[test]
fn a_tick_makes_one_page() {
    let mut rig = Rig::small();
    let mut ask = |page| rig.ask_for(FIRST, page, false);
    let pages: Vec<_> = (1..=MOST_AHEAD).map(|page| ask(page).expect_err("it waits")).collect();
    let refused = ask(MOST_AHEAD + 1).expect("more than a target asks for");
    assert_eq!(Page::parse(&refused), Err(Status::Retry));
    for &number in &pages {
        assert_eq!(rig.page(number), None);
        assert_eq!(rig.leaving(), SERVED);
        rig.pass(0);
        assert_eq!(rig.page(number), Some(Ok(())));
    }
}
