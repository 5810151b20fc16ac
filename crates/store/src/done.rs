//! The operations and the tasks of one turn of a machine, for reports about turns that take long.
//!
//! A record costs a few instructions for each request, since it only sets a bit. It belongs to the
//! turn whose time it has. The record of an earlier turn does not count.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;

use crate::message::Opcode;

/// A task that a master does besides the execution of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Task {
    /// The hash table grows.
    Growth,
    /// Objects of dropped tablets are removed.
    Sweep,
    /// Expired objects are removed.
    Expiry,
    /// The cleaner moves live entries out of segments.
    Cleaning,
    /// Objects of a crashed server are replayed.
    Recovery,
    /// The log is written to replicas.
    Replication,
    /// Calls to the coordinator are made and answered.
    Membership,
    /// Transactions of silent clients are decided.
    Transactions,
}

/// All tasks, in the order of their codes, with their names for people.
const TASKS: [(Task, &str); 8] = [
    (Task::Growth, "growth of the hash table"),
    (Task::Sweep, "removal of dropped tablets"),
    (Task::Expiry, "removal of expired objects"),
    (Task::Cleaning, "cleaning"),
    (Task::Recovery, "recovery"),
    (Task::Replication, "replication"),
    (Task::Membership, "calls to the coordinator"),
    (Task::Transactions, "transactions of silent clients"),
];

/// The operations and the tasks of the last turn that had any.
#[derive(Debug, Default)]
pub(crate) struct Done {
    turn: Instant,
    /// A bit for each opcode.
    operations: [u64; 4],
    /// A bit for each task.
    tasks: u8,
    /// A bit for each task that the last tick has not ended.
    unfinished: u8,
}

impl Done {
    /// Records the operation of a request in the turn at `now`.
    #[inline]
    pub(crate) fn operation(&mut self, now: Instant, request: &[u8]) {
        self.at(now);
        if let Some(&code) = request.get(1) {
            self.operations[usize::from(code >> 6)] |= 1 << (code & 63);
        }
    }

    /// Records a task in the turn at `now`.
    #[inline]
    pub(crate) fn task(&mut self, now: Instant, task: Task) {
        self.at(now);
        self.tasks |= 1 << task as u8;
    }

    /// Records the tasks of a tick in the turn at `now`, each with whether there is more to do.
    pub(crate) fn ticked(&mut self, now: Instant, tasks: [(Task, bool); 5]) {
        let more = tasks.iter().filter(|(_, more)| *more);
        let more = more.fold(0, |bits, (task, _)| bits | 1 << *task as u8);
        if more | self.unfinished != 0 {
            self.at(now);
            // The step that ends a task has worked too.
            self.tasks |= more | self.unfinished;
            self.unfinished = more;
        }
    }

    /// Begins the record of the turn at `now`, unless it has begun.
    #[inline]
    fn at(&mut self, now: Instant) {
        if self.turn != now {
            (self.turn, self.operations, self.tasks) = (now, [0; 4], 0);
        }
    }

    /// Adds the names of the operations and the tasks of the turn at `now` to `names`.
    pub(crate) fn names(&self, now: Instant, names: &mut Vec<String>) {
        if self.turn != now {
            return;
        }
        for code in 0..=u8::MAX {
            if self.operations[usize::from(code >> 6)] & (1 << (code & 63)) != 0 {
                names.push(match Opcode::from_code(code) {
                    Some(opcode) => format!("{opcode:?}"),
                    None => format!("unknown opcode {code}"),
                });
            }
        }
        let tasks = TASKS.iter().filter(|(task, _)| self.tasks & (1 << *task as u8) != 0);
        names.extend(tasks.map(|(_, name)| (*name).to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_that_of_one_turn() {
        let (first, second) = (Instant::from_ns(1), Instant::from_ns(2));
        let mut done = Done::default();
        let names = |done: &Done, turn| {
            let mut names = Vec::new();
            done.names(turn, &mut names);
            names
        };
        done.operation(first, &[1, Opcode::Multi as u8, 0, 0]);
        done.operation(first, &[1, Opcode::Read as u8, 0, 0]);
        done.operation(first, &[1, Opcode::WriteReplica as u8, 0, 0]);
        done.operation(first, &[1, 255]);
        done.operation(first, &[]);
        done.task(first, Task::Cleaning);
        let expected = ["Read", "Multi", "WriteReplica", "unknown opcode 255", "cleaning"];
        assert_eq!(names(&done, first), expected);
        assert!(names(&done, second).is_empty());
        done.task(second, Task::Growth);
        assert_eq!(names(&done, second), ["growth of the hash table"]);
        assert!(names(&done, first).is_empty(), "that turn is past");
    }

    #[test]
    fn the_step_that_ends_a_task_counts() {
        let mut done = Done::default();
        let mut tick = |ns, more| {
            let now = Instant::from_ns(ns);
            let none = [Task::Growth, Task::Sweep, Task::Expiry, Task::Recovery];
            let [a, b, c, d] = none.map(|task| (task, false));
            done.ticked(now, [a, b, c, d, (Task::Cleaning, more)]);
            let mut names = Vec::new();
            done.names(now, &mut names);
            names.len()
        };
        assert_eq!([tick(1, false), tick(2, true), tick(3, false), tick(4, false)], [0, 1, 1, 0]);
    }

    #[test]
    fn each_task_has_a_name() {
        for (index, (task, name)) in TASKS.iter().enumerate() {
            assert_eq!((*task as usize, name.is_empty()), (index, false));
        }
    }
}
