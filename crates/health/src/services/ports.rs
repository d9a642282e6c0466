//! The Services' own ports: opened and closed as the table says, each IP family apart.
//!
//! A port whose addresses cannot all be opened has none open; it is tried again every 5 s and at each
//! change. Two Services never share a port: whoever has it keeps it. A port that is closed answers 503
//! on what is still open; the end of the process hands all ports on as the health port is.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use headgate_http::server::{self, Crowd, Limits, ServeError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::proxy::Family;
use super::cidr::Cidr;
use super::index::Table;
use super::object::ObjectKey;
use super::per_family::PerFamily;
use super::routes::Routes;
use super::sockets::Sockets;
use super::state::{Failure, PortKey, Ports};

/// Time from one attempt to open a port to the next, as on the health port.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The listeners' name.
const LISTENER: &str = "service";
/// A Service is probed by its own load balancer alone.
const LIMITS: Limits = Limits {
    connections: 256,
    ..Limits::HEALTH
};
/// Connections to all ports together: whoever reaches thousands of ports must not take the process's memory and
/// file descriptors, which the health port lives on too. With as many as this, the health port's and 2,000 ports, the
/// process stays within the manifests' limit of 64 MiB.
const ALL_CONNECTIONS: usize = 512;

/// What opens and serves the ports.
#[derive(Debug)]
pub struct NodePorts<S> {
    /// The answers.
    pub routes: Routes,
    /// Which local addresses; empty means all.
    pub selection: Vec<Cidr>,
    /// The machine.
    pub sockets: S,
    /// Where the state is published.
    pub state: watch::Sender<Ports>,
}

/// What should be open for one port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    uid: Box<str>,
    port: u16,
    addresses: Vec<SocketAddr>,
}

struct Open {
    addresses: Vec<SocketAddr>,
    close: watch::Sender<bool>,
}

/// What should be open: each Service's port in each of its families, on the given addresses. Pure.
fn wanted(table: &Table, addresses: &PerFamily<Vec<IpAddr>>) -> BTreeMap<PortKey, Wanted> {
    let with_port = table.iter().filter(|(_, served)| served.service.port != 0);
    let ports = with_port.flat_map(|(key, served)| {
        let service = &served.service;
        let families = [Family::IPv4, Family::IPv6]
            .into_iter()
            .filter(|family| *service.families.get(*family));
        families.map(|family| {
            let key = PortKey {
                service: Arc::clone(key),
                family,
            };
            let addresses = addresses.get(family).iter();
            let wanted = Wanted {
                uid: service.uid.clone(),
                port: service.port,
                addresses: addresses.map(|ip| SocketAddr::new(*ip, service.port)).collect(),
            };
            (key, wanted)
        })
    });
    ports.filter(|(_, wanted)| !wanted.addresses.is_empty()).collect()
}

/// The addresses to listen on: the wildcards, or the machine's own that are selected. Pure.
fn selected(selection: &[Cidr], local: &[IpAddr]) -> PerFamily<Vec<IpAddr>> {
    if selection.is_empty() {
        return PerFamily {
            v4: vec![Ipv4Addr::UNSPECIFIED.into()],
            v6: vec![Ipv6Addr::UNSPECIFIED.into()],
        };
    }
    let mut addresses = PerFamily::<Vec<IpAddr>>::default();
    for ip in local {
        // A link-local address is none without its interface, and no load balancer asks there.
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let of_family = addresses.of_mut(*ip);
        if !link_local && selection.iter().any(|range| range.contains(*ip)) && !of_family.contains(ip) {
            of_family.push(*ip);
        }
    }
    addresses
}

impl<S: Sockets> NodePorts<S> {
    /// Opens, serves and closes ports until `close` says so, then hands all on.
    ///
    /// # Errors
    /// When serving a connection panicked.
    pub async fn run(self, mut close: watch::Receiver<bool>) -> Result<(), ServeError> {
        let mut tables = self.routes.tables.clone();
        let mut open = BTreeMap::new();
        let mut serving = JoinSet::new();
        let crowd = Crowd::new(ALL_CONNECTIONS);
        loop {
            let table = tables.borrow_and_update().clone();
            if let Some(table) = table {
                self.pass(&table, &mut open, &mut serving, &crowd);
            }
            // A selected address may also come later than its Service.
            let again = !self.state.borrow().failed.is_empty() || !self.selection.is_empty();
            tokio::select! {
                () = server::told(&mut close) => break,
                changed = tables.changed() => if changed.is_err() {
                    // Nothing will change any more: the process is stopping.
                    server::told(&mut close).await;
                    break;
                },
                Some(ended) = serving.join_next() => ended_well(ended)?,
                () = sleep(RETRY_INTERVAL), if again => {}
            }
        }
        for port in open.into_values() {
            port.close.send_replace(true);
        }
        while let Some(ended) = serving.join_next().await {
            ended_well(ended)?;
        }
        Ok(())
    }

