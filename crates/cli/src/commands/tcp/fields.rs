//! The fields of IP headers that a user chooses for streams of our own TCP and of the kernel's.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use clap::Args;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use sprat::tcp::Options;

/// The bits of ECN below the codepoint in the byte of an IP header. The kernel keeps its own.
const ECN_BITS: u32 = 2;

/// Fields of the IP headers of streams.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Fields {
    /// Differentiated Services codepoint (DSCP) of the packets, 0 to 63 [default: 0].
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u8).range(0..=63))]
    dscp: Option<u8>,
    /// Time to live of the packets, or their hop limit over IPv6, 1 to 255 [default: 64, or the
    /// kernel's].
    #[arg(long, value_name = "HOPS", value_parser = clap::value_parser!(u8).range(1..=255))]
    ttl: Option<u8>,
}

impl Fields {
    /// Adds the fields to the options of our own TCP.
    pub(super) const fn add(self, mut options: Options) -> Options {
        if let Some(dscp) = self.dscp {
            options = options.dscp(dscp);
        }
        if let Some(ttl) = self.ttl {
            options = options.ttl(ttl);
        }
        options
    }

    /// Sets the fields of a kernel's socket. The connections of a listener inherit them.
    pub(super) fn apply(self, socket: impl AsFd, is_v4: bool) -> io::Result<()> {
        let socket = socket.as_fd();
        // A socket of IPv6 may have peers of IPv4.
        if let Some(dscp) = self.dscp {
            sockopt::set_ip_tos(socket, dscp << ECN_BITS)?;
            if !is_v4 {
                sockopt::set_ipv6_tclass(socket, u32::from(dscp) << ECN_BITS)?;
            }
        }
        if let Some(ttl) = self.ttl {
            sockopt::set_ip_ttl(socket, ttl.into())?;
            if !is_v4 {
                sockopt::set_ipv6_unicast_hops(socket, Some(ttl))?;
            }
        }
        Ok(())
    }

    /// Connects by the kernel's TCP. The SYN has the fields, too.
    pub(super) fn connect(self, to: SocketAddr) -> io::Result<TcpStream> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        self.apply(&socket, to.is_ipv4())?;
        connect(&socket, &to)?;
        Ok(socket.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        fields: Fields,
    }

    fn parsed(args: &[&str]) -> Result<Fields, String> {
        let args = std::iter::once(&"test").chain(args);
        Command::try_parse_from(args).map(|command| command.fields).map_err(|e| e.to_string())
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (option, value, range) in [
            ("--dscp", "64", "0..=63"),
            ("--dscp", "256", "0..=63"),
            ("--ttl", "0", "1..=255"),
            ("--ttl", "256", "1..=255"),
        ] {
            let error = parsed(&[option, value]).unwrap_err();
            let wanted = format!("{value} is not in {range}");
            assert!(error.contains(option) && error.contains(&wanted), "{error}");
        }
        assert!(parsed(&["--dscp", "63", "--ttl", "255"]).is_ok());
        assert!(parsed(&["--dscp", "0", "--ttl", "1"]).is_ok());
    }

    /// Both ends of a connection of the kernel have the fields: a listener hands them on.
    #[test]
    fn sockets_of_the_kernel_have_the_fields() {
        let fields = parsed(&["--dscp", "46", "--ttl", "9"]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        fields.apply(&listener, true).unwrap();
        let stream = fields.connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        for socket in [&stream, &accepted] {
            assert_eq!(sockopt::ip_tos(socket).unwrap(), 0xb8);
            assert_eq!(sockopt::ip_ttl(socket).unwrap(), 9);
        }
        let plain = parsed(&[]).unwrap().connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(sockopt::ip_tos(&plain).unwrap(), 0);
        assert_ne!(sockopt::ip_ttl(&plain).unwrap(), 9);
        let six = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .unwrap();
        fields.apply(&six, false).unwrap();
        assert_eq!(sockopt::ipv6_tclass(&six).unwrap(), 0xb8);
        assert_eq!(sockopt::ipv6_unicast_hops(&six).unwrap(), 9);
        assert_eq!((sockopt::ip_tos(&six).unwrap(), sockopt::ip_ttl(&six).unwrap()), (0xb8, 9));
    }
}
