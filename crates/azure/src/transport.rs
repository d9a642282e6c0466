//! The last step of the request path: HTTP/1.1 over TCP or TLS (rustls with ring), or a service in the same process.
//!
//! A response is complete and of at most [`MAX_RESPONSE_BYTES`], or an error; only a body with a [`BodySink`] may be larger,
//! because it is parsed while it arrives. The transport does not retry and does not follow redirects; the `request_path`
//! module retries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_http::body::{BodyError, read_body};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _, service_fn};

use crate::body_stream::{BodyParser, BodySink};

/// Size limit of a response body that is not streamed.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// For a TCP connection, so that an address without a server does not use up the attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an idle connection is closed. Azure's front ends close at about four minutes.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Idle time before the first TCP keepalive probe, and between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// An HTTP response with its whole body.
pub type BufferedResponse = Response<Bytes>;

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The connection could not be made, or it ended early.
    #[error("{0}")]
    Connection(String),
    /// The body is larger than the limit.
    #[error("a body of more than {MAX_RESPONSE_BYTES} bytes")]
    TooLarge,
    /// The body is larger than this limit for one that is parsed while it arrives.
    #[error("a body of more than {0} bytes")]
    StreamTooLarge(usize),
    /// The body does not have the expected form.
    #[error("{0}")]
    Malformed(String),
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system has no certificate authorities.
    #[error("the system has no certificate authorities: {0}; name a bundle in SSL_CERT_FILE")]
    Authorities(std::io::Error),
    /// The given certificates are malformed.
    #[error("the certificate authorities cannot be used: {0}")]
    Pem(String),
    /// rustls rejects the protocol versions or a certificate.
    #[error(transparent)]
    Config(#[from] rustls::Error),
}

/// The certificate authorities that a TLS connection trusts.
#[derive(Clone, Debug, Default)]
pub enum TrustedRoots {
    /// The system's authorities, or those in the file that `SSL_CERT_FILE` names.
    #[default]
    System,
    /// Only these, as PEM text.
    Pem(Vec<u8>),
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

    /// The same transport, which calls `inspect` with each request right before it is sent.
    #[must_use]
    pub fn inspected(self, inspect: impl Fn(&Request<Bytes>) + Clone + Send + Sync + 'static) -> Self {
        Self::new(service_fn(move |request: Request<Bytes>| {
            inspect(&request);
            let inner = self.clone();
            async move { inner.send(request).await }
        }))
    }

    /// A transport over the network.
    ///
    /// # Errors
    /// When there are no authorities to trust, or they are malformed.
    pub fn network(trust: &TrustedRoots) -> Result<Self, TlsError> {
        let mut tcp = HttpConnector::new();
        // The TLS connector on top handles https.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(3));
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let builder = match trust {
            TrustedRoots::System => builder
                .with_provider_and_native_roots(provider)
                .map_err(TlsError::Authorities)?,
            TrustedRoots::Pem(pem) => builder.with_tls_config(
                ClientConfig::builder_with_provider(Arc::new(provider))
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(parse_authorities(pem)?)
                    .with_no_client_auth(),
            ),
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .build(connector);
        Ok(Self::new(service_fn(move |mut request: Request<Bytes>| {
            let client = client.clone();
            let sink = request.extensions_mut().remove::<BodySink>();
            async move {
                let response = client
                    .request(request.map(Full::new))
                    .await
                    .map_err(|error| TransportError::Connection(headgate_telemetry::error_chain(&error)))?;
                let (mut parts, body) = response.into_parts();
                if let Some(sink) = sink.filter(|_| parts.status.is_success()) {
                    stream_body(body, &sink).await?;
                    parts.extensions.insert(Streamed);
                    return Ok(Response::from_parts(parts, Bytes::new()));
                }
                match read_body(body, MAX_RESPONSE_BYTES).await {
                    Ok(body) => Ok(Response::from_parts(parts, body)),
                    Err(BodyError::TooLarge(_)) => Err(TransportError::TooLarge),
                    Err(BodyError::Incomplete(why)) => Err(TransportError::Connection(why)),
                }
            }
        })))
    }

    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<BufferedResponse, TransportError> {
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
        let frame = frame.map_err(|error| TransportError::Connection(headgate_telemetry::error_chain(&error)))?;
        if let Ok(chunk) = frame.into_data()
            && !sink.write(chunk).await?
        {
            break;
        }
    }
    Ok(())
}

fn parse_authorities(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| TlsError::Pem(error.to_string()))?;
        store.add(certificate)?;
    }
    if store.is_empty() {
        return Err(TlsError::Pem("they contain no certificate".to_owned()));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn malformed_authorities_are_rejected() {
        for pem in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let trust = TrustedRoots::Pem(pem.as_bytes().to_vec());
            assert!(Transport::network(&trust).is_err(), "{pem:?}");
        }
    }

    /// Sends a request to a server whose response has a body of `bytes`, and a Content-Length of `missing` more.
    async fn respond(bytes: usize, missing: usize) -> Result<BufferedResponse, TransportError> {
        let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
        let transport = Transport::network(&TrustedRoots::Pem(authority.cert.pem().into_bytes())).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes + missing);
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client may close at its limit.
            let _ = stream.write_all(&vec![b' '; bytes]).await;
        };
        let request = Request::get(uri).body(Bytes::new()).unwrap();
        tokio::join!(transport.send(request), server).0
    }

    #[tokio::test]
    async fn response_is_complete_and_bounded_or_an_error() {
        assert_eq!(
            respond(MAX_RESPONSE_BYTES, 0).await.unwrap().body().len(),
            MAX_RESPONSE_BYTES
        );
        assert_eq!(
            respond(MAX_RESPONSE_BYTES + 1, 0).await.unwrap_err(),
            TransportError::TooLarge
        );
        assert!(matches!(respond(10, 1).await, Err(TransportError::Connection(_))));
    }
}
