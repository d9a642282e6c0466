//! Recognises a PROXY protocol header at the start of a connection. Pure.
//!
//! The protocol is haproxy's (`doc/proxy-protocol.txt`): version 1 is a line of text; version 2 is binary and
//! contains its length. Only the format is checked: health answers need neither the addresses nor the extensions of
//! version 2. The result does not depend on how the bytes were split on their way.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One line of text.
    One,
    /// A binary block of known length.
    Two,
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// The start of a header; more bytes are needed.
    Incomplete,
    /// A complete header and its length in bytes.
    Header(Version, usize),
    /// No header, but the peer's own bytes.
    NoHeader,
    /// The start is a header's; the rest is not valid.
    Invalid,
    /// A header above the size limit.
    Oversized,
}

const V1_SIGNATURE: &[u8] = b"PROXY ";
/// The longest line that the protocol allows, line end included.
const V1_MAX_BYTES: usize = 107;
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, and the length of the rest.
const V2_FIXED_BYTES: usize = V2_SIGNATURE.len() + 4;
/// The protocol allows 64 KiB and recommends 536 bytes to senders; names from certificates make headers longer.
const V2_MAX_BYTES: usize = 2048;

/// Examines the bytes of a connection that have arrived so far.
///
/// ```
/// use headgate_http::server::proxy_protocol::{Prefix, Version, parse_prefix};
///
/// let bytes = b"PROXY TCP4 192.0.2.1 10.0.0.4 50000 10356\r\nGET /healthz HTTP/1.1\r\n";
/// assert_eq!(parse_prefix(bytes), Prefix::Header(Version::One, 43));
/// assert_eq!(parse_prefix(&bytes[..42]), Prefix::Incomplete);
/// assert_eq!(parse_prefix(&bytes[43..]), Prefix::NoHeader);
/// ```
pub fn parse_prefix(bytes: &[u8]) -> Prefix {
    if bytes.starts_with(V1_SIGNATURE) {
        version_1(bytes)
    } else if bytes.starts_with(V2_SIGNATURE) {
        version_2(bytes)
    } else if V1_SIGNATURE.starts_with(bytes) || V2_SIGNATURE.starts_with(bytes) {
        Prefix::Incomplete
    } else {
        Prefix::NoHeader
    }
}

fn version_1(bytes: &[u8]) -> Prefix {
    let line = &bytes[..bytes.len().min(V1_MAX_BYTES)];
    match line.windows(2).position(|pair| pair == b"\r\n") {
        None if bytes.len() < V1_MAX_BYTES => Prefix::Incomplete,
        None => Prefix::Oversized,
        Some(end) if is_v1_content(&line[V1_SIGNATURE.len()..end]) => Prefix::Header(Version::One, end + 2),
        Some(_) => Prefix::Invalid,
    }
}

/// Whether this is valid between signature and line end: protocol, two addresses and two ports; or UNKNOWN, which any
/// text may follow.
fn is_v1_content(content: &[u8]) -> bool {
    if let Some(rest) = content.strip_prefix(b"UNKNOWN") {
        return rest.is_empty() || rest.starts_with(b" ");
    }
    let Ok(text) = str::from_utf8(content) else {
        return false;
    };
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    match *text.split(' ').collect::<Vec<_>>() {
        ["TCP4", source, destination, from, to] => {
            are_all::<Ipv4Addr>([source, destination]) && is_port(from) && is_port(to)
        }
        ["TCP6", source, destination, from, to] => {
            are_all::<Ipv6Addr>([source, destination]) && is_port(from) && is_port(to)
        }
        _ => false,
    }
}

fn are_all<A: FromStr>(addresses: [&str; 2]) -> bool {
    addresses.iter().all(|address| address.parse::<A>().is_ok())
}

