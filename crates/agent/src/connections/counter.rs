//! Counts the open flows of each Service.
//!
//! Invariant: a number is returned only if the whole table was read; otherwise there is an error, and never a smaller number. A count
//! is synchronous and takes at most two seconds longer than its timeout: call it on a thread that may block. No socket stays open between
//! counts.

use headgate_core::service::NamespacedName;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::connections::ages::{Ages, Observation};
use crate::connections::destinations::Destinations;
use crate::connections::exclusions::is_excluded;
use crate::connections::flow::{Destination, Flow, Protocol};
use crate::connections::plan::plan;
use crate::connections::request::Selection;
use crate::connections::table::{Deadline, Netlink, ReadError, Transport, read};

/// How often a count begins again because the table changed while it was read.
const ATTEMPTS: usize = 3;

/// The open flows of one Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// TCP connections, established or half-closed.
    pub tcp: u64,
    /// UDP flows that the kernel has not forgotten.
    pub udp: u64,
}

/// The result of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The Services with any flow.
    pub services: BTreeMap<NamespacedName, Flows>,
    /// For how long the oldest TCP connection has been open, at least: since the kernel saw it begin, if it tells, otherwise since this
    /// counter saw it first. `None` without a connection.
    pub oldest: Option<Duration>,
    /// Whether a counted flow was translated to an endpoint: proof that Services' packets pass the table.
    pub has_translation: bool,
    /// Flows of the destinations in other zones than kube-proxy's, as Open vSwitch makes them. They are not counted.
    pub in_other_zones: u64,
    /// The number of entries that were read.
    pub entries: u64,
}

/// Counts, and remembers what makes the next count cheaper and the ages of flows longer.
#[derive(Debug)]
pub struct Counter {
    ages: Ages,
    kernel_filters: bool,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            ages: Ages::new(Instant::now()),
            kernel_filters: true,
        }
    }
}

impl Counter {
    /// Counts the flows to these destinations, apart from those of excluded sources, in the network namespace of this thread.
    ///
    /// # Errors
    /// The table cannot be read, or not within the timeout.
    pub fn count(
        &mut self,
        destinations: &Destinations,
        excluded: &[IpNet],
        timeout: Duration,
    ) -> Result<Count, ReadError> {
        self.count_through(&mut Netlink::default(), destinations, excluded, timeout)
    }

    /// Whether the table has a TCP connection to `address` that was translated to an endpoint. For the address of a Service that
    /// processes of every node are connected to, such as `default/kubernetes`, this tells whether the node's Services pass the table.
    ///
    /// # Errors
    /// As for [`Self::count`].
    pub fn has_translation(&self, address: SocketAddr, timeout: Duration) -> Result<bool, ReadError> {
        let destination = Destination {
            protocol: Protocol::Tcp,
            address: address.ip().to_canonical(),
            port: address.port(),
        };
        let selection = if self.kernel_filters {
            Selection::of(destination)
        } else {
            Selection::Everything
        };
        let mut found = false;
        read(&mut Netlink::default(), selection, Deadline::after(timeout), |flow| {
            found = flow.destination == destination && flow.is_translated();
            if found {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok(found)
    }

    fn count_through(
        &mut self,
        transport: &mut impl Transport,
        destinations: &Destinations,
        excluded: &[IpNet],
        timeout: Duration,
    ) -> Result<Count, ReadError> {
        let deadline = Deadline::after(timeout);
        let mut attempt = 1;
        loop {
            let mut tally = Tally::new(destinations, excluded, self.ages.observe(Instant::now()));
            match self.read_all(transport, &mut tally, deadline) {
                Ok(true) => {
                    let (count, first_seen) = tally.finish();
                    self.ages.adopt(first_seen);
                    return Ok(count);
                }
                // This kernel does not filter.
                Ok(false) => self.kernel_filters = false,
                Err(ReadError::NoTable) if self.kernel_filters => self.kernel_filters = false,
                Err(ReadError::Interrupted) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => {
                    // Without a table nothing is known of its filter.
                    self.kernel_filters |= matches!(error, ReadError::NoTable);
                    return Err(error);
                }
            }
        }
    }

    /// Returns false if an answer contained flows that were not asked for.
    fn read_all(
        &self,
        transport: &mut impl Transport,
        tally: &mut Tally<'_>,
        deadline: Deadline,
    ) -> Result<bool, ReadError> {
        for selection in plan(tally.destinations, self.kernel_filters) {
            let mut is_filtered = true;
            read(transport, selection, deadline, |flow| {
                is_filtered = selection.contains(flow);
                if !is_filtered {
                    return ControlFlow::Break(());
                }
                tally.add(flow);
                ControlFlow::Continue(())
            })?;
            if !is_filtered {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A count that goes on.
struct Tally<'a> {
    destinations: &'a Destinations,
    excluded: &'a [IpNet],
    ages: Observation<'a>,
    unix_now: Duration,
    /// By the index of the Service.
    flows: Vec<Flows>,
    count: Count,
}

impl<'a> Tally<'a> {
    fn new(destinations: &'a Destinations, excluded: &'a [IpNet], ages: Observation<'a>) -> Self {
        Self {
            destinations,
            excluded,
            ages,
            unix_now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            flows: vec![Flows::default(); destinations.services().len()],
            count: Count::default(),
        }
    }

    fn add(&mut self, flow: &Flow) {
        self.count.entries += 1;
        let service = self.destinations.service_of(&flow.destination);
        let Some(flows) = service.and_then(|index| self.flows.get_mut(index)) else {
            return;
        };
        if !flow.is_open() || is_excluded(flow.source, self.excluded) {
            return;
        }
        if flow.zone != 0 {
            self.count.in_other_zones += 1;
            return;
        }
        self.count.has_translation |= flow.is_translated();
        match flow.destination.protocol {
            Protocol::Udp => flows.udp += 1,
            Protocol::Tcp => {
                flows.tcp += 1;
                let started = flow.started_unix_nanos.map(Duration::from_nanos);
                self.ages
                    .see(flow.id, started.map(|started| self.unix_now.saturating_sub(started)));
            }
        }
    }

    fn finish(mut self) -> (Count, HashMap<u32, u32>) {
        let names = self.destinations.services().iter().cloned();
        let counted = names.zip(self.flows).filter(|(_, flows)| *flows != Flows::default());
        self.count.services = counted.collect();
        let (oldest, first_seen) = self.ages.finish();
        self.count.oldest = oldest;
        (self.count, first_seen)
    }
}

#[cfg(test)]
mod tests;
