//! Exports spans to an OpenTelemetry collector: OTLP as protobuf over HTTP.
//!
//! Exports headgate's own spans only, and no events, so no log line reaches the collector. The queue of spans is bounded: a
//! slow or missing collector loses spans and delays nothing, except the end of the process by [`SHUTDOWN_TIMEOUT`]. The SDK
//! exports from a thread of its own; the connection runs on the agent's runtime.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use headgate_core::telemetry::VERSION;
use hyper::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;

use crate::client::{HttpClient as Client, Limits, TlsError, TrustedRoots};
use crate::proxies::Proxies;

/// For one batch, its connection included.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// For the last batches at the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time from one batch to the next.
const EXPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Size limit of the queue, some 2 MB. Further spans are dropped.
const MAX_QUEUED_SPANS: usize = 2048;
const LIMITS: Limits = Limits {
    connect_timeout: EXPORT_TIMEOUT,
    timeout: EXPORT_TIMEOUT,
    max_body_bytes: 64 * 1024,
};

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TraceExporterError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The SDK rejects the URL or its environment.
    #[error("the exporter of spans cannot be created: {0}")]
    Exporter(String),
}

/// Exports spans until [`Self::shutdown`].
#[derive(Debug)]
pub struct TraceExporter {
    provider: SdkTracerProvider,
}

impl TraceExporter {
    /// Starts to export to `url`, with `node` as a resource attribute. Connections run on `runtime`, through `proxies`.
    ///
    /// # Errors
    /// When TLS or the exporter cannot be set up. A collector that does not answer is not an error.
    pub fn start(url: &str, node: &str, proxies: Proxies, runtime: Handle) -> Result<Self, TraceExporterError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient::new(url, proxies, runtime)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| TraceExporterError::Exporter(headgate_core::telemetry::error_chain(&error)))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_scheduled_delay(EXPORT_INTERVAL)
            .build();
        let resource = Resource::builder()
            .with_service_name("headgate")
            .with_attribute(KeyValue::new("service.version", VERSION))
            .with_attribute(KeyValue::new("k8s.node.name", node.to_owned()))
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(processor)
            .build();
        Ok(Self { provider })
    }

    /// The layer that collects the spans.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let own_spans = FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("headgate"));
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("headgate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(own_spans.with_max_level_hint(Level::DEBUG))
    }

    /// Exports the queued spans and ends.
    pub async fn shutdown(self) {
        // The shutdown blocks until this runtime has sent the last batch.
        let shutdown = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        match timeout(SHUTDOWN_TIMEOUT + EXPORT_TIMEOUT, shutdown).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::info!(
                error = headgate_core::telemetry::error_chain(&error),
                "last spans not exported"
            ),
            Ok(Err(_)) | Err(_) => tracing::info!("last spans not exported in time"),
        }
    }
}

/// Sends batches to the collector.
#[derive(Clone, Debug)]
struct CollectorClient {
    client: Client,
    runtime: Handle,
}

impl CollectorClient {
    fn new(url: &str, proxies: Proxies, runtime: Handle) -> Result<Self, TlsError> {
        let roots = if url.starts_with("https:") {
            TrustedRoots::System
        } else {
            TrustedRoots::Empty
        };
        let client = Client::new(&roots, proxies, LIMITS)?;
        Ok(Self { client, runtime })
    }
}

impl HttpClient for CollectorClient {
    fn send_bytes<'this, 'sent>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'this: 'sent,
        Self: 'sent,
    {
        // The SDK calls from a thread without a runtime, and waits for the request, whose time is bounded.
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move { client.exchange(request).await });
        Box::pin(async { Ok(sent.await??) })
    }
}
