//! Tests of the watchdog in virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::*;

/// A loop whose clocks the test sets.
struct Loop {
    stalls: Stalls,
    turns: Turns,
    now_ns: u64,
    processor_ns: u64,
    /// The number of readings of the processor clock.
    readings: u32,
    reports: Arc<Mutex<Vec<Stall>>>,
}

impl Loop {
    fn new() -> Self {
        let reports: Arc<Mutex<Vec<Stall>>> = Arc::default();
        let mut stalls = Stalls::off();
        let to = Arc::clone(&reports);
        stalls.report_to(Box::new(move |stall| to.lock().unwrap().push(stall.clone())));
        let now_ns = SECOND;
        stalls.start(Instant::from_ns(now_ns), 0);
        Self { stalls, turns: Turns::default(), now_ns, processor_ns: 0, readings: 0, reports }
    }

    /// Begins a turn, as the worker does.
    fn begin(&mut self) {
        let now = Instant::from_ns(self.now_ns);
        if self.stalls.is_due(now) {
            self.readings += 1;
            let ended = self.stalls.ended(now, self.processor_ns, &mut self.turns);
            if let Some((_, own_ns, preempted_ns)) = ended {
                self.stalls.report(own_ns, preempted_ns, vec!["Write".to_owned()]);
            }
        }
        self.stalls.begin(now);
    }

    /// Makes a turn that uses the processor for `own_ns` and loses it for `lost_ns`.
    fn turn(&mut self, own_ns: u64, lost_ns: u64) {
        self.begin();
        self.now_ns += own_ns + lost_ns;
        self.processor_ns += own_ns;
    }

    fn counters(&mut self) -> BTreeMap<&'static str, u64> {
        // The next turn judges the last one.
        self.begin();
        let mut counters = BTreeMap::new();
        self.turns.counters(&mut |name, value| _ = counters.insert(name, value));
        // Stalls, apart from the turns that are shorter and the others that count with them.
        counters.retain(|name, value| *value > 0 && !name.starts_with("turns_from"));
        counters
    }
}

#[test]
fn short_turns_read_the_processor_clock_each_100_us() {
    let mut it = Loop::new();
    (0..100_000).for_each(|_| it.turn(1_000, 0));
    assert!(it.counters().is_empty());
    assert_eq!(it.readings, 1000);
}

#[test]
fn a_turn_of_work_is_a_stall_and_a_preempted_one_is_none() {
    let mut it = Loop::new();
    it.turn(5_000, 0);
    it.turn(5 * MS, 0);
    it.turn(5_000, 0);
    let expected = BTreeMap::from([("stalls", 1), ("stalls_from_4ms", 1), ("stalls_ns", 5 * MS)]);
    assert_eq!(it.counters(), expected);
    it.turn(20_000, 70 * MS);
    let expected = BTreeMap::from([
        ("stalls", 1),
        ("stalls_from_4ms", 1),
        ("stalls_ns", 5 * MS),
        ("turns_preempted", 1),
        ("turns_preempted_ns", 70 * MS),
    ]);
    assert_eq!(it.counters(), expected);
    let reports = it.reports.lock().unwrap();
    let [stall] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((stall.processor_ns, stall.preempted_ns), (5 * MS, 0));
    assert_eq!(stall.done, ["Write"]);
}

/// Turns that are shorter than a stall are counted by length, without the time that the thread
/// lost.
#[test]
fn shorter_turns_are_counted_by_length() {
    let mut it = Loop::new();
    for us in [99, 110, 150, 201, 300, 700, 1_500] {
        it.turn(10_000, 0);
        it.turn(us * US, 0);
    }
    (0..100).for_each(|_| it.turn(10_000, 0));
    it.turn(30_000, 900 * US);
    it.begin();
    assert_eq!(it.turns.from, [6, 4, 2]);
    assert!(it.reports.lock().unwrap().len() == 1, "the stall alone is reported");
}

#[test]
fn a_turn_can_be_both() {
    let mut it = Loop::new();
    it.turn(300 * MS, 200 * MS);
    let counters = it.counters();
    assert_eq!((counters["stalls_from_256ms"], counters["stalls_ns"]), (1, 300 * MS));
    assert_eq!((counters["turns_preempted"], counters["turns_preempted_ns"]), (1, 200 * MS));
}

