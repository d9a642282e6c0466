//! Requests for the connection table: all of it, or a part that the kernel selects. Pure.
//!
//! The kernel filters since 5.8, by an attribute that names the parts of the tuple that must be equal. Older kernels do not know the
//! attribute and send everything, without an error; so the reader compares each flow with [`Selection::contains`]. IPv6 addresses
//! cannot be part of a filter: every kernel that has it sends the flows to all *other* addresses (`ctnetlink_filter_match_tuple` takes
//! an `ipv6_addr_cmp` of zero for a difference; seen on 6.18). So IPv6 is selected by protocol and port.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader};

use crate::connections::decode::{
    IP_V4_DESTINATION, PROTOCOL_DESTINATION_PORT, PROTOCOL_NUMBER, TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTOCOL,
};
use crate::connections::flow::{Destination, Flow, Protocol};

/// The message type of a request: subsystem 1, message 1.
const MESSAGE_GET: u16 = (1 << 8) | 1;
const NETLINK_HEADER_LENGTH: usize = 16;
const FILTER: u16 = 25;
const FILTER_ORIGINAL_FLAGS: u16 = 1;
const FILTER_REPLY_FLAGS: u16 = 2;
const FLAG_DESTINATION_ADDRESS: u32 = 1 << 1;
const FLAG_PROTOCOL: u32 = 1 << 3;
const FLAG_DESTINATION_PORT: u32 = 1 << 5;
const FAMILY_UNSPECIFIED: u8 = 0;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;

/// The part of the table that one request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selection {
    Everything,
    V4,
    V4Address(Ipv4Addr),
    V4Destination(Ipv4Addr, Protocol, u16),
    V6,
    V6Port(Protocol, u16),
}

impl Selection {
    /// The smallest that contains the flows to a destination.
    pub(crate) fn of(destination: Destination) -> Self {
        let Destination { protocol, port, .. } = destination;
        match destination.address {
            IpAddr::V4(address) => Self::V4Destination(address, protocol, port),
            IpAddr::V6(_) => Self::V6Port(protocol, port),
        }
    }

    pub(crate) fn contains(self, flow: &Flow) -> bool {
        let Destination {
            protocol,
            address,
            port,
        } = flow.destination;
        match self {
            Self::Everything => true,
            Self::V4 => address.is_ipv4(),
            Self::V4Address(selected) => address == selected,
            Self::V4Destination(..) => Self::of(flow.destination) == self,
            Self::V6 => address.is_ipv6(),
            Self::V6Port(selected, number) => address.is_ipv6() && (protocol, port) == (selected, number),
        }
    }

    /// The bytes of the request.
    pub(crate) fn to_request(self) -> Vec<u8> {
        let (family, address, port) = match self {
            Self::Everything => return message(FAMILY_UNSPECIFIED, &[]),
            Self::V4 => return message(FAMILY_IPV4, &[]),
            Self::V6 => return message(FAMILY_IPV6, &[]),
            Self::V4Address(address) => (FAMILY_IPV4, Some(address), None),
            Self::V4Destination(address, protocol, port) => (FAMILY_IPV4, Some(address), Some((protocol, port))),
            Self::V6Port(protocol, port) => (FAMILY_IPV6, None, Some((protocol, port))),
        };
        let (mut tuple, mut flags) = (Vec::new(), 0);
        if let Some(address) = address {
            flags |= FLAG_DESTINATION_ADDRESS;
            let ip = DefaultNla::new(IP_V4_DESTINATION, address.octets().to_vec());
            tuple.push(nested(TUPLE_IP, &[ip]));
        }
        if let Some((protocol, port)) = port {
            flags |= FLAG_PROTOCOL | FLAG_DESTINATION_PORT;
            let of_protocol = [
                DefaultNla::new(PROTOCOL_NUMBER, vec![protocol.number()]),
                DefaultNla::new(PROTOCOL_DESTINATION_PORT, port.to_be_bytes().to_vec()),
            ];
            tuple.push(nested(TUPLE_PROTOCOL, &of_protocol));
        }
        let filter = [
            DefaultNla::new(FILTER_ORIGINAL_FLAGS, flags.to_ne_bytes().to_vec()),
            DefaultNla::new(FILTER_REPLY_FLAGS, 0_u32.to_ne_bytes().to_vec()),
        ];
        message(family, &[nested(TUPLE_ORIGINAL, &tuple), nested(FILTER, &filter)])
    }
}

fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NLA_F_NESTED, emit(&attributes))
}

fn message(family: u8, attributes: &[DefaultNla]) -> Vec<u8> {
    let attributes = emit(&attributes);
    // Version 0, resource 0.
    let payload = [&[family, 0, 0, 0], attributes.as_slice()].concat();
    let mut header = NetlinkHeader::default();
    header.length = u32::try_from(NETLINK_HEADER_LENGTH + payload.len()).unwrap_or(u32::MAX);
    header.message_type = MESSAGE_GET;
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    [emit(&header), payload].concat()
}

fn emit(value: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; value.buffer_len()];
    value.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::flow::Protocol;

    #[test]
    fn request_for_a_destination_names_the_parts_that_must_be_equal() {
        let selection = Selection::V4Destination("10.0.0.4".parse().unwrap(), Protocol::Tcp, 0x1f90);
        #[rustfmt::skip]
        let expected = [
            // Header: length, get, request and dump, no sequence, from anyone; then IPv4.
            76, 0, 0, 0, 1, 1, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,
            // The original tuple: the address, then the protocol and the port.
            36, 0, 1, 0x80, 12, 0, 1, 0x80, 8, 0, 2, 0, 10, 0, 0, 4,
            20, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0, 6, 0, 3, 0, 0x1f, 0x90, 0, 0,
            // The filter.
            20, 0, 25, 0x80, 8, 0, 1, 0, 0b10_1010, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(selection.to_request(), expected);
        }
    }

    #[test]
    fn requests_select_a_family() {
        for (selection, length, family) in [
            (Selection::Everything, 20, FAMILY_UNSPECIFIED),
            (Selection::V4, 20, FAMILY_IPV4),
            (Selection::V6, 20, FAMILY_IPV6),
            (Selection::V4Address("10.0.0.4".parse().unwrap()), 56, FAMILY_IPV4),
            (Selection::V6Port(Protocol::Udp, 53), 64, FAMILY_IPV6),
        ] {
            let request = selection.to_request();
            assert_eq!((request.len(), request[16]), (length, family), "{selection:?}");
        }
    }
}
