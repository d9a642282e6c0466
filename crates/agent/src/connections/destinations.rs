//! Which destinations belong to which Service. Pure.
//!
//! Destinations are the ports on a load balancer's addresses (a load balancer with floating IP, as Azure's, does not translate
//! them) and the node ports on this node's addresses. Invariant: a destination belongs to one Service, so no connection counts
//! twice; and what is not counted is named. Services are taken in the order of their names, so the same input gives the same result.

use headgate_core::service::{NamespacedName, ServicePort};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::connections::flow::{Destination, Protocol};
use crate::connections::services::Service;

/// More destinations are not counted: they would take more than 300 KiB.
const MAX_DESTINATIONS: usize = 10_000;

/// Why connections of a Service, or some of them, are not counted under its name. A text or number is the first of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The load balancer has a name instead of an address, and there is no node port either.
    #[error("the load balancer has the name {0} instead of an address, and there is no node port")]
    HostnameOnly(String),
    /// The status contains a text that is not an address, or one to which nothing connects.
    #[error("the load balancer's address {0:?} is not usable")]
    UnusableAddress(String),
    /// The Service has no ports.
    #[error("it has no ports")]
    NoPorts,
    /// The number is not that of a port.
    #[error("{0} is not a port")]
    InvalidPort(i32),
    /// Neither an address of a load balancer nor a node port.
    #[error("port {0} has neither an address of a load balancer nor a node port on an address of this node")]
    NoAddress(i32),
    /// Neither TCP nor UDP.
    #[error("the protocol {0} is not counted")]
    Protocol(String),
    /// Another Service has the same address and port, and its name has the connections.
    #[error("{destination} is counted for {service}")]
    Shared {
        /// The destination that both have.
        destination: Destination,
        /// The Service that has the connections.
        service: NamespacedName,
    },
    /// There are too many destinations; none of this Service's are counted.
    #[error("there are more than {MAX_DESTINATIONS} addresses and ports to count")]
    TooMany,
}

impl Reason {
    /// Whether there may be connections through this node that no count contains, so that zero is not the whole truth.
    pub(crate) fn hides_connections(&self) -> bool {
        match self {
            Self::HostnameOnly(_) | Self::UnusableAddress(_) | Self::Protocol(_) | Self::TooMany => true,
            Self::NoPorts | Self::InvalidPort(_) | Self::NoAddress(_) | Self::Shared { .. } => false,
        }
    }
}

/// A Service with something that is not countable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCountable {
    /// The Service.
    pub service: NamespacedName,
    /// Why, with the first example.
    pub reason: Reason,
    /// How many ports or addresses of the Service it concerns.
    pub items: usize,
}

/// What to count.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    services: Vec<NamespacedName>,
    indexes: HashMap<Destination, u32>,
    not_countable: Vec<NotCountable>,
}

impl Destinations {
    /// The destinations of these Services on a node with these addresses.
    pub fn new(mut services: Vec<Service>, node_addresses: &[IpAddr]) -> Self {
        services.sort_by(|a, b| a.name.cmp(&b.name));
        let node_addresses: Vec<IpAddr> = node_addresses.iter().filter_map(|address| usable(*address)).collect();
        let mut this = Self::default();
        for service in &services {
            this.add(service, &node_addresses);
        }
        this.indexes.shrink_to_fit();
        this
    }