#[test]
fn sleep_is_part_of_no_turn() {
    let mut it = Loop::new();
    for own_ns in [10_000, 3 * MS] {
        it.begin();
        let from = Instant::from_ns(it.now_ns);
        it.now_ns += SECOND;
        let now = Instant::from_ns(it.now_ns);
        assert_eq!(it.stalls.slept(from, SECOND - MS, now, &mut it.turns), None);
        it.turn(own_ns, 0);
    }
    let expected = BTreeMap::from([("stalls", 1), ("stalls_ns", 3 * MS)]);
    assert_eq!(it.counters(), expected);
}

/// The loop yields between turns, and other threads run meanwhile. The processor time that polling
/// took does not hide that a turn was preempted.
#[test]
fn the_time_of_yields_is_part_of_no_turn() {
    let mut it = Loop::new();
    for lost_ns in [0, 40 * MS].repeat(100) {
        it.turn(2_000, 0);
        // The loop polls and yields.
        it.now_ns += 40_000 + lost_ns;
        it.processor_ns += 40_000;
        let (from, now) = (it.now_ns - 40_000 - lost_ns, Instant::from_ns(it.now_ns));
        assert_eq!(it.stalls.yielded(Instant::from_ns(from), now, &mut it.turns), None);
    }
    it.turn(10_000, 30 * MS);
    let expected = BTreeMap::from([("turns_preempted", 1), ("turns_preempted_ns", 30 * MS)]);
    assert_eq!(it.counters(), expected);
}

#[test]
fn one_stall_a_second_is_reported_and_the_others_are_counted() {
    let mut it = Loop::new();
    (0..1_000).for_each(|_| it.turn(2 * MS, 0));
    assert_eq!(it.counters()["stalls"], 1_000);
    let reports = it.reports.lock().unwrap();
    assert_eq!(reports.iter().map(|stall| stall.unreported).collect::<Vec<_>>(), [0, 499]);
}

#[test]
fn a_long_stop_of_the_process_is_reported() {
    let mut it = Loop::new();
    it.turn(10_000, 99 * MS);
    it.turn(10_000, 3 * SECOND);
    it.begin();
    let reports = it.reports.lock().unwrap();
    let [stop] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((stop.processor_ns, stop.preempted_ns), (10_000, 3 * SECOND));
}

/// An idle server was stopped for seconds, and no counter showed it: the whole time was its sleep.
#[test]
fn a_sleep_that_ends_late_counts_as_preempted() {
    let mut it = Loop::new();
    it.begin();
    let from = Instant::from_ns(it.now_ns);
    it.now_ns += 3 * SECOND;
    let now = Instant::from_ns(it.now_ns);
    let late = it.stalls.slept(from, SECOND, now, &mut it.turns);
    assert_eq!(late, Some(2 * SECOND));
    let expected = BTreeMap::from([("turns_preempted", 1), ("turns_preempted_ns", 2 * SECOND)]);
    assert_eq!(it.counters(), expected);
    // The process can be stopped while it yields, too.
    let from = Instant::from_ns(it.now_ns);
    it.now_ns += 20 * SECOND;
    let now = Instant::from_ns(it.now_ns);
    assert_eq!(it.stalls.yielded(from, now, &mut it.turns), Some(20 * SECOND));
    assert_eq!(it.counters()["turns_preempted_ns"], 22 * SECOND);
}

#[test]
fn a_turn_that_is_much_longer_than_the_last_is_reported_at_once() {
    let mut it = Loop::new();
    for ms in [2, 3, 15, 16, 17] {
        it.turn(ms * MS, 0);
    }
    it.begin();
    let reports = it.reports.lock().unwrap();
    let reported: Vec<_> = reports.iter().map(|stall| stall.processor_ns / MS).collect();
    assert_eq!(reported, [2, 16]);
    assert_eq!(reports[1].unreported, 2);
}

#[test]
fn a_watchdog_that_is_off_reads_nothing() {
    let mut it = Loop::new();
    it.stalls = Stalls::off();
    let now = Instant::from_ns(it.now_ns);
    assert_eq!(it.stalls.slept(Instant::ZERO, 0, now, &mut it.turns), None);
    (0..10).for_each(|_| it.turn(5 * MS, 0));
    assert!(it.counters().is_empty());
    assert_eq!(it.readings, 0);
}
