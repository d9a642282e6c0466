//! The documents of a load balancer's pools, for writes that are planned from one read of it.
//!
//! A PUT replaces a whole pool, so it needs the document. That of a large load balancer is not kept: then the pool is read again,
//! and its etag proves that it is the same as in the read that was planned from. Between two writes of members only single pools of
//! such a load balancer are read (`single_pools`); the document of the one that is written next is then the plan's own.

use headgate_azure::{
    ArmClient, ArmError, ErrorClass, Etag, LoadBalancerSummary, LoadBalancerText, Pool, PoolDraft, PoolId,
};
use tokio::time::Instant;

use super::super::pool_entry::PoolEntry;

/// What the last read has left for writes.
pub(super) enum Documents {
    /// It was of the whole load balancer.
    Whole(AllPools),
    /// It was of single pools; this one is written next. `None` once it was taken.
    Single(Option<Box<Pool>>),
}

/// The pools of one read.
#[derive(Default)]
pub(super) struct AllPools {
    /// The text of the load balancer, until its pools are needed.
    text: Option<LoadBalancerText>,
    /// From the text; `None` if it was not kept.
    pools: Option<Vec<PoolDraft>>,
    /// The version of each pool.
    etags: Vec<(PoolId, Option<Etag>)>,
}

/// The document of a pool.
pub(super) enum Document {
    /// As the read showed it.
    Unchanged(PoolDraft),
    /// It has changed since then.
    Changed,
    /// It did not exist then.
    Missing,
    /// The last read was of other pools.
    NotRead,
}

impl Default for Documents {
    fn default() -> Self {
        Self::Whole(AllPools::default())
    }
}

impl Documents {
    pub(super) fn new(summary: &LoadBalancerSummary<PoolEntry>, text: LoadBalancerText) -> Self {
        let pools = summary.pools.iter();
        Self::Whole(AllPools {
            text: Some(text),
            pools: None,
            etags: pools.map(|pool| (pool.id.clone(), pool.etag.clone())).collect(),
        })
    }

    /// Whether the last read was of single pools.
    pub(super) fn are_single(&self) -> bool {
        matches!(self, Self::Single(_))
    }

    /// Whether the load balancer is so large that its documents are not kept.
    pub(super) fn are_of_large_load_balancer(&self) -> bool {
        match self {
            Self::Whole(all) => all.pools.is_none() && !all.text.as_ref().is_some_and(LoadBalancerText::is_kept),
            Self::Single(_) => true,
        }
    }

    /// Drops the documents of the other pools of a whole read: after a write they would be outdated.
    pub(super) fn forget(&mut self) {
        if let Self::Whole(AllPools { pools: Some(pools), .. }) = self {
            *pools = Vec::new();
        }
    }

    /// Takes the document of a pool.
    pub(super) async fn take(&mut self, arm: &ArmClient, id: &PoolId, deadline: Instant) -> Result<Document, ArmError> {
        match self {
            Self::Whole(all) => all.take(arm, id, deadline).await,
            Self::Single(pool) => {
                let pool = pool.take_if(|pool| pool.id == *id);
                Ok(pool.map_or(Document::NotRead, |pool| Document::Unchanged(PoolDraft::from(*pool))))
            }
        }
    }
}

impl AllPools {
    async fn take(&mut self, arm: &ArmClient, id: &PoolId, deadline: Instant) -> Result<Document, ArmError> {
        if let Some(text) = self.text.take() {
            self.pools = text.pools(id.load_balancer())?;
        }
        let Some((_, etag)) = self.etags.iter().find(|(pool, _)| pool == id) else {
            return Ok(Document::Missing);
        };
        if let Some(pools) = &mut self.pools {
            let index = pools.iter().position(|pool| pool.id() == id);
            return Ok(index.map_or(Document::Missing, |index| Document::Unchanged(pools.swap_remove(index))));
        }
        match arm.get_pool(id, deadline).await {
            Ok(pool) if pool.etag.is_some() && pool.etag == *etag => Ok(Document::Unchanged(pool.into())),
            Ok(_) => Ok(Document::Changed),
            Err(error) if error.class() == ErrorClass::Stale => Ok(Document::Changed),
            Err(error) => Err(error),
        }
    }
}
