//! Messages as the kernel sends them, for the tests of several modules.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NetlinkHeader};

use crate::connections::decode::{PROTOCOL_DESTINATION_PORT, PROTOCOL_NUMBER};

/// An entry of the table: client, destination and endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) protocol: u8,
    pub(crate) client: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) endpoint: SocketAddr,
    pub(crate) state: Option<u8>,
    pub(crate) zone: Option<u16>,
    pub(crate) id: u32,
    pub(crate) started: Option<u64>,
}

/// An established TCP connection.
pub(crate) fn established(client: &str, destination: &str, id: u32) -> Entry {
    Entry {
        protocol: 6,
        client: client.parse().unwrap(),
        destination: destination.parse().unwrap(),
        endpoint: if destination.starts_with('[') {
            "[fd00:7::1]:8080"
        } else {
            "10.244.0.7:8080"
        }
        .parse()
        .unwrap(),
        state: Some(3),
        zone: None,
        id,
        started: None,
    }
}

impl Entry {
    /// The message, as one of a dump.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut attributes = vec![
            nested(1, &tuple(self.protocol, self.client, self.destination)),
            nested(2, &tuple(self.protocol, self.endpoint, self.client)),
            plain(3, &0x8e_u32.to_be_bytes()),
            plain(7, &100_u32.to_be_bytes()),
            plain(12, &self.id.to_be_bytes()),
        ];
        if let Some(state) = self.state {
            attributes.push(nested(4, &[nested(1, &[plain(1, &[state]), plain(2, &[7])])]));
        }
        if let Some(zone) = self.zone {
            attributes.push(plain(18, &zone.to_be_bytes()));
        }
        if let Some(started) = self.started {
            attributes.push(nested(20, &[plain(1, &started.to_be_bytes())]));
        }
        let family = if self.destination.is_ipv4() { 2 } else { 10 };
        message(
            0x100,
            2,
            &[vec![family, 0, 0, 0], emit(&attributes.as_slice())].concat(),
        )
    }
}

/// A netlink message.
pub(crate) fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.length = u32::try_from(16 + payload.len()).unwrap();
    header.message_type = kind;
    header.flags = flags;
    let mut bytes = [emit(&header), payload.to_vec()].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The end of a dump, with an `errno` or 0.
pub(crate) fn done(errno: i32) -> Vec<u8> {
    message(3, 2, &(-errno).to_ne_bytes())
}

/// The answer to a request that the kernel refuses.
pub(crate) fn refusal(errno: i32) -> Vec<u8> {
    message(2, 0, &[(-errno).to_ne_bytes().to_vec(), vec![0; 16]].concat())
}

fn tuple(protocol: u8, from: SocketAddr, to: SocketAddr) -> [DefaultNla; 2] {
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [plain(1, &from.octets()), plain(2, &to.octets())],
        (IpAddr::V6(from), IpAddr::V6(to)) => [plain(3, &from.octets()), plain(4, &to.octets())],
        _ => panic!("two families"),
    };
    let mut of_protocol = vec![plain(PROTOCOL_NUMBER, &[protocol])];
    if matches!(protocol, 6 | 17) {
        of_protocol.push(plain(2, &from.port().to_be_bytes()));
        of_protocol.push(plain(PROTOCOL_DESTINATION_PORT, &to.port().to_be_bytes()));
    }
    [nested(1, &ip), nested(2, &of_protocol)]
}

fn plain(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NLA_F_NESTED, emit(&attributes))
}

fn emit(value: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; value.buffer_len()];
    value.emit(&mut bytes);
    bytes
}
