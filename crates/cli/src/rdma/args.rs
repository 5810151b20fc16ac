//! What can be typed behind `sprat rdma`.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use sprat::verbs::{self, RtrKind};

/// Software RDMA (iWARP) over TCP: try it with any peer, measure it.
#[derive(Subcommand, Debug)]
pub(crate) enum Rdma {
    Ping(Ping),
}

/// Asked for or not.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// The frame that an initiator sends first, so that the responder may send.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rtr {
    /// A Write without octets
    Write,
    /// A Read without octets
    Read,
    /// A Send without octets
    Send,
}

impl From<Rtr> for RtrKind {
    fn from(rtr: Rtr) -> Self {
        match rtr {
            Rtr::Write => Self::Write,
            Rtr::Read => Self::Read,
            Rtr::Send => Self::Send,
        }
    }
}

/// How a device is opened.
#[derive(Args, Clone, Debug)]
pub(crate) struct Wire {
    /// Protect every frame by a CRC
    #[arg(long, value_name = "on|off", value_enum, default_value = "on", hide_possible_values = true)]
    pub(crate) crc: Switch,
    /// Ask the peer for markers
    #[arg(long)]
    pub(crate) markers: bool,
    /// Allow an address other than loopback: nothing is encrypted
    #[arg(long)]
    pub(crate) insecure_network: bool,
}

impl Wire {
    /// The options of a device.
    pub(crate) fn options(&self) -> verbs::Options {
        verbs::Options {
            crc: self.crc == Switch::On,
            markers: self.markers,
            insecure_network: self.insecure_network,
            ..verbs::Options::default()
        }
    }
}

/// What rping does, as client or as server, with rping or with itself: the server reads the client's data and writes it
/// back, and each side tells the other by a Send.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat rdma ping -s                           a server for one client
  sprat rdma ping -c -C 100                    100 rounds with it
  sprat rdma ping -c -a 10.0.0.7 --insecure-network --crc off --rtr write

Options with one letter are those of rping.")]
pub(crate) struct Ping {
    /// Be the server
    #[arg(short, long, required_unless_present = "client", conflicts_with = "client")]
    pub(crate) server: bool,
    /// Be the client
    #[arg(short, long)]
    pub(crate) client: bool,
    /// The server's address
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    /// The server's port
    #[arg(short, long, value_name = "PORT", default_value_t = 7174)]
    pub(crate) port: u16,
    /// How many rounds; 0: without end
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    pub(crate) count: u64,
    /// Octets of the ping; the server's is the most that it takes
    #[arg(short = 'S', long, value_name = "OCTETS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(23..=65_535))]
    pub(crate) size: u32,
    /// Print the data
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Serve one client after the other
    #[arg(short = 'P', long, conflicts_with = "client")]
    pub(crate) persistent: bool,
    #[command(flatten)]
    pub(crate) wire: Wire,
    /// The client's MPA revision
    #[arg(long, value_name = "1|2", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) revision: u8,
    /// Start peer to peer, with this frame first
    #[arg(long, value_enum, value_name = "FRAME", conflicts_with = "server")]
    pub(crate) rtr: Option<Rtr>,
    /// How long the client waits between the server's reply and its own first message: Linux's siw overlooks one that comes
    /// at once
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) hold_ms: u64,
}
