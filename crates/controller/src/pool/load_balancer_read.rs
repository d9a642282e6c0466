//! Reads one load balancer: whole, or in parts if it is too large for one response.
//!
//! One that was too large is read in parts from then on, until a list shows it whole: its body would be received again and again in
//! vain, also while the shared Lease is held. Its single pools are those that its rules use, those that were known before, and those
//! that the ledger names, so that no ledger entry ends because its pool was not asked about.

use std::collections::BTreeSet;

use headgate_azure::{ArmClient, ArmError, LoadBalancerId, LoadBalancerRead, PoolId};
use tokio::time::Instant;

use super::pool_entry::PoolEntry;
use super::view::LoadBalancerView;

/// Reads a load balancer. `previous` is what is known of it, `recorded_pools` has the pools of the ledger.
pub(super) async fn read_load_balancer(
    arm: &ArmClient,
    id: &LoadBalancerId,
    previous: Option<&LoadBalancerView>,
    recorded_pools: &BTreeSet<PoolId>,
    deadline: Instant,
) -> Result<LoadBalancerRead<PoolEntry>, ArmError> {
    let reader = PoolEntry::reader(previous.map_or_else(Vec::new, |previous| previous.pools.clone()));
    if !previous.is_some_and(|previous| previous.is_assembled) {
        match arm.get_load_balancer(id, reader.clone(), deadline).await {
            Err(error @ ArmError::TooLarge(_)) => {
                tracing::info!(load_balancer = %id, %error, "load balancer too large; it is read in parts");
            }
            read => return read,
        }
    }
    let known = previous.into_iter().flat_map(|previous| &previous.pools);
    let known = known.map(|pool| &pool.id).chain(recorded_pools).cloned().collect();
    arm.get_load_balancer_in_parts(id, &known, reader, deadline).await
}
