//! Tests of the count of accesses and of the hot ranges that a master finds.

use super::*;
use crate::master::heat::LEAST;
use crate::message::migration::{Hot, HotRange, WHOLE};

impl Rig {
    fn hot_range(&mut self, term: u64, server: ServerId) -> Result<Hot, Status> {
        let asked = HotRange { cluster: CLUSTER, term, server, wanted: WHOLE / 2 };
        Hot::parse(&self.ask(asked.emit()))
    }
}

#[test]
fn a_master_finds_the_range_of_a_hot_key() {
    let mut rig = Rig::small();
    assert_eq!(rig.hot_range(TERM, ME), Ok(Hot::default()), "it has no samples");
    for n in 0..64 * 3 * LEAST as u64 {
        // Half of the reads are of one key, and find it or not.
        let key = if n % 2 == 0 { *b"hot key." } else { n.to_be_bytes() };
        assert_eq!(rig.read(&key).map(|_| ()), Err(Status::ObjectDoesntExist));
    }
    let hash = crate::hash::KeyHasher::from(KEY).hash(b"hot key.").0;
    let hot = rig.hot_range(TERM, ME).unwrap();
    assert_eq!((hot.table, hot.first, hot.last), (TABLE, hash, hash));
    assert!(hot.part.abs_diff(WHOLE / 2) < WHOLE / 8, "{hot:?}");
    assert_eq!(rig.master.counter("accesses"), 64 * 3 * LEAST as u64);
    let other = ServerId { index: 2, ..ME };
    assert_eq!(rig.hot_range(TERM, other), Err(Status::NotInCluster));
    assert_eq!(rig.hot_range(TERM + 1, ME).map(|hot| hot.first), Ok(hash));
    assert_eq!(rig.hot_range(TERM, ME), Err(Status::StaleTerm), "another one leads");
    // What is dropped has no heat.
    let drop = DropTablet {
        cluster: CLUSTER,
        term: TERM + 1,
        server: ME,
        table: TABLE,
        first: hash,
        last: hash,
    };
    assert_eq!(rig.ask(drop.emit()), done());
    let hot = rig.hot_range(TERM + 1, ME).unwrap();
    assert!(hot.part > 0 && !(hot.first..=hot.last).contains(&hash), "{hot:?}");
}
