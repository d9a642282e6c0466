//! The two IP families, and one value for each.

use std::net::IpAddr;

use headgate_core::service::IpFamily;

/// One value for each IP family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// The value for `family`.
    pub fn get(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::IPv4 => &self.v4,
            IpFamily::IPv6 => &self.v6,
        }
    }

    /// The value for the family of `address`.
    pub(crate) fn get_mut_by_address(&mut self, address: IpAddr) -> &mut T {
        match address {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }
}
