//! What is asked of ARM: load balancers and pools are read, a pool is written.
//!
//! Every request has a deadline, and its answer is bounded. A write carries the etag of the state it was made from
//! and asks its [`Permit`] right before each time it is sent. A URL in an answer is followed only to where ARM is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_clock::Clock;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Uri};
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt as _;
use tracing::Instrument as _;

use super::document::{LoadBalancer, Pool};
use super::endpoints::{Endpoints, Origin};
use super::error::{ArmError, ErrorBody};
use super::gate::Gates;
use super::id::{Etag, LoadBalancerId, PoolId, ResourceGroupId};
use super::identity::{Bearer, TokenSource};
use super::metrics::{Caller, Metrics};
use super::observe::Seen;
use super::retry::Retry;
use super::retry_after::retry_after;
use super::stack::{self, Call, Permit, Stack};
use super::transport::{BufferedResponse, Transport};
use crate::RateLimits;

mod interface;
mod write;

pub use write::WriteOperation;

/// The version of Microsoft.Network whose traffic was recorded.
pub const API_VERSION: &str = "2025-05-01";
/// Time for one try, as with cloud-provider-azure.
const ONE_TRY: Duration = Duration::from_mins(1);
/// A list has no more pages: ARM has at most 1,000 load balancers in a region and subscription.
const MOST_PAGES: usize = 1000;

/// How to speak to one ARM.
#[derive(Clone, Debug)]
pub struct ArmClientOptions {
    /// Where it is.
    pub endpoints: Endpoints,
    /// How often it may be asked, where that is limited.
    pub rate_limits: Option<RateLimits>,
    /// Who is asking; `headgate/VERSION` unless said otherwise.
    pub user_agent: Option<String>,
}

/// Asks ARM; clones share connections, gates and tokens.
#[derive(Clone)]
pub struct ArmClient {
    stack: Stack,
    origin: Origin,
    gates: Gates,
    clock: Clock,
    user_agent: HeaderValue,
    caller: Caller,
    metrics: Metrics,
}

impl fmt::Debug for ArmClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArmClient")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// What a request says besides where it goes.
#[derive(Clone, Debug, Default)]
struct Extra {
    if_match: Option<Etag>,
    body: Bytes,
    permit: Option<Permit>,
}

impl ArmClient {
    /// Over this transport, as whoever these tokens are for.
    #[must_use]
    pub fn new(options: ArmClientOptions, transport: Transport, tokens: Arc<dyn TokenSource>, clock: Clock) -> Self {
        let gates = Gates::new(options.rate_limits, clock.clone());
        let stack = stack::arm(
            transport,
            Retry::arm(clock.clone()),
            gates.clone(),
            Bearer(tokens),
            ONE_TRY,
        );
        let ours = format!("headgate/{}", headgate_telemetry::VERSION);
        let wanted = options.user_agent.filter(|agent| !agent.is_empty()).unwrap_or(ours);
        Self {
            stack,
            origin: options.endpoints.resource_manager,
            gates,
            clock,
            user_agent: HeaderValue::from_str(&wanted).unwrap_or(HeaderValue::from_static("headgate")),
            caller: Caller::default(),
            metrics: Metrics::default(),
        }
    }

    /// The same, counted here.
    #[must_use]
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// The same, for metrics and traces on behalf of `source`, the names of its requests beginning with `prefix`.
    #[must_use]
    pub fn with_request_labels(&self, prefix: &str, source: &str) -> Self {
        let caller = Caller {
            prefix: prefix.into(),
            source: source.into(),
        };
        Self { caller, ..self.clone() }
    }

    /// What its requests are counted in.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All load balancers of a resource group.
    ///
    /// # Errors
    /// Where a page cannot be had, or not in time.
    pub async fn list_load_balancers(
        &self,
        group: &ResourceGroupId,
        deadline: Instant,
    ) -> Result<Vec<LoadBalancer>, ArmError> {
        let mut found = Vec::new();
        let mut next = self.uri(&group.load_balancers_path())?;
        for _ in 0..MOST_PAGES {
            let answer = self.get("list_load_balancers", group, next, deadline).await?;
            let mut page = json(&answer)?;
            let Some(Value::Array(items)) = page.get_mut("value").map(Value::take) else {
                return Err(ArmError::InvalidResponse("a list without value".to_owned()));
            };
            for item in items {
                match LoadBalancer::read(item, None) {
                    Ok(load_balancer) => found.push(load_balancer),
                    // The others are to be seen nevertheless.
                    Err(why) => tracing::warn!(why, "a load balancer in ARM's list is left out"),
                }
            }
            match page
                .get("nextLink")
                .and_then(Value::as_str)
                .filter(|link| !link.is_empty())
            {
                Some(link) => next = self.followed(link)?,
                None => return Ok(found),
            }
        }
        Err(ArmError::InvalidResponse(format!(
            "a list of more than {MOST_PAGES} pages"
        )))
    }

