//! The faults of a simulated world: crashes, pauses, partitions, and disks that fail or are full.

use sprat_proto::Instant;

use super::{Event, HostId, World, etcd};

/// The place of the etcd among the hosts, for the side on which it is in a partition.
const ETCD_SIDE: HostId = 63;

impl<S> World<S> {
    /// Ends all faults: partitions heal, pauses end, dead hosts start, the wire loses nothing,
    /// disks have room.
    pub fn end_faults(&mut self) {
        self.options.chaos.every_ns = 0;
        self.wire.set_fault(Default::default());
        self.wire.heal();
        self.without_etcd.clear();
        self.options.etcd = etcd::Options::default();
        self.set_full(false);
        self.hosts.iter_mut().for_each(|host| host.disk.mend());
        for host in 0..self.hosts.len() {
            let now = self.now;
            self.hosts[host].busy_until = self.hosts[host].busy_until.min(now);
            self.wake(host, now);
            self.start(host);
        }
    }

    /// Kills the process at `host`, and at hosts bound to it. The world starts it anew `down_ns`
    /// nanoseconds later, or never.
    pub fn crash(&mut self, host: HostId, down_ns: Option<u64>) {
        self.end(host, down_ns);
        for other in self.hosts[host].bound.clone() {
            self.end(other, down_ns);
        }
    }

    fn end(&mut self, host: HostId, down_ns: Option<u64>) {
        if self.hosts[host].process.take().is_none() {
            return;
        }
        self.note(1, host);
        self.wire.down(host);
        let state = &mut self.hosts[host];
        state.disk.crash(&mut self.rng);
        state.completed.clear();
        state.answers.clear();
        state.turn_at = Instant::NEVER;
        if let Some(ns) = down_ns {
            self.queue.push(self.now.after(ns), Event::Start(host));
        }
    }

    /// Takes the power from a host, and starts a process there `down_ns` nanoseconds later. Of what
    /// the host's frames hold, the disk keeps at least what was synced.
    pub fn lose_power(&mut self, host: HostId, down_ns: u64) {
        self.note(7, host);
        self.crash(host, Some(down_ns));
        self.hosts[host].disk.lose_power(&mut self.rng);
    }

    /// Makes the next sync of the host's frames fail, and all frames of its process.
    pub fn fail_sync(&mut self, host: HostId) {
        self.note(8, host);
        self.hosts[host].disk.set_full(true);
    }

    /// Pauses the process at `host` for `ns` nanoseconds. Its clock goes on, and datagrams fill its
    /// inbox.
    pub fn pause(&mut self, host: HostId, ns: u64) {
        self.note(3, host);
        let host = &mut self.hosts[host];
        host.busy_until = host.busy_until.max(self.now.after(ns));
    }

    pub(super) fn inject_fault(&mut self) {
        let chaos = self.options.chaos;
        if chaos.every_ns == 0 {
            return;
        }
        self.queue.push(self.now.after(1 + self.rng.below(2 * chaos.every_ns)), Event::Chaos);
        let [crash, pause, partition, full] = chaos.weights.map(u64::from);
        let draw = self.rng.below(crash + pause + partition + full);
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        if draw < crash {
            let ns = self.rng.below(chaos.down_ns + 1);
            if self.hosts[host].faults.crash {
                self.crash(host, Some(ns));
            }
        } else if draw < crash + pause {
            let ns = self.rng.below(chaos.pause_ns + 1);
            if self.hosts[host].faults.pause {
                self.pause(host, ns);
            }
        } else if draw < crash + pause + partition {
            let ns = self.rng.below(chaos.partition_ns + 1);
            self.partition(ns);
        } else {
            let ns = self.rng.below(chaos.full_ns + 1);
            self.fill_disks(ns);
        }
    }

    /// Fills all disks for `ns` nanoseconds: they refuse writes.
    pub fn fill_disks(&mut self, ns: u64) {
        self.filled += 1;
        self.note(5, 0);
        self.set_full(true);
        self.queue.push(self.now.after(ns), Event::Room(self.filled));
    }

    /// Makes the next write to this host's disk fail, which ends the process there.
    pub fn fail_disk(&mut self, host: HostId) {
        self.note(6, host);
        self.hosts[host].disk.fail();
    }

    pub(super) fn set_full(&mut self, full: bool) {
        self.hosts.iter_mut().for_each(|host| host.disk.set_full(full));
        self.etcd.full = full;
    }

    /// Divides the hosts into two groups at random, between which no datagram passes for `ns`
    /// nanoseconds, in one direction or both.
    pub fn partition(&mut self, ns: u64) {
        let (camp, both) = (self.rng.u64(), self.rng.chance(500_000));
        self.note(4, camp as usize);
        let side = |host: HostId| camp >> (host % 64) & 1 == 1;
        let apart = (0..self.hosts.len()).filter(|&host| side(host) != side(ETCD_SIDE));
        self.without_etcd.extend(apart);
        for a in 0..self.hosts.len() {
            for b in 0..self.hosts.len() {
                if side(a) && !side(b) {
                    self.wire.cut(a, b, false);
                    if both {
                        self.wire.cut(b, a, false);
                    }
                }
            }
        }
        self.queue.push(self.now.after(ns), Event::Heal);
    }
}
