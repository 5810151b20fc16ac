//! The tests as data: the tables of each, and its measurements.

use std::ops::Range;

use super::super::lanes::Exchange;
use super::names::Name;
use super::tables::Shape;
use super::work::{Load, Work};

/// Bytes of an object's key, if the test does not vary it.
const KEY: usize = 30;
/// Lengths of keys, of ClusterPerf's 44 between 1 and 60,000.
const KEYS: [usize; 10] = [1, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 60_000];
/// Objects of one operation of `multiReadThroughput`.
const BATCH: usize = 80;
/// Objects of one operation of `multiRead_general`, over all servers.
const SPREAD: usize = 5000;
/// Objects of one operation of `multiRead_colocation`.
const COLOCATED: usize = 16;
/// Bytes of the object that `netBandwidth` reads.
const LARGE: usize = 1_000_000;
/// Bytes of a read request before its key, of a write request before its key, and of a reply before
/// its value.
const HEADS: [usize; 3] = [32, 60, 12];

/// The options of a run that the plans depend on.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Bytes of a value. `None`: the test's own.
    pub(super) size: Option<usize>,
    /// Number of objects of a table with random reads, by the bytes of a value.
    pub(super) objects: u64,
    /// Numbers of clients, one after the other.
    pub(super) clients: Vec<usize>,
    pub(super) servers: usize,
}

/// One measurement of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Case {
    /// The end of the name of the result, with a dot before it. Empty: the test has one result.
    pub(super) name: String,
    /// The tables that the clients use, of those of the plan.
    pub(super) tables: Range<usize>,
    pub(super) load: Load,
    /// Payload bytes of one operation.
    pub(super) size: usize,
    /// The bytes of one operation, if floor and kernel TCP are measured beside it.
    pub(super) floor: Option<Exchange>,
}

/// The tables of a test, and its measurements.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The test in words.
    pub(super) about: String,
    pub(super) tables: Vec<Shape>,
    pub(super) cases: Vec<Case>,
    /// True if the fastest and the slowest client have results of their own.
    pub(super) each_client: bool,
}

fn reading(key: usize, size: usize) -> Exchange {
    Exchange { request: HEADS[0] + key, reply: HEADS[2] + size }
}

/// Returns the bytes of a write of an object with a key and a value of these lengths.
pub(super) fn writing(key: usize, size: usize) -> Exchange {
    Exchange { request: HEADS[1] + key + size, reply: HEADS[2] }
}

/// Returns the plan of a test. `None`: the test has a loop of its own.
pub(super) fn plan(name: Name, settings: &Settings) -> Option<Plan> {
    Some(match name {
        Name::ReadNotFound
        | Name::ReadVaryingKeyLength
        | Name::WriteVaryingKeyLength
        | Name::ReadDist
        | Name::ReadDistRandom
        | Name::WriteDistRandom => one_client(name, settings),
        Name::ReadLoaded
        | Name::ReadRandom
        | Name::MultiReadThroughput
        | Name::NetBandwidth
        | Name::ReadAllToAll => many_clients(name, settings),
        Name::MultiReadOneObjectPerMaster
        | Name::MultiReadGeneral
        | Name::MultiReadGeneralRandom
        | Name::MultiReadColocation => many_servers(name, settings),
        Name::ReadDistWorkload
        | Name::WriteDistWorkload
        | Name::WorkloadThroughput
        | Name::ReadInterference
        | Name::WriteInterference
        | Name::WriteAsyncSync
        | Name::EchoWorkload
        | Name::Broadcast
        | Name::IndexBasic
        | Name::IndexRange
        | Name::IndexMultiple
        | Name::IndexScalability
        | Name::IndexReadDist
        | Name::IndexWriteDist
        | Name::TransactionCollision
        | Name::TransactionContention
        | Name::TransactionDistRandom
        | Name::TransactionThroughput => return None,
    })
}

