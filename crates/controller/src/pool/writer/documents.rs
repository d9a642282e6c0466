//! The documents of a load balancer's pools, for writes that are planned from one read of it.
//!
//! A PUT replaces a whole pool, so it needs the document. That of a large load balancer is not kept: then the pool is read again,
//! and its etag proves that it is the same as in the read that was planned from.

use headgate_azure::{ArmClient, ArmError, ErrorClass, Etag, LoadBalancerSummary, LoadBalancerText, Pool, PoolId};
use tokio::time::Instant;

use super::super::pool_entry::PoolEntry;

/// The pools of one read.
#[derive(Default)]
pub(super) struct Documents {
    /// The text of the load balancer, until its pools are needed.
    text: Option<LoadBalancerText>,
    /// From the text; `None` if it was not kept.
    pools: Option<Vec<Pool>>,
    /// The version of each pool.
    etags: Vec<(PoolId, Option<Etag>)>,
}

/// The document of a pool.
pub(super) enum Document {
    /// As the read showed it.
    Unchanged(Pool),
    /// It has changed since then.
    Changed,
    /// It did not exist then.
    Missing,
}

impl Documents {
    pub(super) fn new(summary: &LoadBalancerSummary<PoolEntry>, text: LoadBalancerText) -> Self {
        let pools = summary.pools.iter();
        Self {
            text: Some(text),
            pools: None,
            etags: pools.map(|pool| (pool.id.clone(), pool.etag.clone())).collect(),
        }
    }

    /// Takes the document of a pool.
    pub(super) async fn take(&mut self, arm: &ArmClient, id: &PoolId, deadline: Instant) -> Result<Document, ArmError> {
        if let Some(text) = self.text.take() {
            self.pools = text.document()?.map(|mut document| document.take_pools());
        }
        let Some((_, etag)) = self.etags.iter().find(|(pool, _)| pool == id) else {
            return Ok(Document::Missing);
        };
        if let Some(pools) = &mut self.pools {
            let index = pools.iter().position(|pool| pool.id == *id);
            return Ok(index.map_or(Document::Missing, |index| Document::Unchanged(pools.swap_remove(index))));
        }
        match arm.get_pool(id, deadline).await {
            Ok(pool) if pool.etag.is_some() && pool.etag == *etag => Ok(Document::Unchanged(pool)),
            Ok(_) => Ok(Document::Changed),
            Err(error) if error.class() == ErrorClass::Stale => Ok(Document::Changed),
            Err(error) => Err(error),
        }
    }
}
