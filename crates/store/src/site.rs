//! [`Site`]: the place and the roles of a server.
//!
//! A machine or a rack can fail as a whole. So the replicas of a segment and its master are on
//! different hosts and in different racks, as far as there are servers for that.
//!
//! The shards of a server are members of the cluster like others: each has an id, a lease, a log
//! and a core of its own. They are one process and end together. So a log and its replicas are
//! never on two shards of one process.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::message::codec::{choices, records};

/// The longest name of a rack, in bytes of UTF-8.
pub const MAX_RACK: usize = 255;

choices! {
    pub,
    /// The roles of a server.
    #[derive(Default)]
    Role {
        /// The server owns tablets, and holds replicas of other servers' logs.
        #[default]
        Both = 0,
        /// The server owns tablets, and holds no replicas.
        Master = 1,
        /// The server holds replicas, and owns no tablet.
        Backup = 2,
    }
}

records! {
    pub,
    /// The place and the roles of a server. By default it has both roles, and its place is
    /// unknown.
    #[derive(Default)]
    Site<'a> {
        /// The roles of the server.
        role: Role,
        /// A number of the machine that the server runs on, which no other machine has. 0: unknown.
        host: u64,
        /// A number of the process whose shards have it in common, and which no other process has.
        /// 0: the process has one shard.
        process: u64,
        /// The number of the shard in its process, from 0 on.
        shard: u16,
        /// The name of the rack of that machine. Empty: unknown.
        rack: &'a str,
    }
}

/// A [`Site`] with a name of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnedSite {
    /// The roles of the server.
    pub role: Role,
    /// A number of the machine that the server runs on, which no other machine has. 0: unknown.
    pub host: u64,
    /// A number of the process whose shards have it in common, and which no other process has. 0:
    /// the process has one shard.
    pub process: u64,
    /// The number of the shard in its process, from 0 on.
    pub shard: u16,
    /// The name of the rack of that machine, at most [`MAX_RACK`] bytes. Empty: unknown.
    pub rack: String,
}

/// The largest unit that two servers share and that can fail as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Common {
    /// The servers are on different hosts, and not known to be in one rack.
    Nothing,
    /// The servers are on different hosts of one rack.
    Rack,
    /// The servers are on one host, in different processes.
    Host,
    /// The servers are shards of one process.
    Process,
}

impl Role {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Both, Self::Master, Self::Backup];

    /// Returns the name of the value: one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Master => "master",
            Self::Backup => "backup",
        }
    }

    /// Returns true if the server owns tablets.
    #[must_use]
    pub fn is_master(self) -> bool {
        self != Self::Backup
    }

    /// Returns true if the server holds replicas.
    #[must_use]
    pub fn is_backup(self) -> bool {
        self != Self::Master
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|role| role.name() == text);
        named.ok_or("the roles are both, master and backup")
    }
}

impl Site<'_> {
    /// Returns a copy with a name of its own.
    #[must_use]
    pub fn to_owned(&self) -> OwnedSite {
        let &Site { role, host, process, shard, rack } = self;
        OwnedSite { role, host, process, shard, rack: rack.into() }
    }
}

impl OwnedSite {
    /// Returns the site as it is in messages.
    #[must_use]
    pub fn as_site(&self) -> Site<'_> {
        let &Self { role, host, process, shard, ref rack } = self;
        Site { role, host, process, shard, rack }
    }

    /// Returns the largest unit that servers at two sites share. Servers in different racks are on
    /// different hosts, even if their hosts have one number: a copied virtual machine has its
    /// original's.
    #[must_use]
    pub fn common(&self, other: &Self) -> Common {
        let is_known = !self.rack.is_empty() && !other.rack.is_empty();
        if self.process != 0 && self.process == other.process {
            Common::Process
        } else if is_known && self.rack != other.rack {
            Common::Nothing
        } else if self.host != 0 && self.host == other.host {
            Common::Host
        } else if is_known {
            Common::Rack
        } else {
            Common::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u64, rack: &str) -> OwnedSite {
        OwnedSite { host, rack: rack.into(), ..OwnedSite::default() }
    }

    #[test]
    fn two_servers_have_a_host_or_a_rack_in_common_only_if_it_is_known() {
        assert_eq!(at(1, "a").common(&at(1, "b")), Common::Nothing, "a host is in one rack");
        assert_eq!(at(1, "a").common(&at(1, "a")), Common::Host);
        assert_eq!(at(1, "a").common(&at(1, "")), Common::Host);
        assert_eq!(at(1, "a").common(&at(2, "")), Common::Nothing);
        assert_eq!(at(1, "a").common(&at(2, "a")), Common::Rack);
        assert_eq!(at(0, "a").common(&at(0, "a")), Common::Rack);
        assert_eq!(at(1, "").common(&at(2, "")), Common::Nothing);
        assert_eq!(at(0, "").common(&at(0, "")), Common::Nothing);
        assert_eq!(at(1, "a").common(&at(2, "b")), Common::Nothing);
    }

    #[test]
    fn shards_of_one_process_have_it_in_common() {
        let of = |process, host| OwnedSite { process, ..at(host, "a") };
        assert_eq!(of(5, 0).common(&of(5, 0)), Common::Process);
        assert_eq!(of(5, 1).common(&of(6, 1)), Common::Host);
        assert_eq!(of(0, 1).common(&of(0, 1)), Common::Host, "each has a process of its own");
        assert!(Common::Process > Common::Host);
    }

    #[test]
    fn a_role_has_one_name() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("Master".parse::<Role>().is_err());
        assert_eq!(Role::ALL.map(Role::is_master), [true, true, false]);
        assert_eq!(Role::ALL.map(Role::is_backup), [true, false, true]);
    }
}
