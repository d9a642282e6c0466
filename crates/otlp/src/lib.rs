//! Spans for an OpenTelemetry collector: OTLP, as protobuf over HTTP.
//!
//! Off unless an endpoint is set. Spans of ours only, never events, so that no line of a log gets there. What waits to
//! be sent is bounded, and dropped where the collector does not keep up or is not there: nothing waits for it, but
//! the end of the process, for [`CLOSE`]. The SDK sends from a thread of its own; the connection itself is the
//! agent's runtime's. gRPC would bring a second HTTP stack; collectors take both.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;

use headgate_telemetry::VERSION;

/// Time for one batch, its connection included.
const EXPORT: Duration = Duration::from_secs(5);
/// Time for what is left at the end.
const CLOSE: Duration = Duration::from_secs(3);
/// Time between batches.
const EVERY: Duration = Duration::from_secs(2);
/// Spans that may wait: some 2 MB.
const MOST_WAITING: usize = 2048;
/// A collector says little.
const MOST_BYTES: usize = 64 * 1024;

/// Spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// No TLS.
    #[error("no certificate authorities to trust: {0}; SSL_CERT_FILE names a bundle")]
    Authorities(std::io::Error),
    /// Versions and algorithms do not fit.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The exporter refuses.
    #[error("the exporter of spans cannot be made: {0}")]
    Exporter(String),
}

/// The sending of spans, which goes on until it is closed.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends spans to this URL, as this node's, its connections on this runtime.
    ///
    /// # Errors
    /// Where TLS or the exporter cannot be had. That nobody is there is no error.
    pub fn start(url: &str, node: &str, runtime: Handle) -> Result<Self, TracesError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(url.starts_with("https:"), runtime)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(EXPORT)
            .build()
            .map_err(|error| TracesError::Exporter(headgate_telemetry::error_chain(&error)))?;
        let bounds = BatchConfigBuilder::default()
            .with_max_queue_size(MOST_WAITING)
            .with_scheduled_delay(EVERY)
            .build();
        let resource = Resource::builder()
            .with_service_name("headgate")
            .with_attribute(KeyValue::new("service.version", VERSION))
            .with_attribute(KeyValue::new("k8s.node.name", node.to_owned()))
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(bounds).build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(processor)
            .build();
        Ok(Self { provider })
    }

    /// What takes the spans.
    #[must_use]
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("headgate"));
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("headgate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(ours.with_max_level_hint(Level::DEBUG))
    }

    /// Sends what waits, and ends.
    pub async fn close(self) {
        // It blocks, and what it waits for is sent by this very runtime.
        let closed = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(CLOSE));
        match timeout(CLOSE + EXPORT, closed).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(
                error = headgate_telemetry::error_chain(&error),
                "the last spans were not sent"
            ),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last spans were not sent in time"),
        }
    }
}

type Connections = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The way to a collector.
#[derive(Clone)]
struct Collector {
    connections: Connections,
    runtime: Handle,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector {
    fn new(tls: bool, runtime: Handle) -> Result<Self, TracesError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(EXPORT));
        let provider = rustls::crypto::ring::default_provider();
        let builder = if tls {
            HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)
                .map_err(TracesError::Authorities)?
        } else {
            // Nobody to trust is needed.
            let config =
                ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
            let config = config
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
        let connections = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { connections, runtime })
    }

    async fn send(self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let whole = async {
            let answer = self.connections.request(request.map(Full::new)).await?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        timeout(EXPORT, whole).await?
    }
}

impl HttpClient for Collector {
    fn send_bytes<'this, 'sent>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'this: 'sent,
        Self: 'sent,
    {
        // Whoever asks is on a thread without a runtime. The request is bounded, and is waited for.
        let sent = self.runtime.spawn(self.clone().send(request));
        Box::pin(async { sent.await? })
    }
}
