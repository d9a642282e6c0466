//! A range of IP addresses in CIDR notation, such as `192.168.0.0/16`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// All addresses of one family that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

impl Cidr {
    /// Whether `address` is in the range. An address of the other IP family never is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (width, range, candidate) = match (self.address, address) {
            (IpAddr::V4(range), IpAddr::V4(candidate)) => (32, range.to_bits().into(), candidate.to_bits().into()),
            (IpAddr::V6(range), IpAddr::V6(candidate)) => (128, range.to_bits(), candidate.to_bits()),
            _ => return false,
        };
        // A shift by the full width is not defined; with a length of 0 there are no bits to compare.
        let differing: u128 = range ^ candidate;
        differing.checked_shr(width - u32::from(self.length)).unwrap_or(0) == 0
    }
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, length) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let is_plain = length.bytes().all(|byte| byte.is_ascii_digit());
        let length: u8 = length.parse().map_err(|_| ())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        (is_plain && length <= width)
            .then_some(Self { address, length })
            .ok_or(())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_addresses() {
        for (range, address, inside) in [
            ("127.0.0.0/8", "127.0.0.1", true),
            ("127.0.0.0/8", "128.0.0.1", false),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("10.1.2.3/16", "10.1.255.255", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "127.0.0.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::1/128", "::1", true),
            ("::1/128", "::2", false),
        ] {
            let range: Cidr = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), inside, "{range} {address}");
        }
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "::/129",
            "10.0.0/8",
            "all",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(text.parse::<Cidr>(), Err(()), "{text}");
        }
        assert_eq!("::1/64".parse::<Cidr>().unwrap().to_string(), "::1/64");
    }
}
