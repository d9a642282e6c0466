//! Reading a load balancer that is too large for one response: its rules, its probes, its pools and its state, each by itself.
//!
//! The parts are from different moments. That is safe for writes: each pool has its own etag, with which it is written, and the state
//! is read last. A pool counts as missing only if the complete list of the pools lacks it, or if ARM answers 404 about it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tokio::time::Instant;

use super::load_balancers::{LoadBalancerRead, LoadBalancerText};
use super::{ArmClient, CallOptions, MAX_PAGES, etag};
use crate::body_stream::{BodyExtent, BodyReader};
use crate::document::{
    BackendAddress, ListedPool, LoadBalancerState, LoadBalancerSummary, MAX_ADDRESSES, MAX_RULES, PartsPage,
    PoolSummary, ProvisioningState, pools_of_rules, read_pool, read_pools_page, read_state, read_values_page,
};
use crate::error::ArmError;
use crate::id::{LoadBalancerId, PoolId};

/// Single pools that are read at a time.
const MAX_CONCURRENT_POOLS: usize = 4;

/// For one page of a list beside which nothing of it is looked up. One that stalls is not worth the wait.
const LOOKUP_PAGE_TIMEOUT: Duration = Duration::from_secs(8);

impl ArmClient {
    /// Reads a load balancer in parts. Pools that the list of its pools shows without their entries are read one by one. If that list
    /// is too large as well, these are the pools that its rules use and those of `known_pools`. `convert` decides what is kept of a pool entry.
    ///
    /// # Errors
    /// When a part is not received before the deadline, is malformed, or is too large.
    pub async fn get_load_balancer_in_parts<E, C>(
        &self,
        id: &LoadBalancerId,
        known_pools: &BTreeSet<PoolId>,
        convert: C,
        deadline: Instant,
    ) -> Result<LoadBalancerRead<E>, ArmError>
    where
        E: Send + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + Clone + 'static,
    {
        let rules = self.list_values(id, "list_load_balancing_rules", "loadBalancingRules", deadline);
        let rules = rules.await?;
        let probes = self.list_values(id, "list_probes", "probes", deadline).await?;
        let mut pools = Vec::new();
        let mut single = BTreeSet::new();
        match self.list_pools(id, convert.clone(), deadline).await {
            Ok(listed) => {
                for pool in listed {
                    match pool {
                        ListedPool::Shown(pool) => pools.push(pool),
                        ListedPool::WithoutEntries(id) => drop(single.insert(id)),
                    }
                }
            }
            Err(ArmError::TooLarge(_)) => {
                single = pools_of_rules(&rules, id);
                single.extend(known_pools.iter().filter(|pool| pool.load_balancer() == id).cloned());
            }
            Err(error) => return Err(error),
        }
        pools.extend(self.get_pools(single, convert, deadline).await?);
        let state = self.get_state(id, deadline).await?;
        Ok(LoadBalancerRead {
            summary: LoadBalancerSummary::assemble(id, state, rules, probes, pools),
            text: LoadBalancerText::NOT_KEPT,
            is_assembled: true,
        })
    }

    /// Reads whether ARM is busy with a load balancer, from the beginning of its document.
    ///
    /// # Errors
    /// When it is not received before the deadline, or is malformed.
    pub async fn get_load_balancer_state(
        &self,
        id: &LoadBalancerId,
        deadline: Instant,
    ) -> Result<ProvisioningState, ArmError> {
        let state = self.get_state(id, deadline).await?;
        Ok(state.provisioning_state())
    }

    /// Lists the rules or the probes of a load balancer.
    async fn list_values(
        &self,
        id: &LoadBalancerId,
        name: &'static str,
        kind: &str,
        deadline: Instant,
    ) -> Result<Vec<Value>, ArmError> {
        let options = CallOptions::get(name, id.group(), self.uri(&id.list_path(kind))?, deadline);
        let read = |body: BodyReader| read_values_page(body);
        let mut items = Vec::new();
        self.list_pages(options, read, |_| 1, MAX_RULES, &mut items).await?;
        Ok(items)
    }

