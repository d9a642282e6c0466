//! Reading load balancers, with bounded memory: what is kept of them are summaries, and the text of a small one.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::{ArmClient, CallOptions, MAX_PAGES, etag};
use crate::body_stream::{BodyExtent, BodyParser, BodyReader};
use crate::document::{BackendAddress, ListPage, LoadBalancerSummary, PoolDraft, read_load_balancer, read_page};
use crate::error::ArmError;
use crate::id::{Etag, LoadBalancerId, ResourceGroupId};
use crate::transport::BufferedResponse;

/// The load balancers of a resource group.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadBalancerList<E> {
    /// Those that were selected.
    pub load_balancers: Vec<LoadBalancerSummary<E>>,
    /// The ids of all others.
    pub others: Vec<LoadBalancerId>,
}

/// A load balancer as one read showed it.
#[derive(Clone, Debug)]
pub struct LoadBalancerRead<E> {
    /// What plans are made from.
    pub summary: LoadBalancerSummary<E>,
    /// What a write needs.
    pub text: LoadBalancerText,
    /// Whether it was too large for one response, and is assembled from its parts.
    pub is_assembled: bool,
}

/// The text of a load balancer, unless it is too large to be kept.
#[derive(Clone, Debug)]
pub struct LoadBalancerText {
    text: Bytes,
    /// From the headers.
    etag: Option<Etag>,
}

impl LoadBalancerText {
    /// That of a load balancer that was not read whole.
    pub(super) const NOT_KEPT: Self = Self {
        text: Bytes::new(),
        etag: None,
    };

    /// Whether the text was kept.
    pub fn is_kept(&self) -> bool {
        !self.text.is_empty()
    }

    /// The JSON text as it was received; empty if it was not kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The pools of this load balancer, for writes; `None` if it is too large to be kept. A pool without a name is omitted.
    ///
    /// # Errors
    /// When the text cannot be parsed.
    pub fn pools(&self, id: &LoadBalancerId) -> Result<Option<Vec<PoolDraft>>, ArmError> {
        if !self.is_kept() {
            return Ok(None);
        }
        let pools = PoolDraft::all_of(&self.text, id, self.etag.as_ref());
        pools
            .map(Some)
            .map_err(|error| ArmError::InvalidResponse(error.to_string()))
    }
}

impl ArmClient {
    /// Lists the load balancers of a resource group. Those that `select` rejects are skipped without being kept; `convert`
    /// decides what is kept of a pool entry. Omits, and logs, an item that is not a load balancer.
    ///
    /// # Errors
    /// When a page is not received before the deadline, is malformed, or is too large.
    pub async fn list_load_balancers<E, S, C>(
        &self,
        group: &ResourceGroupId,
        select: S,
        convert: C,
        deadline: Instant,
    ) -> Result<LoadBalancerList<E>, ArmError>
    where
        E: Send + 'static,
        S: Fn(&LoadBalancerId) -> bool + Send + Sync + Clone + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + Clone + 'static,
    {
        let mut list = LoadBalancerList {
            load_balancers: Vec::new(),
            others: Vec::new(),
        };
        let mut next = self.uri(&group.load_balancers_path())?;
        for _ in 0..MAX_PAGES {
            let (select, convert) = (select.clone(), convert.clone());
            let parse = move |body| read_page(body, &select, &convert);
            let options = CallOptions::get("list_load_balancers", group, next, deadline);
            let (page, _): (ListPage<E>, _) = self.send_parsed(options, BodyExtent::PARSED, parse).await?;
            list.load_balancers.extend(page.load_balancers);
            list.others.extend(page.others);
            match page.next_link {
                Some(link) => next = self.check_link(&link)?,
                None => return Ok(list),
            }
        }
        Err(ArmError::InvalidResponse(format!(
            "a list of more than {MAX_PAGES} pages"
        )))
    }

    /// Reads a load balancer with its pools. `convert` decides what is kept of a pool entry.
    ///
    /// # Errors
    /// When it is not received before the deadline, is malformed, or is too large.
    pub async fn get_load_balancer<E, C>(
        &self,
        id: &LoadBalancerId,
        convert: C,
        deadline: Instant,
    ) -> Result<LoadBalancerRead<E>, ArmError>
    where
        E: Send + 'static,
        C: Fn(BackendAddress<'_>) -> E + Send + Sync + 'static,
    {
        let options = CallOptions::get("get_load_balancer", id.group(), self.uri(&id.path())?, deadline);
        let parse = move |body| read_load_balancer(body, &convert);
        let extent = BodyExtent::Whole {
            max_kept_bytes: self.max_kept_bytes,
        };
        let (mut summary, response) = self.send_parsed(options, extent, parse).await?;
        let header = etag(response.headers());
        summary.set_etag(header.clone());
        Ok(LoadBalancerRead {
            summary,
            text: LoadBalancerText {
                text: response.into_body(),
                etag: header,
            },
            is_assembled: false,
        })
    }

    /// Sends a request and parses the body of its response while it arrives.
    pub(super) async fn send_parsed<T: Send + 'static>(
        &self,
        options: CallOptions<'_>,
        extent: BodyExtent,
        parse: impl Fn(BodyReader) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<(T, BufferedResponse), ArmError> {
        let parsed = Arc::new(Mutex::new(None));
        let target = Arc::clone(&parsed);
        let parser = BodyParser::new(extent, self.max_streamed_bytes, move |body| {
            let found = parse(body)?;
            *target.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            Ok(())
        });
        let parser = Some(parser);
        let response = self.send(CallOptions { parser, ..options }).await?;
        let found = parsed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let found = found.ok_or_else(|| ArmError::InvalidResponse("it has no content".to_owned()))?;
        Ok((found, response))
    }
}
