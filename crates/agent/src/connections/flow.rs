//! One entry of the kernel's connection table, and whether it is a connection that a user would lose. Pure.
//!
//! The numbers of the TCP states are the kernel's (upstream: `include/uapi/linux/netfilter/nf_conntrack_tcp.h`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A transport protocol whose flows are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP: what drains wait for.
    Tcp,
    /// UDP: reported apart.
    Udp,
}

impl Protocol {
    /// The protocol with this number in an IP header.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// Its number in an IP header.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// What a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The transport protocol.
    pub protocol: Protocol,
    /// An IPv4 address is never written as an IPv6 one here.
    pub address: IpAddr,
    /// The port, not zero.
    pub port: u16,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{protocol} {}", SocketAddr::new(self.address, self.port))
    }
}

/// A TCP state as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpState(pub(crate) u8);

impl TcpState {
    /// Whether the end of this node would cut a connection in this state.
    ///
    /// | state | counts | because |
    /// |---|---|---|
    /// | `SYN_SENT` (1), `SYN_RECV` (2), `SYN_SENT2` (9) | no | The client has no connection yet, and tries again elsewhere. If it gets one here, the next count has it. |
    /// | `ESTABLISHED` (3) | yes | Both sides may send. |
    /// | `FIN_WAIT` (4), `CLOSE_WAIT` (5) | yes | Half-closed: one side has sent its FIN, the other may still send, for instance the response to a client that closed its side after the request. |
    /// | `LAST_ACK` (6) | yes | Both have sent their FIN, but the last one is not acknowledged, and data may travel with it. The kernel ends this state after 30 s. |
    /// | `TIME_WAIT` (7), `CLOSE` (8), `NONE` (0) | no | Everything is acknowledged, or the connection was reset. Such entries stay for minutes. |
    /// | any other | yes | A wait that is too long has a bound; a connection that was cut stays cut. |
    pub(crate) fn is_open(self) -> bool {
        !matches!(self.0, 0 | 1 | 2 | 7 | 8 | 9)
    }
}

/// An entry of the connection table: a flow in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The client's address.
    pub(crate) source: IpAddr,
    /// What the client connected to, before any translation.
    pub(crate) destination: Destination,
    /// Who answers; another endpoint than the destination when the kernel translates it.
    pub(crate) responder: Option<SocketAddr>,
    /// `None` for UDP, and for TCP when the kernel does not tell.
    pub(crate) state: Option<TcpState>,
    /// Zero is the zone that kube-proxy's rules use. Open vSwitch tracks the same packets again in zones of its own.
    pub(crate) zone: u16,
    /// The kernel's number of this entry, the same until the entry ends.
    pub(crate) id: Option<u32>,
    /// When the flow began, in nanoseconds of Unix time. Set only while the sysctl `net.netfilter.nf_conntrack_timestamp` is on,
    /// which is not its default.
    pub(crate) started_unix_nanos: Option<u64>,
}

impl Flow {
    /// Whether the end of this node would cut it. A UDP flow has no end, so all that the kernel has not forgotten are open.
    pub(crate) fn is_open(&self) -> bool {
        self.destination.protocol == Protocol::Udp || self.state.is_none_or(TcpState::is_open)
    }

    /// Whether the kernel sends it to another endpoint, as kube-proxy's rules and IPVS do for Services.
    pub(crate) fn is_translated(&self) -> bool {
        let original = SocketAddr::new(self.destination.address, self.destination.port);
        self.responder.is_some_and(|responder| responder != original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_count() {
        let open: Vec<u8> = (0..=12).filter(|state| TcpState(*state).is_open()).collect();
        assert_eq!(open, [3, 4, 5, 6, 10, 11, 12]);
    }

    #[test]
    fn translation_is_another_responder() {
        let flow = |responder: Option<&str>| Flow {
            source: "192.0.2.1".parse().unwrap(),
            destination: Destination {
                protocol: Protocol::Tcp,
                address: "10.0.0.4".parse().unwrap(),
                port: 80,
            },
            responder: responder.map(|text| text.parse().unwrap()),
            state: None,
            zone: 0,
            id: None,
            started_unix_nanos: None,
        };
        for (responder, expected) in [
            (None, false),
            (Some("10.0.0.4:80"), false),
            (Some("10.0.0.4:8080"), true),
            (Some("10.244.0.7:80"), true),
        ] {
            assert_eq!(flow(responder).is_translated(), expected, "{responder:?}");
        }
        assert!(flow(None).is_open(), "an unknown state");
        assert_eq!(flow(None).destination.to_string(), "tcp 10.0.0.4:80");
    }
}
