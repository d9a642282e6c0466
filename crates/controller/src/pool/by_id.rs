//! Reads single load balancers by their ids, for those that no list shows.
//!
//! Invariant: a load balancer counts as deleted only if ARM says so about its id. A refusal, a missing answer or a 404 that does
//! not come from ARM proves nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_azure::{ArmClient, LoadBalancerId, PoolId};
use tokio::time::Instant;

use super::listing::Listing;
use super::load_balancer_read::read_load_balancer;
use super::retry::LastError;
use super::view::LoadBalancerView;

/// For all reads of one call together, retries included.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_CONCURRENT_READS: usize = 4;

/// Reads these load balancers. `recorded_pools` are the pools of the ledger, `previous` is the result of the last call.
pub(crate) async fn read_by_id(
    arm: &ArmClient,
    ids: BTreeSet<LoadBalancerId>,
    recorded_pools: &BTreeSet<PoolId>,
    previous: &Listing,
) -> Listing {
    let requested_at = Instant::now();
    let deadline = requested_at + READ_TIMEOUT;
    let reads = ids.into_iter().map(|id| async move {
        let known = previous.load_balancers.get(&id);
        let read = read_load_balancer(arm, &id, known.map(Arc::as_ref), recorded_pools, deadline).await;
        (id, read)
    });
    let reads: Vec<_> = stream::iter(reads)
        .buffer_unordered(MAX_CONCURRENT_READS)
        .collect()
        .await;
    let mut listing = Listing {
        requested_at: Some(requested_at),
        ..Listing::default()
    };
    for (id, read) in reads {
        match read {
            Ok(read) => {
                let view = LoadBalancerView::from_read(read.summary, read.is_assembled);
                listing.load_balancers.insert(id, Arc::new(view));
            }
            Err(error) if error.is_about_missing_resource() => {
                listing.deleted.insert(id);
            }
            Err(error) => {
                let error = LastError::from_arm(&error, previous.unreadable.get(&id));
                let known = previous.unreadable.get(&id);
                if known.is_none_or(|known| !known.is_same_kind(&error)) {
                    let load_balancer = id.to_string();
                    tracing::info!(
                        load_balancer,
                        error = error.message,
                        "recorded load balancer not read; its entries stay as they are"
                    );
                }
                listing.unreadable.insert(id, error);
            }
        }
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::refused;

    #[test]
    fn only_arms_own_404_about_the_resource_is_proof() {
        let is_deleted = |status: u16, code: &str| refused(status, code, None).is_about_missing_resource();
        assert!(is_deleted(404, "ResourceNotFound") && is_deleted(404, "resourcegroupnotfound"));
        for (status, code) in [
            (404, ""),
            (404, "SubscriptionNotFound"),
            (404, "InvalidResourceType"),
            (403, "AuthorizationFailed"),
            (400, "ResourceNotFound"),
        ] {
            assert!(!is_deleted(status, code), "{status} {code}");
        }
    }
}