    async fn list_pools<E, C>(
        &self,
        id: &LoadBalancerId,
        convert: C,
        deadline: Instant,
    ) -> Result<Vec<ListedPool<E>>, ArmError>
    where
        E: Send + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + Clone + 'static,
    {
        let load_balancer = id.clone();
        let read = move |body: BodyReader| read_pools_page(body, &load_balancer, &convert);
        let uri = self.uri(&id.list_path("backendAddressPools"))?;
        let options = CallOptions::get("list_backend_pools", id.group(), uri, deadline);
        let mut items = Vec::new();
        self.list_pages(options, read, ListedPool::weight, MAX_ADDRESSES, &mut items)
            .await?;
        Ok(items)
    }

    /// Reads a list to its last page, from the one that `first` requests, into `items`, which has those of the pages before an error. The weights
    /// of all items together are at most `max_weight`.
    pub(super) async fn list_pages<T, P>(
        &self,
        first: CallOptions<'_>,
        parse: P,
        weight: impl Fn(&T) -> usize,
        max_weight: usize,
        items: &mut Vec<T>,
    ) -> Result<(), ArmError>
    where
        T: Send + 'static,
        P: Fn(BodyReader) -> Result<PartsPage<T>, String> + Send + Sync + Clone + 'static,
    {
        let mut total = 0_usize;
        let CallOptions {
            name,
            group,
            uri: mut next,
            deadline,
            is_lookup,
            ..
        } = first;
        for _ in 0..MAX_PAGES {
            let page_deadline = if is_lookup {
                deadline.min(Instant::now() + LOOKUP_PAGE_TIMEOUT)
            } else {
                deadline
            };
            let options = CallOptions {
                is_lookup,
                ..CallOptions::get(name, group, next, page_deadline)
            };
            let (page, _) = self.send_parsed(options, BodyExtent::PARSED, parse.clone()).await?;
            total += page.items.iter().map(&weight).sum::<usize>();
            if total > max_weight {
                return Err(ArmError::InvalidResponse(format!("more than {max_weight} items")));
            }
            items.extend(page.items);
            match page.next_link {
                Some(link) => next = self.check_link(&link)?,
                None => return Ok(()),
            }
        }
        Err(ArmError::InvalidResponse(format!(
            "a list of more than {MAX_PAGES} pages"
        )))
    }

    /// Reads these pools one by one. Omits those that do not exist.
    async fn get_pools<E, C>(
        &self,
        ids: BTreeSet<PoolId>,
        convert: C,
        deadline: Instant,
    ) -> Result<Vec<PoolSummary<E>>, ArmError>
    where
        E: Send + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + Clone + 'static,
    {
        let reads = ids.into_iter().map(|id| {
            let convert = convert.clone();
            async move {
                match self.get_pool_summary(&id, convert, deadline).await {
                    Err(error) if error.is_about_missing_resource() => Ok(None),
                    read => read.map(Some),
                }
            }
        });
        let reads = stream::iter(reads).buffered(MAX_CONCURRENT_POOLS);
        let total = reads.try_fold((Vec::new(), 0_usize), |(mut pools, total), pool| {
            let total = total + pool.as_ref().map_or(0, PoolSummary::weight);
            pools.extend(pool);
            let is_bounded = total <= MAX_ADDRESSES;
            let error = || ArmError::InvalidResponse(format!("more than {MAX_ADDRESSES} pool entries"));
            std::future::ready(is_bounded.then_some((pools, total)).ok_or_else(error))
        });
        Ok(total.await?.0)
    }

    async fn get_pool_summary<E, C>(
        &self,
        id: &PoolId,
        convert: C,
        deadline: Instant,
    ) -> Result<PoolSummary<E>, ArmError>
    where
        E: Send + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + 'static,
    {
        let pool = id.clone();
        let group = id.load_balancer().group();
        let options = CallOptions::get("get_backend_pool", group, self.uri(&id.path())?, deadline);
        let parse = move |body: BodyReader| read_pool(body, &pool, &convert);
        let (pool, response) = self.send_parsed(options, BodyExtent::PARSED, parse).await?;
        Ok(pool.with_etag(etag(response.headers())))
    }

    /// Reads the beginning of a load balancer's document.
    async fn get_state(&self, id: &LoadBalancerId, deadline: Instant) -> Result<LoadBalancerState, ArmError> {
        let options = CallOptions::get("get_load_balancer", id.group(), self.uri(&id.path())?, deadline);
        let parse = |body: BodyReader| read_state(body);
        let (state, _) = self.send_parsed(options, BodyExtent::Beginning, parse).await?;
        Ok(state)
    }
}
