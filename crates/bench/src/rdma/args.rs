//! Arguments of the commands of `sprat rdma`, which both sides of a measurement pass on.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use sprat::verbs::{self, RtrKind};

/// A choice of on or off on the command line.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// The choice is on.
    On,
    /// The choice is off.
    Off,
}

/// The first frame of an initiator, after which the responder may send (RFC 6581).
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rtr {
    /// The first frame is an RDMA Write without bytes.
    Write,
    /// The first frame is an RDMA Read without bytes.
    Read,
    /// The first frame is a Send without bytes.
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

/// Parses a message's number of bytes. It is at least one, since the peer detects a message by its
/// last byte.
fn octets(text: &str) -> Result<usize, String> {
    match crate::units::size(text)? {
        0 => Err("a message has at least 1 byte".to_owned()),
        octets => Ok(octets),
    }
}

/// Returns the name of a choice on the command line.
pub fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Options of an RDMA device on the wire: CRC, markers and addresses.
#[derive(Args, Clone, Debug)]
pub struct Wire {
    /// Protect every frame by a CRC32C.
    #[arg(
        long,
        value_name = "on|off",
        value_enum,
        default_value = "on",
        hide_possible_values = true
    )]
    pub crc: Switch,
    /// Ask the peer for MPA markers in the stream.
    #[arg(long)]
    pub markers: bool,
    /// Allow an address other than loopback. Nothing is encrypted.
    #[arg(long)]
    pub insecure_network: bool,
}

impl Wire {
    /// Returns the options that open the RDMA device.
    pub fn options(&self) -> verbs::Options {
        verbs::Options {
            crc: self.crc == Switch::On,
            markers: self.markers,
            insecure_network: self.insecure_network,
            ..verbs::Options::default()
        }
    }
}

/// Exchange pings as rping does, with rping or with another sprat.
///
/// The server reads the client's data and writes it back; each side announces its memory by a Send.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat rdma rping -s                          a server for one client
  sprat rdma rping -c -C 100                   100 rounds with it
  sprat rdma rping -c -a 10.0.0.7 --insecure-network --crc off --rtr write

Options with one letter are those of rping.")]
pub struct Ping {
    /// Run the server, which writes back what it reads.
    #[arg(short, long, required_unless_present = "client", conflicts_with = "client")]
    pub server: bool,
    /// Run the client, which sends the pings.
    #[arg(short, long)]
    pub client: bool,
    /// The server's address.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,
    /// The server's port.
    #[arg(short, long, value_name = "PORT", default_value_t = 7174)]
    pub port: u16,
    /// Number of pings; 0 is without end.
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    pub count: u64,
    /// Bytes of the ping; for the server, the largest that it accepts.
    #[arg(
        short = 'S',
        long,
        value_name = "OCTETS",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(23..=65_535),
    )]
    pub size: u32,
    /// Print the data of each ping.
    #[arg(short, long)]
    pub verbose: bool,
    /// Serve one client after the other, instead of one alone.
    #[arg(short = 'P', long, conflicts_with = "client")]
    pub persistent: bool,
    /// Options of the RDMA device on the wire.
    #[command(flatten)]
    pub wire: Wire,
    /// MPA revision that the client asks for.
    #[arg(
        long,
        value_name = "1|2",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=2),
    )]
    pub revision: u8,
    /// Start peer to peer (RFC 6581), with this frame of the client first.
    #[arg(long, value_enum, value_name = "FRAME", conflicts_with = "server")]
    pub rtr: Option<Rtr>,
    /// Milliseconds that the client waits between the server's reply and its own first message.
    /// Linux's siw misses a message that arrives at once.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(0..=10_000),
    )]
    pub hold_ms: u64,
}

/// The RDMA operation to measure.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Measure Sends into posted receives.
    Send,
    /// Measure RDMA Writes into the peer's memory.
    Write,
    /// Measure RDMA Reads of the peer's memory.
    Read,
    /// Measure Fetch and Add on a word of the peer's memory.
    Atomic,
}

/// The threads that make progress on RDMA connections.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// Send and receive in the calling thread alone.
    Caller,
    /// Send and receive in a thread of the device.
    Io,
    /// Receive in a thread of the device, and send in the calling thread.
    Receive,
    /// Send and receive in the calling thread; a progress thread that sleeps on the sockets
    /// receives while the program makes no call.
    Guard,
}

/// The number of copies from received payload to registered memory.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum CopyWays {
    /// Assemble each frame (FPDU) in a buffer, then copy its payload to memory.
    Two,
    /// Copy payload once, from the read buffer to memory.
    One,
    /// Read payload straight into memory, where CRC and markers are off.
    Direct,
}

