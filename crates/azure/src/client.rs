//! The operations of the ARM client: pools and network interfaces are read; `load_balancers` reads load balancers, `parts` those
//! that are too large for that, `write` writes a pool.
//!
//! Every call has a deadline, and its response a size limit. [`ArmClient::send`] builds the request and hands it to the
//! [`RequestPath`]. A URL in a response is followed only to ARM's own origin, because requests carry a token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_core::clock::Clock;
use headgate_core::throttle::ThrottledUntil;
use hyper::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH, USER_AGENT};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, Uri};
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::RateLimits;
use crate::body_stream::{BodyParser, BodyReader, MAX_STREAMED_BYTES};
use crate::call::Call;
use crate::document::{MAX_ADDRESSES, Pool, read_interfaces_page, virtual_machine_of};
use crate::endpoints::{Endpoints, Origin};
use crate::error::{ArmError, ErrorBody};
use crate::id::{Etag, NetworkInterfaceId, PoolId, ResourceGroupId};
use crate::metrics::{Metrics, RequestLabels};
use crate::request_path::{ArmRequest, RequestPath, Retried, WritePermit};
use crate::retry::RetryPolicy;
use crate::retry_after::parse_retry_after;
use crate::throttle::{RequestKind, ThrottleGates};
use crate::token_cache::TokenCache;
use crate::transport::{BufferedResponse, Transport};

mod authorization;
mod load_balancers;
mod parts;
mod write;

pub use load_balancers::{LoadBalancerList, LoadBalancerRead, LoadBalancerText};
pub use write::{EncodedPool, WriteOperation};

/// The API version of Microsoft.Network that requests name; its traffic was recorded.
pub const API_VERSION: &str = "2025-05-01";
/// Pages of one list. ARM has at most 1,000 load balancers in a region and subscription.
const MAX_PAGES: usize = 1000;
/// For one attempt of a request, as in cloud-provider-azure.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);
/// Text of a load balancer that is kept for a write. A pool of a larger one is read again before it is written. One with a single pool of
/// 5,000 interfaces, Azure's limit, has 4.6 MiB.
const MAX_KEPT_BYTES: usize = 6 * 1024 * 1024;

/// Where ARM is and how the client behaves towards it.
#[derive(Clone, Debug)]
pub struct ArmClientOptions {
    /// The endpoints of the cloud, for ARM and tokens.
    pub endpoints: Endpoints,
    /// Client-side rate limits; `None` sends without limit.
    pub rate_limits: Option<RateLimits>,
    /// Value of the `User-Agent` header; `headgate/VERSION` if absent.
    pub user_agent: Option<String>,
}

/// A client of one ARM. Clones share connections, throttle gates and tokens.
#[derive(Clone)]
pub struct ArmClient {
    path: Arc<RequestPath>,
    origin: Origin,
    gates: ThrottleGates,
    clock: Clock,
    user_agent: HeaderValue,
    labels: RequestLabels,
    metrics: Metrics,
    /// Size limit of a page of a list and of a load balancer; 64 MiB unless it is set.
    pub max_streamed_bytes: usize,
    /// Up to this size the text of a load balancer is kept for a write; 6 MiB unless it is set.
    pub max_kept_bytes: usize,
}

impl fmt::Debug for ArmClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArmClient")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// One call of the client, before it becomes a request.
struct CallOptions<'a> {
    /// Its name in metrics and spans, such as `get_backend_pool`.
    name: &'static str,
    /// Selects the throttle gates, and labels the metrics.
    group: &'a ResourceGroupId,
    uri: Uri,
    deadline: Instant,
    /// Parses the body of the response while it arrives.
    parser: Option<BodyParser>,
    /// `None` for a GET.
    put: Option<Put>,
    is_lookup: bool,
}

impl<'a> CallOptions<'a> {
    fn get(name: &'static str, group: &'a ResourceGroupId, uri: Uri, deadline: Instant) -> Self {
        Self {
            name,
            group,
            uri,
            deadline,
            parser: None,
            put: None,
            is_lookup: false,
        }
    }
}

/// What a PUT has besides.
struct Put {
    if_match: Etag,
    body: Bytes,
    permit: WritePermit,
}

