//! The pages of a stream's lists, as far as their bytes are concerned.
//!
//! Who may write objects chooses their size, and a page is in memory as text and as objects. Invariant: of an answer of more than
//! [`MAX_PAGE_BYTES`], no more is read, and the same page is requested again with fewer objects, down to one, which the API server
//! bounds. After small pages there are more objects in one again, up to what the stream asks for.
//!
//! A page whose body brings nothing for [`FRAME_TIMEOUT`] fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::http::request::Parts;
use hyper::{Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;

/// Limit of the bytes of a page with more than one object: an agent has 64 MiB for everything, and a page is there twice as text.
pub(super) const MAX_PAGE_BYTES: usize = 4 << 20;
/// The objects of a page after one without a limit that was too large.
const FIRST_LIMIT: u32 = 100;
/// The factor between one limit and the next.
const STEP: u32 = 4;
/// Limit of the time without a byte of a list, or of an error, after its head. A large one may take any time.
pub(super) const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// The most objects in a page of one stream.
#[derive(Clone, Debug)]
pub(super) struct PageLimit(Arc<AtomicU32>);

impl Default for PageLimit {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(u32::MAX)))
    }
}

impl PageLimit {
    /// Sends the request for a page, which has no body. The response has its whole body.
    pub(super) async fn send(&self, client: &Client, head: Parts) -> Result<Response<Body>, kube::Error> {
        let uri = head.uri.clone();
        loop {
            let limit = self.0.load(Ordering::Relaxed);
            let mut head = head.clone();
            if limit < limit_of(&uri).unwrap_or(u32::MAX)
                && let Some(limited) = with_limit(&uri, limit)
            {
                head.uri = limited;
            }
            let sent = limit_of(&head.uri);
            let response = client.send(Request::from_parts(head, Body::empty())).await?;
            let is_bounded = response.status().is_success() && sent != Some(1);
            let max_bytes = if is_bounded { MAX_PAGE_BYTES } else { usize::MAX };
            if let Some((response, bytes)) = received_up_to(max_bytes, response).await? {
                // Far below, or the next page would be too large again.
                if bytes <= MAX_PAGE_BYTES / 8 {
                    self.0.store(limit.saturating_mul(STEP), Ordering::Relaxed);
                }
                return Ok(response);
            }
            let fewer = sent.map_or(FIRST_LIMIT, |sent| (sent / STEP).max(1));
            tracing::info!(
                path = uri.path(),
                limit = fewer,
                "page of a list too large, requesting fewer objects"
            );
            self.0.store(fewer, Ordering::Relaxed);
        }
    }
}

/// The response with its whole body, as kube would collect it.
pub(super) async fn received(response: Response<Body>) -> Result<Response<Body>, kube::Error> {
    let received = received_up_to(usize::MAX, response).await?;
    let (response, _) = received.ok_or_else(|| kube::Error::Service("a response is too large".into()))?;
    Ok(response)
}

/// The same, and the bytes of the body; `None` if it has more than this.
async fn received_up_to(
    max_bytes: usize,
    response: Response<Body>,
) -> Result<Option<(Response<Body>, usize)>, kube::Error> {
    let (head, mut body) = response.into_parts();
    let mut received = Vec::new();
    while let Some(frame) = timeout(FRAME_TIMEOUT, body.frame())
        .await
        .map_err(|_| kube::Error::Service("the API server stopped sending a response".into()))?
    {
        if let Some(data) = frame?.data_ref() {
            if data.len() > max_bytes.saturating_sub(received.len()) {
                return Ok(None);
            }
            received.extend_from_slice(data);
        }
    }
    let bytes = received.len();
    Ok(Some((Response::from_parts(head, received.into()), bytes)))
}

/// The limit that a request names.
fn limit_of(uri: &Uri) -> Option<u32> {
    let mut parameters = uri.query()?.split('&');
    parameters.find_map(|parameter| parameter.strip_prefix("limit=")?.parse().ok())
}

/// The address with this limit in place of another one.
fn with_limit(uri: &Uri, limit: u32) -> Option<Uri> {
    let limit = format!("limit={limit}");
    let parameters = uri.query().into_iter().flat_map(|query| query.split('&'));
    let others = parameters.filter(|parameter| !parameter.starts_with("limit="));
    let query: Vec<_> = others.chain([limit.as_str()]).collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), query.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}