/// Setup of the RDMA devices on both sides of a measurement.
#[derive(Args, Clone, Debug)]
pub struct Model {
    /// Options of the RDMA device on the wire.
    #[command(flatten)]
    pub wire: Wire,
    /// The thread that sends and receives for the device.
    #[arg(long, value_enum, value_name = "WHO", default_value = "caller")]
    pub threading: Threads,
    /// The number of copies from received payload to registered memory.
    #[arg(long, value_enum, value_name = "HOW", default_value = "one")]
    pub copies: CopyWays,
    /// Sleep until a completion arrives, instead of polling for it.
    #[arg(long)]
    pub events: bool,
    /// The network under both devices.
    #[arg(long, value_enum, value_name = "NETWORK", default_value = "tcp")]
    pub under: Under,
    /// The coupling of iWARP with our own TCP.
    #[arg(long, value_enum, value_name = "HOW", default_value = "tight")]
    pub coupling: CouplingWay,
    /// The place of this side: an address of the kernel, or a locator.
    #[arg(long, value_name = "PLACE", hide = true)]
    pub at: Option<String>,
}

/// The network under the devices of a measurement.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Under {
    /// The kernel's TCP over loopback.
    Tcp,
    /// The kernel's TCP over a veth between two network namespaces (root).
    Veth,
    /// Our own TCP over rings in shared memory.
    Shmnet,
    /// Our own TCP over a memif.
    Memif,
    /// Our own TCP over AF_PACKET on a veth between two network namespaces (root).
    Packet,
    /// Our own TCP over AF_XDP on a veth between two network namespaces (root).
    Xdp,
    /// Our own TCP over taps, bridged to a veth between two network namespaces (root).
    Tap,
}

impl Under {
    /// True if kernel TCP carries the connections.
    pub fn is_kernel(self) -> bool {
        matches!(self, Self::Tcp | Self::Veth)
    }

    /// True if both ends need network namespaces.
    pub(super) fn needs_wire(self) -> bool {
        !matches!(self, Self::Tcp | Self::Shmnet | Self::Memif)
    }

    /// Returns the name of the transport of datagrams over the same device.
    pub(super) fn datagrams(self) -> String {
        match self {
            Self::Veth => "fast+packet".to_owned(),
            device => format!("fast+{}", word(&device)),
        }
    }
}

/// The coupling of iWARP with our own TCP.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum CouplingWay {
    /// Each frame (FPDU) is a segment, and payload is placed from the packet that brought it.
    Tight,
    /// The stack below carries a stream of bytes, as the kernel's TCP does.
    Loose,
}

impl Model {
    /// Returns the options that open the RDMA device.
    pub fn options(&self) -> verbs::Options {
        verbs::Options {
            threading: match self.threading {
                Threads::Caller => verbs::Threading::Caller,
                Threads::Io => verbs::Threading::IoThread,
                Threads::Receive => verbs::Threading::ReceiveThread,
                Threads::Guard => verbs::Threading::Background,
            },
            copies: match self.copies {
                CopyWays::Two => verbs::Copies::Two,
                CopyWays::One => verbs::Copies::One,
                CopyWays::Direct => verbs::Copies::Direct,
            },
            coupling: match self.coupling {
                CouplingWay::Tight => verbs::Coupling::Tight,
                CouplingWay::Loose => verbs::Coupling::Loose,
            },
            ..self.wire.options()
        }
    }

    /// Returns the setup of the RDMA devices as arguments for the other process.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            format!("--crc={}", word(&self.wire.crc)),
            format!("--threading={}", word(&self.threading)),
            format!("--copies={}", word(&self.copies)),
            format!("--coupling={}", word(&self.coupling)),
        ];
        for (flag, set) in [("--markers", self.wire.markers), ("--events", self.events)] {
            if set {
                all.push(flag.to_owned());
            }
        }
        all
    }
}

/// The operations to measure, and the time of each.
#[derive(Args, Clone, Debug)]
pub struct Measured {
    /// RDMA operations to measure, one after the other.
    #[arg(value_enum, required = true, value_name = "OP")]
    pub ops: Vec<Op>,
    /// Setup of the RDMA devices on both sides.
    #[command(flatten)]
    pub model: Model,
    /// Sizes of messages in bytes (decimal KB and MB allowed).
    #[arg(
        long,
        value_name = "SIZE,SIZE…",
        value_delimiter = ',',
        value_parser = octets,
        default_value = "4,64,1KB,10KB,64KB,100KB,500KB,1MB",
    )]
    pub size: Vec<usize>,
    /// Most messages that are sent for each figure, over all rounds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000_000,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub iterations: u64,
    /// Seconds to measure each figure for, over all rounds.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = crate::units::seconds)]
    pub seconds: f64,
    /// Number of rounds in which raw TCP and RDMA take turns.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub rounds: u16,
    /// Also write the results to this file as JSON Lines; `-` is standard output, which then has no
    /// table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measure the latency of verbs, beside raw TCP.