impl ArmClient {
    /// A client that sends requests over `transport` with the tokens of `tokens`.
    pub fn new(options: ArmClientOptions, transport: Transport, tokens: Arc<TokenCache>, clock: Clock) -> Self {
        let gates = ThrottleGates::new(options.rate_limits, clock.clone());
        let path = RequestPath {
            transport,
            policy: RetryPolicy::for_arm(clock.clone()),
            gates: gates.clone(),
            tokens,
            attempt_timeout: ATTEMPT_TIMEOUT,
        };
        let default = format!("headgate/{}", headgate_core::telemetry::VERSION);
        let user_agent = options.user_agent.filter(|agent| !agent.is_empty()).unwrap_or(default);
        Self {
            path: Arc::new(path),
            origin: options.endpoints.resource_manager,
            gates,
            clock,
            user_agent: HeaderValue::from_str(&user_agent).unwrap_or(HeaderValue::from_static("headgate")),
            labels: RequestLabels::default(),
            metrics: Metrics::default(),
            max_streamed_bytes: MAX_STREAMED_BYTES,
            max_kept_bytes: MAX_KEPT_BYTES,
        }
    }

    /// The same client, counting its requests in `metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// A client with these labels in metrics and spans: `source`, and request names that begin with `prefix`.
    #[must_use]
    pub fn with_request_labels(&self, prefix: &str, source: &str) -> Self {
        let labels = RequestLabels {
            prefix: prefix.into(),
            source: source.into(),
        };
        Self { labels, ..self.clone() }
    }

    /// Until when ARM throttles requests to a subscription.
    pub fn throttled_until(&self, subscription: &str) -> ThrottledUntil {
        ThrottledUntil {
            reads: self.gates.closed_until(subscription, RequestKind::Read),
            writes: self.gates.closed_until(subscription, RequestKind::Write),
        }
    }

    /// Sends no request to a subscription until then, because ARM throttles those of another process with the same identity.
    pub fn obey_throttle(&self, subscription: &str, until: ThrottledUntil) {
        for (kind, until) in [(RequestKind::Read, until.reads), (RequestKind::Write, until.writes)] {
            if let Some(until) = until {
                self.gates.close(subscription, kind, until);
            }
        }
    }

    /// Waits for a token, so that the next request need not.
    ///
    /// # Errors
    /// When there is none, and the token endpoint gives none before the deadline.
    pub async fn ensure_token(&self, deadline: Instant) -> Result<(), ArmError> {
        self.path.token(deadline).await.map(drop)
    }

    /// The metrics that count this client's requests.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Reads a pool.
    ///
    /// # Errors
    /// When it is not received before the deadline, or is malformed.
    pub async fn get_pool(&self, id: &PoolId, deadline: Instant) -> Result<Pool, ArmError> {
        let uri = self.uri(&id.path())?;
        let group = id.load_balancer().group();
        let response = self.get("get_backend_pool", group, uri, deadline).await?;
        Pool::from_document(id.clone(), parse_json(&response)?, etag(response.headers()))
            .map_err(ArmError::InvalidResponse)
    }

    /// Reads a network interface. Returns the resource id of its virtual machine in lower case, or `None` if it has none. Each attempt waits
    /// for its turn, as lookups together get half of the limit of reads: ARM's, or that of the settings if it is lower.
    ///
    /// # Errors
    /// When it is not received before the deadline, or is malformed.
    pub async fn get_interface_virtual_machine(
        &self,
        id: &NetworkInterfaceId,
        deadline: Instant,
    ) -> Result<Option<String>, ArmError> {
        let uri = self.uri(id.path())?;
        let options = CallOptions {
            is_lookup: true,
            ..CallOptions::get("get_network_interface", id.group(), uri, deadline)
        };
        let response = self.send(options).await?;
        Ok(virtual_machine_of(&parse_json(&response)?))
    }

    /// Lists the network interfaces of a resource group that have a virtual machine into `found`, with its resource id in lower case. Those of
    /// scale sets with uniform orchestration are not in the list. Each page waits for its turn as a lookup does. After an error `found` has the
    /// pages before it.
    ///
    /// # Errors
    /// When a page is not received before the deadline, is malformed, or is too large.
    pub async fn list_interface_virtual_machines(
        &self,
        group: &ResourceGroupId,
        deadline: Instant,
        found: &mut Vec<(NetworkInterfaceId, String)>,
    ) -> Result<(), ArmError> {
        let uri = self.uri(&format!(
            "{}/providers/Microsoft.Network/networkInterfaces",
            group.path()
        ))?;
        let options = CallOptions {
            is_lookup: true,
            ..CallOptions::get("list_network_interfaces", group, uri, deadline)
        };
        let parse = |body: BodyReader| read_interfaces_page(body);
        self.list_pages(options, parse, |_| 1, MAX_ADDRESSES, found).await
    }

