//! The PROXY protocol header: bytes have the same result however they are split, and every valid header is
//! consumed exactly.

use bolero::{TypeGenerator, check};
use headgate_http::server::{proxy_protocol::Prefix, proxy_protocol::Version, proxy_protocol::parse_prefix};

use crate::mutated_corpus;

const WORDS: &[&[u8]] = &[
    b"PROXY ",
    b"TCP4 ",
    b"TCP6 ",
    b"UNKNOWN",
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b"1.2.3.4 ",
    b"::1 ",
    b"65535",
    b"65536",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"\x20",
    b"\x21",
    b"\x11",
    b"\x31",
    b"\0\x0c",
    b"\xff\xff",
    b"GET / HTTP/1.1\r\n",
];

#[test]
fn split_headers_parse_like_whole_ones() {
    mutated_corpus::fuzz("proxy_header", WORDS, |bytes| {
        let whole = parse_prefix(bytes);
        let decided = (0..=bytes.len()).find(|&end| parse_prefix(&bytes[..end]) != Prefix::Incomplete);
        let Some(decided) = decided else {
            assert_eq!(whole, Prefix::Incomplete);
            assert!(bytes.len() < 2048, "more is waited for than any header has");
            return;
        };
        for end in decided..=bytes.len() {
            assert_eq!(
                parse_prefix(&bytes[..end]),
                whole,
                "with {end} bytes, decided with {decided}"
            );
        }
        match whole {
            Prefix::Incomplete => unreachable!(),
            Prefix::Header(version, length) => {
                assert_eq!(length, decided, "a header is known when it is whole, and not later");
                assert!(length <= if version == Version::One { 107 } else { 2048 });
            }
            // The first byte that is in no signature.
            Prefix::NoHeader => assert!(decided <= 12),
            Prefix::Invalid | Prefix::Oversized => assert!(decided <= 107),
        }
    });
}

/// A generated valid header.
#[derive(Clone, Debug, TypeGenerator)]
enum GeneratedHeader {
    Tcp4([u8; 4], [u8; 4], u16, u16),
    Tcp6([u16; 8], [u16; 8], u16, u16),
    Unknown,
    Local(u8, Vec<(u8, Vec<u8>)>),
    Unspecified(Vec<(u8, Vec<u8>)>),
    Inet(bool, [u8; 12], Vec<(u8, Vec<u8>)>),
    Inet6(bool, [u8; 36], Vec<(u8, Vec<u8>)>),
    Unix(bool, [u8; 216], Vec<(u8, Vec<u8>)>),
}

impl GeneratedHeader {
    fn encode(&self) -> Vec<u8> {
        let text = match self {
            Self::Tcp4(source, destination, from, to) => {
                let [source, destination] = [source, destination].map(|ip| std::net::Ipv4Addr::from(*ip));
                format!("PROXY TCP4 {source} {destination} {from} {to}\r\n")
            }
            Self::Tcp6(source, destination, from, to) => {
                let [source, destination] = [source, destination].map(|ip| std::net::Ipv6Addr::from(*ip));
                format!("PROXY TCP6 {source} {destination} {from} {to}\r\n")
            }
            Self::Unknown => "PROXY UNKNOWN\r\n".to_owned(),
            Self::Local(family, tlvs) => return binary(0x20, *family, &[], tlvs),
            Self::Unspecified(tlvs) => return binary(0x21, 0x00, &[], tlvs),
            Self::Inet(stream, addresses, tlvs) => return binary(0x21, 0x12 - u8::from(*stream), addresses, tlvs),
            Self::Inet6(stream, addresses, tlvs) => return binary(0x21, 0x22 - u8::from(*stream), addresses, tlvs),
            Self::Unix(stream, addresses, tlvs) => return binary(0x21, 0x32 - u8::from(*stream), addresses, tlvs),
        };
        text.into_bytes()
    }
}

fn binary(command: u8, family: u8, addresses: &[u8], tlvs: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut rest = addresses.to_vec();
    for (kind, value) in tlvs {
        rest.push(*kind);
        rest.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
        rest.extend(value);
    }
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, &rest].concat()
}

#[test]
fn valid_headers_are_consumed_exactly() {
    check!()
        .with_type::<(GeneratedHeader, Vec<u8>)>()
        .with_test_time(mutated_corpus::time())
        .for_each(|(made, rest)| {
            let header = made.encode();
            let bytes = [&header[..], rest].concat();
            let version = if header.starts_with(b"P") {
                Version::One
            } else {
                Version::Two
            };
            if version == Version::Two && header.len() > 2048 {
                assert_eq!(parse_prefix(&bytes), Prefix::Oversized);
                return;
            }
            assert_eq!(parse_prefix(&bytes), Prefix::Header(version, header.len()));
            assert_eq!(&bytes[header.len()..], rest);
        });
}
