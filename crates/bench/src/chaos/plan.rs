//! The plan of a run of `sprat chaos`: the faults that follow from a seed, round by round.
//!
//! A round is a group of faults that overlap. After each round the cluster becomes whole again: all
//! servers are up, and each object has all its replicas. So a round may cost as many servers as
//! there are replicas, and no more: beyond that budget objects would be lost, as they should.
//!
//! Always holds: the victims of a round are distinct, and at most as many as there are replicas.
//! The end of all processes costs no server, since it comes only where replicas are in files.

use std::time::Duration;

use sprat_proto::Rng;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Some servers are killed with SIGKILL, at once.
    Kill,
    /// All processes are killed with SIGKILL, at once.
    KillAll,
    /// A server is stopped with SIGSTOP, perhaps past its lease, and goes on.
    Stop,
    /// The coordinator is killed with SIGKILL; of several, the one that leads.
    CoordinatorKill,
    /// The coordinator is stopped with SIGSTOP, and goes on; of several, the one that leads.
    CoordinatorStop,
    /// The etcd of several coordinators is killed with SIGKILL.
    EtcdKill,
    /// The etcd of several coordinators is stopped with SIGSTOP, and goes on.
    EtcdStop,
    /// A server reaches no other host, and none reaches it.
    Cut,
    /// A server's frames reach no other host. It hears all of them.
    CutOut,
    /// No host's frames reach a server. All hear it.
    CutIn,
    /// A server and the coordinators do not reach each other.
    CutCoordinator,
    /// A server and the other servers do not reach each other.
    CutBackups,
    /// Of several coordinators the one that leads reaches no other host, and none reaches it.
    CutLeader,
    /// A server is killed, and bytes of its replicas change before it starts again.
    Flip,
    /// A server is killed, and its replicas are deleted before it starts again.
    Delete,
    /// A server is killed twice, and before the second start its directory is as it was at the
    /// first one.
    OldCopy,
    /// The disk of all servers and of the coordinator has no room for more.
    DiskFull,
}

/// The way in which a fault is injected and mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Processes are stopped, and go on.
    Pause,
    /// Processes are killed, and start again.
    Kill,
    /// The network between hosts is cut, and joined again.
    Cut,
    /// The disk gets full, and has room again.
    Fill,
    /// Servers are killed, their files are damaged, and they start again.
    Damage,
    /// Servers are killed twice, the second time to start with earlier files.
    Restore,
}

/// A property of a cluster that faults need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Replicas in files.
    Directory,
    /// Replicas in files, and another replica of each object.
    SecondReplica,
    /// A network of its own for each process.
    Network,
    /// Several coordinators.
    Coordinators,
    /// Several coordinators, each with a network of its own.
    CoordinatorNetwork,
    /// Replicas in files, on a disk of the run's own.
    SmallDisk,
}

/// The properties of a kind of fault.
struct Facts {
    kind: Kind,
    name: &'static str,
    /// True if the fault can cost a server.
    costs: bool,
    needs: Option<Need>,
    /// The shortest and the longest duration of the fault, in milliseconds.
    lasts_ms: (u64, u64),
}

/// All kinds of faults. The longest durations are above the term of a lease.
const KINDS: &[Facts] = &[
    facts(Kind::Kill, "kill", true, None, (100, 4_000)),
    facts(Kind::KillAll, "kill-all", false, Some(Need::Directory), (100, 4_000)),
    facts(Kind::Stop, "stop", true, None, (100, 10_000)),
    facts(Kind::CoordinatorKill, "coordinator-kill", false, None, (100, 4_000)),
    facts(Kind::CoordinatorStop, "coordinator-stop", false, None, (100, 6_000)),
    facts(Kind::EtcdKill, "etcd-kill", false, Some(Need::Coordinators), (100, 4_000)),
    facts(Kind::EtcdStop, "etcd-stop", false, Some(Need::Coordinators), (100, 6_000)),
    facts(Kind::Cut, "cut", true, Some(Need::Network), (200, 8_000)),
    facts(Kind::CutOut, "cut-out", true, Some(Need::Network), (200, 8_000)),
    facts(Kind::CutIn, "cut-in", true, Some(Need::Network), (200, 8_000)),
    facts(Kind::CutCoordinator, "cut-coordinator", true, Some(Need::Network), (200, 8_000)),
    facts(Kind::CutBackups, "cut-backups", true, Some(Need::Network), (200, 8_000)),
    facts(Kind::CutLeader, "cut-leader", false, Some(Need::CoordinatorNetwork), (200, 8_000)),
    facts(Kind::Flip, "flip", true, Some(Need::SecondReplica), (100, 4_000)),
    facts(Kind::Delete, "delete", true, Some(Need::SecondReplica), (100, 4_000)),
    facts(Kind::OldCopy, "old-copy", true, Some(Need::SecondReplica), (500, 4_000)),
    facts(Kind::DiskFull, "disk-full", false, Some(Need::SmallDisk), (200, 6_000)),
];

