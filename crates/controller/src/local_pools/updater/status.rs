//! What `headgate status` and `headgate why service` show of a Service's pools. Nothing is decided here.

use std::net::IpAddr;

use super::Updater;
use crate::local_pools::difference::{Entry, EntryAddress};
use crate::local_pools::operation::PoolKey;
use crate::local_pools::placement::PlacementSkip;
use crate::local_pools::selection::MemberSelection;
use headgate_core::service::{IpFamily, NamespacedName};

/// A pool of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The load balancer and name of the pool.
    pub pool: PoolKey,
    /// The family of its members.
    pub family: IpFamily,
    /// What it is to have. `None` where the Service has no EndpointSlices; then it stays as it is.
    pub desired: Option<MemberSelection>,
    /// The addresses that it had when it was read last, foreign ones included.
    pub actual: Vec<IpAddr>,
}

/// The state of a Local Service's pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The namespace and name of the Service.
    pub service: NamespacedName,
    /// The pools of the Service, one for each load balancer and IP family.
    pub pools: Vec<PoolStatus>,
    /// The families for which it has no pool, with reasons.
    pub skipped: Vec<PlacementSkip>,
}

impl Updater {
    /// The names of the Services.
    pub fn service_names(&self) -> Vec<NamespacedName> {
        self.index.names().cloned().collect()
    }

    /// A Service and its pools. `None` where it is not a Local Service with pools of its own.
    pub fn service_status(&self, service: &NamespacedName) -> Option<ServiceStatus> {
        self.index.service(service)?;
        let pools = self.placement.pools(service).iter().map(|pool| {
            let key = &pool.key;
            let entries = self
                .observed(&key.pool)
                .into_iter()
                .flat_map(|observed| &observed.entries);
            let actual = entries.filter_map(|entry| match Entry::of(entry).address {
                EntryAddress::Ip(address) => Some(address),
                EntryAddress::Unreadable | EntryAddress::Missing => None,
            });
            PoolStatus {
                pool: key.pool.clone(),
                family: pool.family,
                desired: self.index.select(service, pool.family, self.settings.is_ready_required),
                actual: actual.collect(),
            }
        });
        let skipped = self.placement.skipped().iter().filter(|skip| skip.service == *service);
        Some(ServiceStatus {
            service: service.clone(),
            pools: pools.collect(),
            skipped: skipped.cloned().collect(),
        })
    }
}