    /// One load balancer.
    ///
    /// # Errors
    /// Where it cannot be had, or not in time.
    pub async fn get_load_balancer(&self, id: &LoadBalancerId, deadline: Instant) -> Result<LoadBalancer, ArmError> {
        let uri = self.uri(&id.path())?;
        let answer = self.get("get_load_balancer", id.group(), uri, deadline).await?;
        LoadBalancer::read(json(&answer)?, etag(answer.headers())).map_err(ArmError::InvalidResponse)
    }

    /// One pool.
    ///
    /// # Errors
    /// Where it cannot be had, or not in time.
    pub async fn get_pool(&self, id: &PoolId, deadline: Instant) -> Result<Pool, ArmError> {
        let uri = self.uri(&id.path())?;
        let answer = self
            .get("get_backend_pool", id.load_balancer().group(), uri, deadline)
            .await?;
        Pool::read(id.clone(), json(&answer)?, etag(answer.headers())).map_err(ArmError::InvalidResponse)
    }

    async fn get(
        &self,
        request: &str,
        group: &ResourceGroupId,
        uri: Uri,
        deadline: Instant,
    ) -> Result<BufferedResponse, ArmError> {
        let what = (request, group);
        self.send(Method::GET, what, uri, deadline, Extra::default()).await
    }

    /// Sends a request; an answer that is an error is one.
    async fn send(
        &self,
        method: Method,
        (request, group): (&str, &ResourceGroupId),
        uri: Uri,
        deadline: Instant,
        extra: Extra,
    ) -> Result<BufferedResponse, ArmError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.user_agent.clone());
        if let Some(id) = request_id() {
            headers.insert(HeaderName::from_static("x-ms-client-request-id"), id);
        }
        if let Some(etag) = extra.if_match {
            let value =
                HeaderValue::from_str(etag.as_str()).map_err(|error| ArmError::InvalidResponse(error.to_string()))?;
            headers.insert(hyper::header::IF_MATCH, value);
        }
        if !extra.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let seen = Seen::new(self.metrics.requests(&self.caller, request, group));
        let span = seen.span(&method, &uri);
        let call = Call {
            method,
            uri,
            headers,
            body: extra.body,
            subscription: group.subscription().into(),
            deadline,
            permit: extra.permit,
            seen: Arc::clone(&seen),
        };
        let answered = self.stack.clone().oneshot(call).instrument(span.clone()).await;
        let outcome = match answered {
            Ok(answer) if answer.status().is_success() => Ok(answer),
            Ok(answer) => Err(self.refused(&answer)),
            Err(error) => Err(error),
        };
        seen.ended(&span, &outcome);
        outcome
    }

    /// An answer that is an error.
    fn refused(&self, answer: &BufferedResponse) -> ArmError {
        ArmError::ErrorResponse {
            status: answer.status(),
            error: ErrorBody::parse(answer.body()),
            retry_after: retry_after(answer.headers(), self.clock.now().wall),
            may_have_applied: answer.extensions().get::<super::retry::MaybeDone>().is_some(),
        }
    }

    /// Where a resource is.
    fn uri(&self, path: &str) -> Result<Uri, ArmError> {
        self.origin
            .join(&format!("{path}?api-version={API_VERSION}"))
            .map_err(ArmError::InvalidResponse)
    }

    /// An absolute URL that ARM gave, as it is.
    fn followed(&self, url: &str) -> Result<Uri, ArmError> {
        match url.parse() {
            Ok(uri) if self.origin.contains(&uri) => Ok(uri),
            // Its query may be signed; where it leads is what matters.
            Ok(uri) => Err(ArmError::InvalidResponse(format!(
                "it leads to {}, and ARM is at {}",
                uri.authority().map_or("nowhere", hyper::http::uri::Authority::as_str),
                self.origin
            ))),
            Err(error) => Err(ArmError::InvalidResponse(format!("it leads to no URL: {error}"))),
        }
    }
}

fn json(answer: &BufferedResponse) -> Result<Value, ArmError> {
    serde_json::from_slice(answer.body()).map_err(|error| ArmError::InvalidResponse(format!("it is no JSON: {error}")))
}

fn etag(headers: &HeaderMap) -> Option<Etag> {
    headers
        .get(ETAG)
        .and_then(|value| value.to_str().ok())
        .and_then(Etag::new)
}

/// A random GUID (version 4), so that a request can be found in Azure's logs.
fn request_id() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(bytes);
    let hex = format!("{number:032x}");
    let id = format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    );
    HeaderValue::from_str(&id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_guids_and_differ() {
        let id = || request_id().unwrap().to_str().unwrap().to_owned();
        let one = id();
        assert_eq!(
            one.split('-').map(str::len).collect::<Vec<_>>(),
            [8, 4, 4, 4, 12],
            "{one}"
        );
        assert_eq!(&one[14..15], "4");
        assert_ne!(one, id());
    }
}