    fn add(&mut self, service: &Service, node_addresses: &[IpAddr]) {
        if service.ports.is_empty() {
            return self.note(&service.name, Reason::NoPorts);
        }
        let mut frontends = Vec::new();
        for ingress in service.ingress.iter().filter(|ingress| !ingress.ip.is_empty()) {
            match ingress.ip.parse().ok().and_then(usable) {
                Some(address) => frontends.push(address),
                None => self.note(&service.name, Reason::UnusableAddress(ingress.ip.clone())),
            }
        }
        let mut found = BTreeSet::new();
        for port in &service.ports {
            match destinations_of(port, &frontends, node_addresses) {
                Ok(of_port) if of_port.is_empty() => {
                    let hostname = service.ingress.iter().find(|ingress| !ingress.hostname.is_empty());
                    let reason = hostname.map_or(Reason::NoAddress(port.port), |ingress| {
                        Reason::HostnameOnly(ingress.hostname.clone())
                    });
                    self.note(&service.name, reason);
                }
                Ok(of_port) => found.extend(of_port),
                Err(reason) => self.note(&service.name, reason),
            }
            if found.len() > MAX_DESTINATIONS {
                return self.note(&service.name, Reason::TooMany);
            }
        }
        let added = found
            .iter()
            .filter(|destination| !self.indexes.contains_key(destination));
        if self.indexes.len() + added.count() > MAX_DESTINATIONS {
            return self.note(&service.name, Reason::TooMany);
        }
        if !found.is_empty() {
            self.claim(&service.name, found);
        }
    }

    fn claim(&mut self, name: &NamespacedName, found: BTreeSet<Destination>) {
        if self.services.last() != Some(name) {
            self.services.push(name.clone());
        }
        let index = u32::try_from(self.services.len() - 1).unwrap_or(u32::MAX);
        for destination in found {
            let owner = *self.indexes.entry(destination).or_insert(index);
            if owner != index {
                let service = self.services.get(owner as usize).cloned().unwrap_or_default();
                self.note(name, Reason::Shared { destination, service });
            }
        }
    }

    /// One entry for each Service and kind of reason: a Service with a thousand ports does not need a thousand.
    fn note(&mut self, service: &NamespacedName, reason: Reason) {
        let kind = std::mem::discriminant(&reason);
        let is_known = |known: &&mut NotCountable| std::mem::discriminant(&known.reason) == kind;
        let mut of_service = self
            .not_countable
            .iter_mut()
            .rev()
            .take_while(|known| known.service == *service);
        match of_service.find(is_known) {
            Some(known) => known.items += 1,
            None => self.not_countable.push(NotCountable {
                service: service.clone(),
                reason,
                items: 1,
            }),
        }
    }

    /// The Services that have destinations. The index of a Service in it is that of [`Self::service_of`].
    pub fn services(&self) -> &[NamespacedName] {
        &self.services
    }

    /// What is not counted, in the order of the Services' names.
    pub(crate) fn not_countable(&self) -> &[NotCountable] {
        &self.not_countable
    }

    /// The index of the Service that a destination belongs to.
    pub(crate) fn service_of(&self, destination: &Destination) -> Option<usize> {
        self.indexes.get(destination).map(|index| *index as usize)
    }

    /// Every destination, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Destination> + '_ {
        self.indexes.keys().copied()
    }

    /// The number of destinations.
    pub fn len(&self) -> usize {
        self.indexes.len()
    }

    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }
}

fn destinations_of(
    port: &ServicePort,
    frontends: &[IpAddr],
    node_addresses: &[IpAddr],
) -> Result<Vec<Destination>, Reason> {
    let protocol = match port.protocol.as_str() {
        "TCP" | "" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        other => return Err(Reason::Protocol(other.to_owned())),
    };
    let at = |number: i32, addresses: &[IpAddr]| -> Result<Vec<Destination>, Reason> {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        let port = port.ok_or(Reason::InvalidPort(number))?;
        let destinations = addresses.iter().map(|address| Destination {
            protocol,
            address: *address,
            port,
        });
        Ok(destinations.collect())
    };
    let mut found = at(port.port, frontends)?;
    if port.node_port != 0 {
        found.extend(at(port.node_port, node_addresses)?);
    }
    Ok(found)
}

/// The address in the form that the connection table has, unless nothing can connect to it from outside.
fn usable(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    (!address.is_unspecified() && !address.is_multicast() && !address.is_loopback()).then_some(address)
}

#[cfg(test)]
mod tests;
