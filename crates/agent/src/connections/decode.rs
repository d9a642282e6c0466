//! Messages of ctnetlink, the kernel's interface to its connection table, as flows. Pure, and without memory of its own: a datagram is
//! read message by message.
//!
//! Invariant: no bytes make it panic, and bytes that are not readable are an error and never a missing flow. Entries of other
//! protocols than TCP and UDP are no flows. `netlink-packet-core` checks the lengths; upstream for the numbers:
//! `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLM_F_DUMP_INTR, NetlinkBuffer, NlasIterator};

use crate::connections::flow::{Destination, Flow, Protocol, TcpState};

/// The message type of an entry: subsystem 1, message 0.
const MESSAGE_NEW: u16 = 1 << 8;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// Address family, version and resource, before the attributes.
const NETFILTER_HEADER_LENGTH: usize = 4;

pub(crate) const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const PROTOCOL_INFO: u16 = 4;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TIMESTAMP: u16 = 20;

pub(crate) const TUPLE_IP: u16 = 1;
pub(crate) const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;

const IP_V4_SOURCE: u16 = 1;
pub(crate) const IP_V4_DESTINATION: u16 = 2;
const IP_V6_SOURCE: u16 = 3;
const IP_V6_DESTINATION: u16 = 4;

pub(crate) const PROTOCOL_NUMBER: u16 = 1;
const PROTOCOL_SOURCE_PORT: u16 = 2;
pub(crate) const PROTOCOL_DESTINATION_PORT: u16 = 3;

const PROTOCOL_INFO_TCP: u16 = 1;
const PROTOCOL_INFO_TCP_STATE: u16 = 1;
const TIMESTAMP_START: u16 = 1;

/// Bytes that are not a message of ctnetlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What the kernel sends in answer to a request for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Flow(Flow),
    /// An entry of another protocol, or another kind of message.
    Other,
    /// The end of the table.
    Done,
    /// The request failed with this `errno`.
    Failed(i32),
    /// The table changed so that the dump is not consistent.
    Interrupted,
}

/// Passes on the messages of one datagram, in order.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message, Malformed>> + '_ {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(header) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(Malformed));
        };
        let length = (header.length() as usize).next_multiple_of(4);
        let message = decode(&header);
        rest = rest.get(length..).unwrap_or_default();
        Some(message)
    })
}

fn decode(message: &NetlinkBuffer<&[u8]>) -> Result<Message, Malformed> {
    if message.flags() & NLM_F_DUMP_INTR != 0 {
        return Ok(Message::Interrupted);
    }
    let payload = message.payload();
    match message.message_type() {
        MESSAGE_NEW => {
            let attributes = payload.get(NETFILTER_HEADER_LENGTH..).ok_or(Malformed)?;
            Ok(decode_entry(attributes)?.map_or(Message::Other, Message::Flow))
        }
        // Both have a number first; old kernels end a table without one.
        MESSAGE_DONE if payload.is_empty() => Ok(Message::Done),
        kind @ (MESSAGE_ERROR | MESSAGE_DONE) => {
            let errno = i32::from_ne_bytes(*payload.first_chunk().ok_or(Malformed)?).saturating_neg();
            match errno {
                0 if kind == MESSAGE_DONE => Ok(Message::Done),
                0 => Ok(Message::Other),
                errno => Ok(Message::Failed(errno)),
            }
        }
        _ => Ok(Message::Other),
    }
}

/// One direction of an entry, as far as it is known.
#[derive(Default)]
struct Tuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    zone: Option<u16>,
}

/// The flow, or `None` for an entry of another protocol.
fn decode_entry(attributes: &[u8]) -> Result<Option<Flow>, Malformed> {
    let (mut original, mut reply) = (Tuple::default(), Tuple::default());
    let (mut state, mut zone, mut id, mut started) = (None, None, None, None);
    for_each(attributes, |kind, value| {
        match kind {
            TUPLE_ORIGINAL => original = decode_tuple(value)?,
            TUPLE_REPLY => reply = decode_tuple(value)?,
            PROTOCOL_INFO => state = nested(value, PROTOCOL_INFO_TCP, PROTOCOL_INFO_TCP_STATE)?,
            ID => id = Some(u32::from_be_bytes(array(value)?)),
            ZONE => zone = Some(u16::from_be_bytes(array(value)?)),
            TIMESTAMP => {
                for_each(value, |kind, value| {
                    if kind == TIMESTAMP_START {
                        started = Some(u64::from_be_bytes(array(value)?));
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    let protocol = original.protocol.ok_or(Malformed)?;
    let Some(protocol) = Protocol::from_number(protocol) else {
        return Ok(None);
    };
    Ok(Some(Flow {
        source: original.source.ok_or(Malformed)?,
        destination: Destination {
            protocol,
            address: original.destination.ok_or(Malformed)?,
            port: original.destination_port.ok_or(Malformed)?,
        },
        responder: reply.source.zip(reply.source_port).map(SocketAddr::from),
        state: state.filter(|_| protocol == Protocol::Tcp).map(TcpState),
        zone: zone.or(original.zone).unwrap_or(0),
        id,
        started_unix_nanos: started,
    }))
}

fn decode_tuple(attributes: &[u8]) -> Result<Tuple, Malformed> {
    let mut tuple = Tuple::default();
    for_each(attributes, |kind, value| match kind {
        TUPLE_IP => for_each(value, |kind, value| {
            match kind {
                IP_V4_SOURCE => tuple.source = Some(Ipv4Addr::from(array(value)?).into()),
                IP_V4_DESTINATION => tuple.destination = Some(Ipv4Addr::from(array(value)?).into()),
                IP_V6_SOURCE => tuple.source = Some(v6(value)?),
                IP_V6_DESTINATION => tuple.destination = Some(v6(value)?),
                _ => {}
            }
            Ok(())
        }),
        TUPLE_PROTOCOL => for_each(value, |kind, value| {
            match kind {
                PROTOCOL_NUMBER => tuple.protocol = Some(u8::from_be_bytes(array(value)?)),
                PROTOCOL_SOURCE_PORT => tuple.source_port = Some(u16::from_be_bytes(array(value)?)),
                PROTOCOL_DESTINATION_PORT => tuple.destination_port = Some(u16::from_be_bytes(array(value)?)),
                _ => {}
            }
            Ok(())
        }),
        TUPLE_ZONE => {
            tuple.zone = Some(u16::from_be_bytes(array(value)?));
            Ok(())
        }
        _ => Ok(()),
    })?;
    Ok(tuple)
}

fn v6(value: &[u8]) -> Result<IpAddr, Malformed> {
    let address = Ipv6Addr::from(array::<16>(value)?);
    Ok(IpAddr::V6(address).to_canonical())
}

/// The byte of attribute `inner` in attribute `outer`.
fn nested(attributes: &[u8], outer: u16, inner: u16) -> Result<Option<u8>, Malformed> {
    let mut found = None;
    for_each(attributes, |kind, value| {
        if kind != outer {
            return Ok(());
        }
        for_each(value, |kind, value| {
            if kind == inner {
                found = Some(u8::from_be_bytes(array(value)?));
            }
            Ok(())
        })
    })?;
    Ok(found)
}

fn for_each(attributes: &[u8], mut f: impl FnMut(u16, &[u8]) -> Result<(), Malformed>) -> Result<(), Malformed> {
    for attribute in NlasIterator::new(attributes) {
        let attribute = attribute.map_err(|_| Malformed)?;
        f(attribute.kind(), attribute.value())?;
    }
    Ok(())
}

fn array<const N: usize>(value: &[u8]) -> Result<[u8; N], Malformed> {
    value.try_into().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests;