const fn facts(
    kind: Kind,
    name: &'static str,
    costs: bool,
    needs: Option<Need>,
    lasts_ms: (u64, u64),
) -> Facts {
    Facts { kind, name, costs, needs, lasts_ms }
}

impl Kind {
    fn facts(self) -> &'static Facts {
        KINDS.iter().find(|facts| facts.kind == self).unwrap_or(&KINDS[0])
    }

    /// Returns the name of the kind, as options and reports have it.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        KINDS.iter().find(|facts| facts.name == name).map(|facts| facts.kind)
    }

    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|facts| facts.kind)
    }

    /// Returns the property of a cluster that the fault needs.
    pub fn needs(self) -> Option<Need> {
        self.facts().needs
    }

    /// Returns how the fault is injected and mended.
    pub fn action(self) -> Action {
        match self {
            Self::Stop | Self::CoordinatorStop | Self::EtcdStop => Action::Pause,
            Self::Kill | Self::KillAll | Self::CoordinatorKill | Self::EtcdKill => Action::Kill,
            Self::Cut
            | Self::CutOut
            | Self::CutIn
            | Self::CutCoordinator
            | Self::CutBackups
            | Self::CutLeader => Action::Cut,
            Self::DiskFull => Action::Fill,
            Self::Flip | Self::Delete => Action::Damage,
            Self::OldCopy => Action::Restore,
        }
    }

    fn is_about_a_coordinator(self) -> bool {
        matches!(self, Self::CoordinatorKill | Self::CoordinatorStop | Self::CutLeader)
    }

    fn is_about_etcd(self) -> bool {
        matches!(self, Self::EtcdKill | Self::EtcdStop)
    }
}

/// One fault of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: Kind,
    /// The servers that the fault is about, from 1 on.
    pub servers: Vec<u16>,
    /// The time of the fault, since the start of its round.
    pub at: Duration,
    /// The time until the fault is mended.
    pub lasts: Duration,
}

/// The properties of the cluster that a plan is made for.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The number of servers.
    pub servers: u16,
    /// The number of replicas of each object: the most servers that a round may cost.
    pub replicas: u16,
    /// The number of coordinators: the most faults of a round that are about one that leads.
    pub coordinators: u16,
    /// The kinds of faults that the plan may have. Those that the cluster cannot have are left out
    /// by the caller.
    pub kinds: Vec<Kind>,
}

/// The rounds of a plan, one after the other, without end.
#[derive(Clone, Debug)]
pub struct Plan {
    shape: Shape,
    rng: Rng,
}

