//! The TCP between the two programs of a row: the kernel's over loopback, or our own over a packet
//! device at one end or at both.

/// The TCP that each of a row's programs uses, and what lies between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    /// Both programs use the kernel's TCP over loopback.
    Loopback,
    /// Both programs use our own TCP over shared memory. The server creates it, and the client
    /// joins it.
    Shared,
    /// Both programs use our own TCP, on the two ends of a wire.
    Wire,
    /// The server uses our own TCP on one end of a wire, the client the kernel's at the other.
    WireToKernel,
    /// The server uses the kernel's TCP at one end of a wire, the client our own at the other.
    KernelToWire,
}

/// The addresses of the server and of the client over a packet device.
const ADDRESSES: [&str; 2] = ["10.78.0.7", "10.78.0.8"];
/// The address of the kernel's interface on the wire, which `network` makes.
const KERNEL: &str = "10.78.0.1";

impl Over {
    /// The name of the way in tables and in the names of rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "",
            Self::Shared => "shmnet",
            Self::Wire => "packet",
            Self::WireToKernel => "packet, client on the kernel's TCP",
            Self::KernelToWire => "packet, server on the kernel's TCP",
        }
    }

    /// True if the programs need root and a network of their own, for packet devices.
    pub(crate) const fn is_wired(self) -> bool {
        matches!(self, Self::Wire | Self::WireToKernel | Self::KernelToWire)
    }

    /// The address of the server.
    pub(crate) const fn address(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::KernelToWire => KERNEL,
            _ => ADDRESSES[0],
        }
    }

    /// The options of `sprat exec` for the server, or for the client. `port` is free on this
    /// machine, which makes the name of shared memory unique.
    pub(crate) fn options(self, port: u16, is_server: bool) -> Vec<String> {
        let own = ADDRESSES[usize::from(!is_server)];
        let uses_kernel = match self {
            Self::Loopback => return Vec::new(),
            Self::WireToKernel => !is_server,
            Self::KernelToWire => is_server,
            Self::Shared | Self::Wire => false,
        };
        if uses_kernel {
            return vec!["--insecure-network".to_owned()];
        }
        let device = match self {
            Self::Shared => format!("rdma+shmnet:name=programs-{port},host={own},port=0"),
            // The kernel's address is at the first end.
            _ if is_server && self == Self::Wire => {
                format!("rdma+packet:dev=sprat0,host={own},port=0")
            }
            _ => format!("rdma+packet:dev=sprat1,host={own},port=0"),
        };
        vec!["--device".to_owned(), device]
    }
}