/// Returns the plan of a test with one client and one server. All have a floor.
fn one_client(name: Name, settings: &Settings) -> Plan {
    let size = settings.size.unwrap_or(100);
    let case = |name: String, table: usize, work: Work, floor: Exchange| {
        let load = Load { clients: 1, work };
        Case { name, tables: table..table + 1, load, size, floor: Some(floor) }
    };
    let one = |objects: u64, key: usize| Shape { objects, size, key };
    let (about, tables, cases) = match name {
        Name::ReadNotFound => {
            let exchange = Exchange { request: HEADS[0] + 2, reply: HEADS[2] };
            let cases = vec![case(String::new(), 0, Work::Missing, exchange)];
            ("reads of an object that does not exist".to_owned(), vec![one(1, KEY)], cases)
        }
        Name::ReadVaryingKeyLength | Name::WriteVaryingKeyLength => {
            let reads = name == Name::ReadVaryingKeyLength;
            let of = |(at, &key): (usize, &usize)| {
                let (work, floor) = match reads {
                    true => (Work::Read, reading(key, size)),
                    false => (Work::Write, writing(key, size)),
                };
                case(format!(".{key}"), at, work, floor)
            };
            let what = if reads { "reads" } else { "overwrites" };
            (
                format!("{what} of one object of {size} B, by the bytes of its key"),
                KEYS.iter().map(|&key| one(1, key)).collect(),
                KEYS.iter().enumerate().map(of).collect(),
            )
        }
        Name::ReadDist => {
            let cases = vec![case(String::new(), 0, Work::Read, reading(KEY, size))];
            (format!("times of reads of one object of {size} B"), vec![one(1, KEY)], cases)
        }
        _ => {
            let (objects, reads) = (settings.objects, name == Name::ReadDistRandom);
            let (what, work, floor) = match reads {
                true => ("reads", Work::Read, reading(KEY, size)),
                false => ("overwrites", Work::Write, writing(KEY, size)),
            };
            (
                format!("times of random {what} among {objects} objects of {size} B"),
                vec![one(objects, KEY)],
                vec![case(String::new(), 0, work, floor)],
            )
        }
    };
    Plan { about, tables, cases, each_client: false }
}

/// Returns the plan of a test with several clients.
fn many_clients(name: Name, settings: &Settings) -> Plan {
    let servers = settings.servers;
    let size = settings.size.unwrap_or(if name == Name::NetBandwidth { LARGE } else { 100 });
    let one = Shape { objects: 1, size, key: KEY };
    let (about, tables, work) = match name {
        Name::ReadLoaded => (format!("reads of one object of {size} B"), vec![one], Work::Read),
        Name::ReadRandom => (
            format!("reads of an object of {size} B on one of {servers} servers, at random"),
            vec![one; servers],
            Work::Read,
        ),
        Name::MultiReadThroughput => {
            let objects = settings.objects;
            let work = Work::Several { of_each: vec![BATCH], shuffled: false };
            let table = Shape { objects, size, key: KEY };
            (format!("reads of {BATCH} of {objects} objects of {size} B"), vec![table], work)
        }
        Name::NetBandwidth => {
            let tables = vec![one; settings.clients.iter().copied().max().unwrap_or(1)];
            let about = format!("each client reads an object of {size} B of its own");
            (format!("{about}, on {servers} servers"), tables, Work::Own)
        }
        _ => (
            format!("reads of an object of {size} B from each of {servers} servers in turn"),
            vec![one; servers],
            Work::Around,
        ),
    };
    let bytes = if name == Name::MultiReadThroughput { BATCH * size } else { size };
    let case = |&clients: &usize| Case {
        name: format!(".{clients}"),
        tables: 0..tables.len(),
        load: Load { clients, work: work.clone() },
        size: bytes,
        floor: None,
    };
    let cases = settings.clients.iter().map(case).collect();
    let each_client = name == Name::NetBandwidth;
    Plan { about: format!("{about}, by the number of clients"), tables, cases, each_client }
}