impl Plan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self { shape, rng: Rng::seeded(seed) }
    }

    /// Returns the faults of the next round, in the order of their times. Empty if the plan has no
    /// kinds.
    pub fn round(&mut self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = Vec::new();
        let most = 1 + self.rng.below(3);
        for _ in 0..most {
            let Some(kind) = self.kind(&faults) else { break };
            let fault = self.fault(kind, &faults);
            faults.push(fault);
        }
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    /// Draws a kind of fault that may join the faults of a round.
    fn kind(&mut self, faults: &[Fault]) -> Option<Kind> {
        let left = self.left(faults);
        let met = |like: fn(Kind) -> bool| faults.iter().filter(|fault| like(fault.kind)).count();
        let may_join = |kind: &Kind| match kind {
            Kind::KillAll | Kind::DiskFull => !faults.iter().any(|fault| fault.kind == *kind),
            kind if kind.is_about_a_coordinator() => {
                met(Kind::is_about_a_coordinator) < usize::from(self.shape.coordinators)
            }
            kind if kind.is_about_etcd() => met(Kind::is_about_etcd) == 0,
            kind => !kind.facts().costs || left > 0,
        };
        let kinds: Vec<_> = self.shape.kinds.iter().copied().filter(may_join).collect();
        let drawn = self.rng.below(kinds.len().max(1) as u64) as usize;
        kinds.get(drawn).copied()
    }

    /// Returns the number of servers that further faults of a round may cost.
    fn left(&self, faults: &[Fault]) -> u16 {
        let spent: usize = faults.iter().map(|fault| fault.servers.len()).sum();
        self.shape.replicas.min(self.shape.servers).saturating_sub(spent as u16)
    }

    /// Draws a fault of this kind beside the others of its round.
    fn fault(&mut self, kind: Kind, others: &[Fault]) -> Fault {
        let facts = kind.facts();
        let (shortest, longest) = facts.lasts_ms;
        // Short times are as likely as long ones.
        let doublings = (longest / shortest).ilog2() + 1;
        let scale = shortest << self.rng.below(u64::from(doublings));
        let lasts = (scale + self.rng.below(scale)).min(longest);
        let count = match kind {
            // Often all that the budget has: the last replica counts.
            Kind::Kill if self.rng.chance(500_000) => self.left(others),
            _ => u16::from(facts.costs),
        };
        let mut free: Vec<u16> = (1..=self.shape.servers)
            .filter(|server| !others.iter().any(|fault| fault.servers.contains(server)))
            .collect();
        let mut servers = Vec::new();
        for _ in 0..count.min(free.len() as u16) {
            servers.push(free.swap_remove(self.rng.below(free.len() as u64) as usize));
        }
        servers.sort_unstable();
        // The first fault of a round comes soon; the others come while it lasts, or soon after.
        let until = others.iter().map(|fault| (fault.at + fault.lasts).as_millis() as u64).max();
        let at = self.rng.below(until.map_or(1_000, |until| until + 2_000));
        let (at, lasts) = (Duration::from_millis(at), Duration::from_millis(lasts));
        Fault { kind, servers, at, lasts }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn plan(seed: u64, servers: u16, replicas: u16) -> Plan {
        let kinds = Kind::all().collect();
        Plan::new(seed, Shape { servers, replicas, coordinators: 1, kinds })
    }

    #[test]
    fn a_round_stays_within_the_budget() {
        let mut met = BTreeMap::<_, u32>::new();
        let (mut full, mut together) = (0, 0);
        for seed in 0..200 {
            let (servers, replicas) = (2 + (seed % 4) as u16, 1 + (seed % 3) as u16);
            let mut plan = plan(seed, servers, replicas);
            for _ in 0..50 {
                let faults = plan.round();
                assert!(!faults.is_empty() && faults.is_sorted_by_key(|fault| fault.at));
                let victims: Vec<_> = faults.iter().flat_map(|fault| &fault.servers).collect();
                let distinct: BTreeSet<_> = victims.iter().collect();
                assert_eq!(victims.len(), distinct.len(), "{faults:?}");
                assert!(victims.len() <= usize::from(replicas), "{faults:?}");
                assert!(victims.iter().all(|server| (1..=servers).contains(server)));
                let all = faults.iter().filter(|fault| fault.kind == Kind::KillAll);
                assert!(all.count() <= 1, "{faults:?}");
                full += u32::from(victims.len() == usize::from(replicas));
                together += u32::from(faults.len() > 1);
                for fault in &faults {
                    let (shortest, longest) = fault.kind.facts().lasts_ms;
                    assert!((shortest..=longest).contains(&(fault.lasts.as_millis() as u64)));
                    *met.entry(fault.kind).or_default() += 1;
                }
            }
        }
        assert!(full > 1000 && together > 1000, "{full} {together}");
        assert!(met.len() == KINDS.len() && met.values().all(|n| *n > 100), "{met:?}");
    }

    #[test]
    fn a_seed_repeats_its_faults() {
        let rounds = |seed| {
            let mut plan = plan(seed, 4, 2);
            (0..20).map(|_| plan.round()).collect::<Vec<_>>()
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
    }

    /// A kind that is missing among the cuts would be injected as another fault.
    #[test]
    fn the_kinds_that_need_a_network_cut_it() {
        for kind in Kind::all() {
            let network = matches!(kind.needs(), Some(Need::Network | Need::CoordinatorNetwork));
            assert_eq!(kind.action() == Action::Cut, network, "{kind:?}");
        }
    }

    #[test]
    fn a_plan_has_only_the_wanted_kinds() {
        let kinds = vec![Kind::CoordinatorKill];
        let shape = Shape { servers: 3, replicas: 1, coordinators: 1, kinds };
        let mut plan = Plan::new(1, shape.clone());
        for _ in 0..100 {
            let faults = plan.round();
            assert!(faults.len() == 1 && faults[0].kind == Kind::CoordinatorKill);
        }
        let mut none = Plan::new(1, Shape { kinds: Vec::new(), ..shape });
        assert!(none.round().is_empty());
        assert!(Kind::all().all(|kind| Kind::named(kind.name()) == Some(kind)));
    }
}
