//! One value for each IP family.

use std::net::IpAddr;

use super::super::proxy::Family;

/// One value for IPv4 and one for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// Of IPv4.
    pub v4: T,
    /// Of IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Of one family.
    pub fn get(&self, family: Family) -> &T {
        match family {
            Family::IPv4 => &self.v4,
            Family::IPv6 => &self.v6,
        }
    }

    /// Of an address's family.
    pub fn of_mut(&mut self, address: IpAddr) -> &mut T {
        match address {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }
}
