//! Which requests read the table at the least cost. Pure.
//!
//! A request with a filter makes the kernel walk the whole table and compare each entry; one without makes it format and send each
//! entry as well, which costs about as much as [`FILTERED_REQUESTS_MAX`] walks (`cargo bench --bench count` shows both). Invariant: the
//! answers contain every flow to a destination, and no flow twice.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::connections::destinations::Destinations;
use crate::connections::request::Selection;

/// With 250,000 entries a filtered request takes about 0.1 s of CPU time, and everything takes 0.6 s.
const FILTERED_REQUESTS_MAX: usize = 6;

/// The requests for these destinations.
pub(crate) fn plan(destinations: &Destinations, kernel_filters: bool) -> Vec<Selection> {
    if destinations.is_empty() {
        return Vec::new();
    }
    if !kernel_filters {
        return vec![Selection::Everything];
    }
    let has_both = destinations.iter().any(|destination| destination.address.is_ipv4())
        && destinations.iter().any(|destination| destination.address.is_ipv6());
    let most = if has_both {
        FILTERED_REQUESTS_MAX / 2
    } else {
        FILTERED_REQUESTS_MAX
    };
    let (v4, v6) = (v4(destinations, most), v6(destinations, most));
    if v4 == [Selection::V4] && v6 == [Selection::V6] {
        return vec![Selection::Everything];
    }
    [v4, v6].concat()
}

fn v4(destinations: &Destinations, most: usize) -> Vec<Selection> {
    let exact = destinations.iter().filter(|destination| destination.address.is_ipv4());
    let addresses = destinations.iter().filter_map(|destination| match destination.address {
        IpAddr::V4(address) => Some(Selection::V4Address(address)),
        IpAddr::V6(_) => None,
    });
    at_most(most, exact.map(Selection::of))
        .or_else(|| at_most(most, addresses))
        .unwrap_or_else(|| vec![Selection::V4])
}

fn v6(destinations: &Destinations, most: usize) -> Vec<Selection> {
    let ports = destinations.iter().filter(|destination| destination.address.is_ipv6());
    at_most(most, ports.map(Selection::of)).unwrap_or_else(|| vec![Selection::V6])
}

/// The different selections, unless there are more.
fn at_most(most: usize, selections: impl Iterator<Item = Selection>) -> Option<Vec<Selection>> {
    let mut different = BTreeSet::new();
    for selection in selections {
        different.insert(selection);
        if different.len() > most {
            return None;
        }
    }
    Some(different.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use headgate_core::service::{Ingress, ServicePort};

    use super::*;
    use crate::connections::services::Service;

    fn planned(v4: usize, v6: usize, ports: i32, kernel_filters: bool) -> Vec<Selection> {
        let port = |port| ServicePort {
            port,
            ..ServicePort::default()
        };
        let v4 = (1..=v4).map(|n| format!("10.0.0.{n}"));
        let addresses = v4.chain((1..=v6).map(|n| format!("fd00::{n}")));
        let ingress = |ip| Ingress {
            ip,
            hostname: String::new(),
        };
        let service = Service {
            ports: (1..=ports).map(port).collect(),
            ingress: addresses.map(ingress).collect(),
            ..Service::default()
        };
        plan(&Destinations::new(vec![service], &[]), kernel_filters)
    }

    #[test]
    fn kernel_filters_when_few_requests_suffice() {
        let kind = |selection: &Selection| match selection {
            Selection::Everything => "all",
            Selection::V4 => "v4",
            Selection::V4Address(_) => "v4 address",
            Selection::V4Destination(..) => "v4 destination",
            Selection::V6 => "v6",
            Selection::V6Port(..) => "v6 port",
        };
        for (v4, v6, ports, kernel_filters, expected) in [
            (0, 0, 1, true, vec![]),
            (0, 0, 1, false, vec![]),
            (1, 0, 1, true, vec![("v4 destination", 1)]),
            (3, 0, 2, true, vec![("v4 destination", 6)]),
            (3, 0, 3, true, vec![("v4 address", 3)]),
            (6, 0, 1_000, true, vec![("v4 address", 6)]),
            (7, 0, 1, true, vec![("v4", 1)]),
            (0, 9, 6, true, vec![("v6 port", 6)]),
            (0, 1, 7, true, vec![("v6", 1)]),
            (1, 2, 3, true, vec![("v4 destination", 3), ("v6 port", 3)]),
            (3, 1, 4, true, vec![("v4 address", 3), ("v6", 1)]),
            (4, 1, 1, true, vec![("v4", 1), ("v6 port", 1)]),
            (4, 1, 4, true, vec![("all", 1)]),
            (1, 1, 1, false, vec![("all", 1)]),
        ] {
            let selections = planned(v4, v6, ports, kernel_filters);
            let kinds: Vec<&str> = selections.iter().map(kind).collect();
            let expected: Vec<&str> = expected.iter().flat_map(|(kind, n)| vec![*kind; *n]).collect();
            assert_eq!(kinds, expected, "{v4} and {v6} addresses, {ports} ports");
        }
    }
}