    async fn get(
        &self,
        name: &'static str,
        group: &ResourceGroupId,
        uri: Uri,
        deadline: Instant,
    ) -> Result<BufferedResponse, ArmError> {
        self.send(CallOptions::get(name, group, uri, deadline)).await
    }

    /// Sends a request down the path. An error status becomes an error.
    async fn send(&self, options: CallOptions<'_>) -> Result<BufferedResponse, ArmError> {
        let metrics = self.metrics.requests(&self.labels, options.name, options.group);
        let call = Call::new(metrics);
        let request = self.build_request(options, Arc::clone(&call))?;
        let span = call.span(request.http.method(), request.http.uri());
        // Boxed, because the futures of the whole path are large.
        let sent = Box::pin(self.path.send(&request));
        let outcome = match sent.instrument(span.clone()).await {
            Ok(response) if response.status().is_success() => Ok(response),
            Ok(response) => Err(self.error_response(&response)),
            Err(error) => Err(error),
        };
        call.finish(&span, &outcome);
        outcome
    }

    fn build_request(&self, options: CallOptions<'_>, call: Arc<Call>) -> Result<ArmRequest, ArmError> {
        let mut http = Request::new(Bytes::new());
        *http.uri_mut() = options.uri;
        let headers = http.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.user_agent.clone());
        if let Ok(id) = HeaderValue::from_str(&new_request_id()) {
            headers.insert(HeaderName::from_static("x-ms-client-request-id"), id);
        }
        let mut permit = None;
        if let Some(put) = options.put {
            let if_match = HeaderValue::from_str(put.if_match.as_str());
            let if_match = if_match.map_err(|error| ArmError::InvalidResponse(error.to_string()))?;
            headers.insert(IF_MATCH, if_match);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *http.method_mut() = Method::PUT;
            *http.body_mut() = put.body;
            permit = Some(put.permit);
        }
        Ok(ArmRequest {
            http,
            subscription: options.group.subscription().into(),
            deadline: options.deadline,
            permit,
            parser: options.parser,
            is_lookup: options.is_lookup,
            call,
        })
    }

    fn error_response(&self, response: &BufferedResponse) -> ArmError {
        ArmError::ErrorResponse {
            status: response.status(),
            error: ErrorBody::parse(response.body()),
            retry_after: parse_retry_after(response.headers(), self.clock.now().wall),
            may_have_applied: response.extensions().get::<Retried>().is_some(),
        }
    }

    /// The URL of a resource.
    fn uri(&self, path: &str) -> Result<Uri, ArmError> {
        self.origin
            .join(&format!("{path}?api-version={API_VERSION}"))
            .map_err(ArmError::InvalidResponse)
    }

    /// Parses a URL from a response. Rejects one that leads to another origin.
    fn check_link(&self, url: &str) -> Result<Uri, ArmError> {
        match url.parse() {
            Ok(uri) if self.origin.contains(&uri) => Ok(uri),
            // The error shows the host only: the query may hold a signature.
            Ok(uri) => Err(ArmError::InvalidResponse(format!(
                "it leads to {}, and ARM is at {}",
                uri.authority().map_or("no host", Authority::as_str),
                self.origin
            ))),
            Err(error) => Err(ArmError::InvalidResponse(format!("it has a malformed URL: {error}"))),
        }
    }
}

fn parse_json(response: &BufferedResponse) -> Result<Value, ArmError> {
    serde_json::from_slice(response.body())
        .map_err(|error| ArmError::InvalidResponse(format!("it is not JSON: {error}")))
}

fn etag(headers: &HeaderMap) -> Option<Etag> {
    headers
        .get(ETAG)
        .and_then(|value| value.to_str().ok())
        .and_then(Etag::new)
}

/// A random GUID (version 4), by which Azure's logs identify the request.
fn new_request_id() -> String {
    let bytes = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_guids_and_differ() {
        let id = new_request_id;
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