///
/// The figure is half of a round trip for Sends and Writes, the whole one for Reads and atomics.
/// The other side is another process. The floor is raw polling TCP with the same bytes, in turns
/// with it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat rdma lat send write --size 64
  sprat rdma lat read --crc off --threading io --events")]
pub struct Lat {
    /// The operations to measure, and the options of the measurement.
    #[command(flatten)]
    pub what: Measured,
}

/// Measure the throughput of verbs in one direction, beside raw TCP.
///
/// The floor is raw TCP with messages of the same size, in turns with it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat rdma bw write --size 64KB --crc off
  sprat rdma bw read --copies direct --crc off --outstanding 16")]
pub struct Bw {
    /// The operations to measure, and the options of the measurement.
    #[command(flatten)]
    pub what: Measured,
    /// Number of messages in progress at the same time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    pub outstanding: u16,
}

/// Measure what CRC, markers, threads, copies and sleep cost a Write, in one table.
///
/// One of them changes at a time. The table is Markdown: time, throughput and processor time of
/// both sides, each beside raw TCP. It takes two minutes by default.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat rdma table
  sprat rdma table --size 64,64KB --seconds 1 --json table.jsonl")]
pub struct Table {
    /// Sizes of messages in bytes (decimal KB and MB allowed).
    #[arg(
        long,
        value_name = "SIZE,SIZE…",
        value_delimiter = ',',
        value_parser = octets,
        default_value = "4,64,1KB,10KB,64KB,100KB,500KB",
    )]
    pub size: Vec<usize>,
    /// Seconds to measure each figure for; its floor takes as long.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = crate::units::seconds)]
    pub seconds: f64,
    /// Also write the results to this file as JSON Lines; `-` is standard output, which then has no
    /// table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Measure iWARP over kernel TCP, over our own TCP, and the raw device.
///
/// Our own TCP carries it as a stream (loose), and with a segment for each frame of iWARP (tight).
/// The figures are RDMA Writes between two processes; those on packet, xdp and tap are in network
/// namespaces joined by a veth (root), as the kernel's are then.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat bench schemes --device shmnet
  sprat bench schemes --device xdp --size 64,10KB --threading caller,io,receive --crc on,off")]
pub struct Schemes {
    /// The packet device under our own TCP.
    #[arg(long, value_enum, value_name = "DEVICE", default_value = "xdp")]
    pub device: Under,
    /// Sizes of messages in bytes (decimal KB and MB allowed).
    #[arg(
        long,
        value_name = "SIZE,SIZE…",
        value_delimiter = ',',
        value_parser = octets,
        default_value = "64,1KB,10KB,100KB,500KB",
    )]
    pub size: Vec<usize>,
    /// Protect every frame by a CRC32C; a table for each value.
    #[arg(long, value_enum, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub crc: Vec<Switch>,
    /// The thread that sends and receives for the device; a table for each value.
    #[arg(
        long,
        value_enum,
        value_name = "WHO,WHO…",
        value_delimiter = ',',
        default_value = "caller"
    )]
    pub threading: Vec<Threads>,
    /// The number of copies from received payload to registered memory; a table for each value.
    #[arg(long, value_enum, value_name = "HOW,HOW…", value_delimiter = ',', default_value = "one")]
    pub copies: Vec<CopyWays>,
    /// Number of messages in progress at the same time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    pub outstanding: u16,
    /// Seconds to measure each figure for, over all rounds.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = crate::units::seconds)]
    pub seconds: f64,
    /// Number of rounds in which raw TCP and RDMA take turns.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub rounds: u16,
    /// Also write the results to this file as JSON Lines; `-` is standard output, which then has no
    /// table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Open many connections with one server process, and ping once on each.
///
/// It prints the time to open one, and the memory of an idle one.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sprat rdma connections --connections 10000")]
pub struct Connections {
    /// Number of connections to open; each is an open file on both sides.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=25_000),
    )]
    pub connections: u32,
    /// Setup of the RDMA devices on both sides.
    #[command(flatten)]
    pub model: Model,
}

/// Serve one client of perftest: ib_send_lat, ib_write_bw, ib_read_bw or ib_read_lat with -R.
#[derive(Args, Debug)]
#[command(after_help = "Example, with a client on a machine that has an RDMA device:
  sprat rdma perftest -a 10.0.0.7 --insecure-network
  ib_write_bw -R -s 65536 10.0.0.7

The client decides on the measurement. Options with one letter are those of perftest, but for -a.")]
pub struct Perftest {
    /// Address to listen at.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,
    /// Port to listen at.
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,
    /// The largest message that a client may choose (decimal KB and MB allowed).
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "8388608",
        value_parser = crate::units::size,
    )]
    pub size: usize,
    /// Options of the RDMA device on the wire.
    #[command(flatten)]
    pub wire: Wire,
}