    /// Closes what should not be open and opens what should.
    fn pass(
        &self,
        table: &Table,
        open: &mut BTreeMap<PortKey, Open>,
        serving: &mut JoinSet<Result<(), ServeError>>,
        crowd: &Crowd,
    ) {
        let local = if self.selection.is_empty() {
            Vec::new()
        } else {
            self.sockets.local_addresses().unwrap_or_else(|error| {
                tracing::warn!(%error, "the machine's addresses cannot be read");
                Vec::new()
            })
        };
        let wanted = wanted(table, &selected(&self.selection, &local));
        open.retain(|key, port| {
            let keep = wanted.get(key).is_some_and(|wanted| wanted.addresses == port.addresses);
            if !keep {
                // The table has it no more, so whoever is connected gets a 503.
                port.close.send_replace(true);
            }
            keep
        });
        let mut held: BTreeMap<SocketAddr, Arc<ObjectKey>> = BTreeMap::new();
        for (key, port) in open.iter() {
            held.extend(
                port.addresses
                    .iter()
                    .map(|address| (*address, Arc::clone(&key.service))),
            );
        }
        // Shared and not registered: a gauge of one listener makes no sense for many.
        let metrics = server::Metrics::default();
        let mut failed = BTreeMap::new();
        for (key, wanted) in wanted {
            if open.contains_key(&key) {
                continue;
            }
            match self.bind(&wanted.addresses, &held) {
                Ok(listeners) => {
                    held.extend(
                        wanted
                            .addresses
                            .iter()
                            .map(|address| (*address, Arc::clone(&key.service))),
                    );
                    let close = watch::Sender::new(false);
                    for listener in listeners {
                        let router = self
                            .routes
                            .clone()
                            .port_router(Arc::clone(&key.service), key.family, wanted.port);
                        let closing = close.subscribe();
                        let (crowd, metrics) = (crowd.clone(), metrics.clone());
                        serving.spawn(async move {
                            server::serve_among(&crowd, LISTENER, listener, router, LIMITS, &metrics, closing).await
                        });
                    }
                    let addresses = wanted.addresses;
                    open.insert(key, Open { addresses, close });
                }
                Err(error) => {
                    self.routes.metrics.bind_failures.inc();
                    let (uid, port) = (wanted.uid, wanted.port);
                    failed.insert(key, Failure { uid, port, error });
                }
            }
        }
        self.publish(open, failed);
    }

    /// Opens every address, or none.
    fn bind(
        &self,
        addresses: &[SocketAddr],
        held: &BTreeMap<SocketAddr, Arc<ObjectKey>>,
    ) -> Result<Vec<S::Incoming>, String> {
        let told = |address: &SocketAddr, error: io::Error| format!("{address} cannot be bound: {error}");
        let bind = |address: &SocketAddr| match held.get(address) {
            // Sockets of one process may share a port, so the system would not say so.
            Some(service) => Err(format!("{address} is open for Service {service}")),
            None => self.sockets.bind(*address).map_err(|error| told(address, error)),
        };
        addresses.iter().map(bind).collect()
    }

    fn publish(&self, open: &BTreeMap<PortKey, Open>, failed: BTreeMap<PortKey, Failure>) {
        let ports = Ports {
            tried: true,
            open: open
                .iter()
                .map(|(key, port)| (key.clone(), port.addresses.clone()))
                .collect(),
            failed,
        };
        self.state.send_if_modified(|state| {
            if *state == ports {
                return false;
            }
            for (key, failure) in &ports.failed {
                if state.failed.get(key).map(|known| &known.error) != Some(&failure.error) {
                    let (service, port, error) = (&key.service, failure.port, &failure.error);
                    tracing::warn!(%service, port, error, "a Service's port cannot be opened; trying again every {} s",
                        RETRY_INTERVAL.as_secs());
                }
            }
            for key in state.failed.keys().filter(|key| ports.open.contains_key(*key)) {
                tracing::info!(service = %key.service, "the Service's port could be opened now");
            }
            *state = ports;
            true
        });
    }
}

fn ended_well(ended: Result<Result<(), ServeError>, tokio::task::JoinError>) -> Result<(), ServeError> {
    match ended {
        Ok(outcome) => outcome,
        Err(source) => Err(ServeError::Panicked {
            listener: LISTENER,
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_addresses_are_selected() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let local = ips(&["127.0.0.1", "192.0.2.7", "192.0.2.7", "::1", "fe80::1", "2001:db8::7"]);
        for (ranges, v4, v6) in [
            (&[][..], &["0.0.0.0"][..], &["::"][..]),
            (&["127.0.0.0/8"], &["127.0.0.1"], &[]),
            (&["0.0.0.0/0"], &["127.0.0.1", "192.0.2.7"], &[]),
            (&["192.0.2.0/24", "::/0"], &["192.0.2.7"], &["::1", "2001:db8::7"]),
            (&["198.51.100.0/24"], &[], &[]),
        ] {
            let selection: Vec<Cidr> = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let found = selected(&selection, &local);
            assert_eq!((found.v4, found.v6), (ips(v4), ips(v6)), "{ranges:?}");
        }
    }
}