/// Returns the plan of a test with operations on objects of several servers.
fn many_servers(name: Name, settings: &Settings) -> Plan {
    let (servers, size) = (settings.servers, settings.size.unwrap_or(100));
    let case = |name: String, of_each: Vec<usize>, shuffled: bool, clients: usize| {
        let (tables, objects) = (0..of_each.len(), of_each.iter().sum::<usize>());
        let load = Load { clients, work: Work::Several { of_each, shuffled } };
        Case { name: format!(".{name}"), tables, load, size: objects * size, floor: None }
    };
    let (about, objects, cases): (_, _, Vec<Case>) = match name {
        Name::MultiReadColocation => {
            let of = |clients: usize, spanned: usize| {
                let mut of_each = vec![0; servers];
                of_each[0] = COLOCATED - spanned;
                // The others go to the other servers, one after the other.
                (0..spanned).for_each(|n| of_each[1 % servers + n % (servers - 1).max(1)] += 1);
                case(format!("{spanned}x{clients}"), of_each, false, clients)
            };
            let spans = [0, 1, 2, 4, 8, COLOCATED];
            let cases = settings.clients.iter().flat_map(|&c| spans.map(|spanned| of(c, spanned)));
            let about = format!(
                "reads of {COLOCATED} objects of {size} B in one operation, by the number of \
                 objects on other servers and of clients"
            );
            (about, COLOCATED, cases.collect())
        }
        Name::MultiReadOneObjectPerMaster => {
            let of = |many: usize| case(many.to_string(), vec![1; many], false, 1);
            let about = format!("reads of one object of {size} B from each of several servers");
            (about, 1, (1..=servers).map(of).collect())
        }
        _ => {
            let shuffled = name == Name::MultiReadGeneralRandom;
            let of = |many: usize| case(many.to_string(), vec![SPREAD / many; many], shuffled, 1);
            let order = if shuffled { ", in random order" } else { "" };
            let about =
                format!("reads of {SPREAD} objects of {size} B, by the number of servers{order}");
            (about, SPREAD, (1..=servers).map(of).collect())
        }
    };
    let table = Shape { objects: objects as u64, size, key: KEY };
    Plan { about, tables: vec![table; servers], cases, each_client: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { size: None, objects: 1000, clients: vec![1, 4], servers: 3 }
    }

    fn planned(name: Name) -> Plan {
        plan(name, &settings()).expect("a plan")
    }

    #[test]
    fn every_case_uses_tables_of_its_plan() {
        for name in [
            Name::ReadNotFound,
            Name::ReadVaryingKeyLength,
            Name::WriteVaryingKeyLength,
            Name::ReadDist,
            Name::ReadDistRandom,
            Name::WriteDistRandom,
            Name::ReadLoaded,
            Name::ReadRandom,
            Name::MultiReadThroughput,
            Name::NetBandwidth,
            Name::ReadAllToAll,
            Name::MultiReadOneObjectPerMaster,
            Name::MultiReadGeneral,
            Name::MultiReadGeneralRandom,
            Name::MultiReadColocation,
        ] {
            for servers in [1, 3] {
                let plan = plan(name, &Settings { servers, ..settings() }).expect("a plan");
                assert!(!plan.cases.is_empty(), "{name:?}");
                for case in &plan.cases {
                    assert!(case.tables.end <= plan.tables.len(), "{name:?}: {case:?}");
                    if let Work::Several { of_each, .. } = &case.load.work {
                        assert_eq!(of_each.len(), case.tables.len(), "{name:?}: {case:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn keys_have_the_lengths_of_their_names() {
        let plan = planned(Name::ReadVaryingKeyLength);
        for case in &plan.cases {
            assert_eq!(case.name, format!(".{}", plan.tables[case.tables.start].key));
        }
    }

    #[test]
    fn colocated_reads_move_to_other_servers_one_by_one() {
        let plan = planned(Name::MultiReadColocation);
        let of = |name: &str| {
            let case = plan.cases.iter().find(|case| case.name == name).expect(name);
            match &case.load.work {
                Work::Several { of_each, .. } => of_each.clone(),
                other => unreachable!("{other:?}"),
            }
        };
        assert_eq!(of(".0x1"), [16, 0, 0]);
        assert_eq!(of(".1x4"), [15, 1, 0]);
        assert_eq!(of(".8x4"), [8, 4, 4]);
        assert_eq!(of(".16x1"), [0, 8, 8]);
    }
}
