//! The last step of the request path: the HTTP client, or a service in the same process.
//!
//! A response is complete and of at most 16 MiB, or an error; only a body with a [`BodySink`] may be larger, because it is
//! parsed while it arrives. The `request_path` module retries.

use std::time::Duration;

use bytes::Bytes;
use headgate_http::client::{HttpClient, HttpError, Limits, TlsError, TrustedRoots};
use headgate_http::proxies::Proxies;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _, service_fn};

use crate::body_stream::{BodyParser, BodySink};

/// What the transport bounds; `request_path` bounds the time of an attempt, which is shorter.
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(10),
    timeout: Duration::from_mins(10),
    max_body_bytes: 16 * 1024 * 1024,
};

/// An HTTP response with its whole body.
pub type BufferedResponse = Response<Bytes>;

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The connection could not be made, or it ended early.
    #[error("{0}")]
    Connection(String),
    /// The body is larger than the limit.
    #[error("a body of more than {0} bytes")]
    TooLarge(usize),
    /// The body is larger than this limit for one that is parsed while it arrives.
    #[error("a body of more than {0} bytes")]
    StreamTooLarge(usize),
    /// The body does not have the expected form.
    #[error("{0}")]
    Malformed(String),
}

impl From<HttpError> for TransportError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::TooLarge(limit) => Self::TooLarge(limit),
            other => Self::Connection(other.to_string()),
        }
    }
}

/// Extension of a response whose body went to the [`BodySink`] of its request.
#[derive(Clone, Copy, Debug)]
struct Streamed;

/// Sends requests to Azure. Clones share connections.
#[derive(Clone)]
pub struct Transport(BoxCloneSyncService<Request<Bytes>, BufferedResponse, TransportError>);

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    /// A transport that calls a service in the same process.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<Request<Bytes>, Response = BufferedResponse, Error = TransportError> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        Self(BoxCloneSyncService::new(service))
    }

    /// A transport over the network.
    ///
    /// # Errors
    /// When there are no authorities to trust, or they are malformed.
    pub fn network(roots: &TrustedRoots, proxies: Proxies) -> Result<Self, TlsError> {
        let client = HttpClient::new(roots, proxies, LIMITS)?;
        Ok(Self::new(service_fn(move |mut request: Request<Bytes>| {
            let client = client.clone();
            let sink = request.extensions_mut().remove::<BodySink>();
            async move {
                let Some(sink) = sink else {
                    return Ok(client.exchange(request).await?);
                };
                let response = client.start(request).await?;
                if !response.status().is_success() {
                    return Ok(client.finish(response).await?);
                }
                let (mut parts, body) = response.into_parts();
                stream_body(body, &sink).await?;
                parts.extensions.insert(Streamed);
                Ok(Response::from_parts(parts, Bytes::new()))
            }
        })))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn send(&self, request: Request<Bytes>) -> Result<BufferedResponse, TransportError> {
        self.0.clone().oneshot(request).await
    }

    /// Sends a request and parses the body of a successful response while it arrives. The response has the body if the parser
    /// keeps it.
    pub(crate) async fn send_streamed(
        &self,
        mut request: Request<Bytes>,
        parser: BodyParser,
    ) -> Result<BufferedResponse, TransportError> {
        let sink = BodySink::new(parser);
        request.extensions_mut().insert(sink.clone());
        let response = self.send(request).await?;
        if !response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        if parts.extensions.get::<Streamed>().is_none() {
            sink.write_all(body).await?;
        }
        Ok(Response::from_parts(parts, sink.finish().await?))
    }
}

/// Writes a body to its parser, chunk by chunk, as far as the parser needs it. A body that is not received to its end costs the
/// connection.
async fn stream_body(mut body: Incoming, sink: &BodySink) -> Result<(), TransportError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| TransportError::Connection(headgate_core::telemetry::error_chain(&error)))?;
        if let Ok(chunk) = frame.into_data()
            && !sink.write(chunk).await?
        {
            break;
        }
    }
    Ok(())
}