fn version_2(bytes: &[u8]) -> Prefix {
    let Some(&[command, family, high, low]) = bytes.get(V2_SIGNATURE.len()..V2_FIXED_BYTES) else {
        return Prefix::Incomplete;
    };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    let addresses = match (command, family) {
        // LOCAL, from the proxy itself: the receiver must ignore the rest.
        (0x20, _) | (0x21, 0x00) => 0,
        (0x21, 0x11 | 0x12) => 2 * (4 + 2),
        (0x21, 0x21 | 0x22) => 2 * (16 + 2),
        (0x21, 0x31 | 0x32) => 2 * 108,
        _ => return Prefix::Invalid,
    };
    let length = V2_FIXED_BYTES + rest;
    if rest < addresses {
        Prefix::Invalid
    } else if length > V2_MAX_BYTES {
        Prefix::Oversized
    } else if bytes.len() < length {
        Prefix::Incomplete
    } else {
        Prefix::Header(Version::Two, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn v1(text: &str) -> Vec<u8> {
        format!("PROXY {text}\r\n").into_bytes()
    }

    /// Valid headers with their version.
    fn headers() -> Vec<(Version, Vec<u8>)> {
        let full = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        // The address block of version 2, then the ID of the Private Link, as Azure adds it.
        let azure = [&[10; 12][..], &[0xee, 0, 5, 1, 4, 3, 2, 1]].concat();
        let two = [
            v2(0x21, 0x11, &[1; 12]),
            v2(0x21, 0x12, &[1; 12]),
            v2(0x21, 0x11, &azure),
            v2(0x21, 0x21, &[2; 36]),
            v2(0x21, 0x21, &[2; 2032]),
            v2(0x21, 0x31, &[3; 216]),
            v2(0x21, 0x00, &[]),
            v2(0x21, 0x00, &[9; 3]),
            v2(0x20, 0x00, &[]),
            // LOCAL: the family has no meaning.
            v2(0x20, 0x11, &[]),
            v2(0x20, 0xff, &[7; 5]),
        ];
        let one = [
            v1("TCP4 192.0.2.1 10.0.0.4 0 65535"),
            v1("TCP4 255.255.255.255 255.255.255.255 65535 65535"),
            v1("TCP6 2001:db8::1 ::1 50000 10356"),
            v1("TCP6 ::ffff:10.0.0.4 :: 1 2"),
            v1(&format!("TCP6 {full} {full} 65535 65535")),
            v1("UNKNOWN"),
            v1(&format!("UNKNOWN {full} {full} 65535 65535")),
            b"PROXY UNKNOWN \0\xff\r\n".to_vec(),
        ];
        let one = one.into_iter().map(|bytes| (Version::One, bytes));
        one.chain(two.into_iter().map(|bytes| (Version::Two, bytes))).collect()
    }

    #[test]
    fn header_is_incomplete_until_its_last_byte() {
        for (version, header) in headers() {
            for end in 0..header.len() {
                let prefix = parse_prefix(&header[..end]);
                assert_eq!(prefix, Prefix::Incomplete, "{end} bytes of {header:?}");
            }
            let want = Prefix::Header(version, header.len());
            assert_eq!(parse_prefix(&header), want, "{header:?}");
            for rest in [&b"GET / HTTP/1.1\r\n"[..], b"\r\n", b"\0", &header] {
                assert_eq!(parse_prefix(&[&header, rest].concat()), want, "{header:?} and more");
            }
        }
    }

    #[test]
    fn other_first_bytes_are_no_header() {
        for start in [
            &b"GET /healthz HTTP/1.1\r\n"[..],
            b"G",
            b"POST / HTTP/1.1\r\n",
            b"PROPFIND / HTTP/1.1\r\n",
            b"PROXY\r\n",
            b"PROXY\tTCP4",
            b"proxy TCP4",
            b" PROXY TCP4",
            b"\r\nGET / HTTP/1.1\r\n",
            b"\r\n\r\nGET / HTTP/1.1\r\n",
            b"\r\n\r\n\0\r\nQUIT\r",
            b"\n",
            b"\0",
            b"\x16\x03\x01",
        ] {
            let text = String::from_utf8_lossy(start);
            assert_eq!(parse_prefix(start), Prefix::NoHeader, "{text:?}");
        }
    }

    #[test]
    fn half_a_signature_is_incomplete() {
        for signature in [V1_SIGNATURE, V2_SIGNATURE] {
            for end in 0..=signature.len() {
                assert_eq!(parse_prefix(&signature[..end]), Prefix::Incomplete);
            }
        }
    }

    #[test]
    fn invalid_text_headers() {
        for text in [
            "",
            "TCP4",
            "TCP4 ",
            "TCP5 1.2.3.4 1.2.3.4 1 2",
            "tcp4 1.2.3.4 1.2.3.4 1 2",
            "TCP4 ::1 ::1 1 2",
            "TCP6 1.2.3.4 1.2.3.4 1 2",
            "TCP4 1.2.3.4 1.2.3.4 1",
            "TCP4 1.2.3.4 1.2.3.4 1 2 3",
            "TCP4 1.2.3.4 1.2.3.4 1 2 ",
            "TCP4  1.2.3.4 1.2.3.4 1 2",
            "TCP4 1.2.3.4\t1.2.3.4 1 2",
            "TCP4 1.2.3.04 1.2.3.4 1 2",
            "TCP4 1.2.3 1.2.3.4 1 2",
            "TCP4 1.2.3.4 1.2.3.4 +1 2",
            "TCP4 1.2.3.4 1.2.3.4 -1 2",
            "TCP4 1.2.3.4 1.2.3.4 1 65536",
            "TCP4 1.2.3.4 1.2.3.4  2",
            "TCP4 1.2.3.4 1.2.3.4 1 2\n",
            "TCP4 1.2.3.4 1.2.3.4 1 2\nGET / HTTP/1.1",
            "TCP4 1.2.3.4 1.2.3.4 1 \u{663}",
            "UNKNOWNS",
            "UDP4 1.2.3.4 1.2.3.4 1 2",
            "/healthz HTTP/1.1",
        ] {
            assert_eq!(parse_prefix(&v1(text)), Prefix::Invalid, "{text:?}");
        }
    }

    #[test]
    fn line_without_end_is_oversized_at_byte_107() {
        let line = v1(&format!("UNKNOWN {}", "x".repeat(200)));
        assert_eq!(parse_prefix(&line[..106]), Prefix::Incomplete);
        for end in 107..line.len() {
            assert_eq!(parse_prefix(&line[..end]), Prefix::Oversized, "{end} bytes");
        }
        let longest = v1(&format!("UNKNOWN {}", "x".repeat(107 - 16)));
        assert_eq!(parse_prefix(&longest), Prefix::Header(Version::One, 107));
        let longer = v1(&format!("UNKNOWN {}", "x".repeat(108 - 16)));
        assert_eq!(parse_prefix(&longer), Prefix::Oversized);
    }

    #[test]
    fn invalid_binary_headers() {
        for (command, family, rest) in [
            (0x11, 0x11, 12),
            (0x31, 0x11, 12),
            (0x22, 0x11, 12),
            (0x2f, 0x11, 12),
            (0x21, 0x11, 11),
            (0x21, 0x11, 0),
            (0x21, 0x21, 35),
            (0x21, 0x31, 215),
            (0x21, 0x01, 12),
            (0x21, 0x10, 12),
            (0x21, 0x13, 12),
            (0x21, 0x41, 12),
            (0x21, 0xff, 12),
        ] {
            let bytes = v2(command, family, &vec![0; rest]);
            assert_eq!(parse_prefix(&bytes), Prefix::Invalid, "{command:x} {family:x} {rest}");
        }
        for (command, family) in [(0x21, 0x11), (0x20, 0x00)] {
            let bytes = v2(command, family, &[0; 2033]);
            assert_eq!(parse_prefix(&bytes[..V2_FIXED_BYTES]), Prefix::Oversized);
            assert_eq!(parse_prefix(&bytes), Prefix::Oversized);
        }
    }
}
