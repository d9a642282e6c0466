//! The HTTP/1.1 client: to Azure, a webhook and a collector over TLS and the environment's proxies, and over plain HTTP to
//! servers of the node.
//!
//! Every response is complete and within the [`Limits`], or an error; only [`HttpClient::start`] leaves the time to its
//! caller. Certificates are verified. Redirects are not followed and nothing is sent again. Connections are reused,
//! and TCP keepalive finds a dead peer before a long timeout ends.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use crate::body::{BodyError, read_body};
use crate::proxies::{Proxies, ProxyConnector, ProxyFailure};

/// Idle time before the first TCP keepalive probe, and time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered TCP keepalive probes that end a connection.
const KEEPALIVE_RETRIES: u32 = 3;
/// Time after which an idle connection is closed. Azure's front ends close at about four minutes.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The certificate authorities that a TLS connection trusts.
#[derive(Clone, Debug, Default)]
pub enum TrustedRoots {
    /// The system's authorities, or those in the file that `SSL_CERT_FILE` names.
    #[default]
    System,
    /// Only these, as PEM text.
    Pem(Vec<u8>),
    /// None: for a server without TLS.
    Empty,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system has no certificate authorities.
    #[error("the system has no certificate authorities: {0}; name a bundle in SSL_CERT_FILE")]
    Authorities(io::Error),
    /// The given certificates are malformed.
    #[error("the certificate authorities cannot be used: {0}")]
    Pem(String),
    /// rustls rejects the protocol versions or a certificate.
    #[error(transparent)]
    Config(#[from] rustls::Error),
}

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The response was not complete in time.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The proxy was not reached, or it refused.
    #[error("{0}")]
    Proxy(String),
    /// The certificate is not trusted, or TLS failed otherwise.
    #[error("{0}")]
    Tls(String),
    /// The connection could not be made, it ended early, or the response is not HTTP.
    #[error("{text}")]
    Connection {
        /// The error of the system call, if it was one.
        kind: io::ErrorKind,
        /// The error with its causes.
        text: String,
    },
    /// The body is larger than the limit.
    #[error("a body of more than {0} bytes")]
    TooLarge(usize),
}

/// The bounds of each request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the TCP connection, so that an address without a server does not use up the time.
    pub connect_timeout: Duration,
    /// For connection, response and body together.
    pub timeout: Duration,
    /// Of the response.
    pub max_body_bytes: usize,
}

/// A client for servers of the node, which answer from memory: plain HTTP, and never through a proxy.
pub type PlainClient = HttpClient<HttpConnector>;

/// Sends requests over TLS or plain HTTP, through a proxy where there is one. Clones share connections.
#[derive(Clone, Debug)]
pub struct HttpClient<C = HttpsConnector<ProxyConnector>> {
    client: Client<C, Full<Bytes>>,
    proxies: Option<Proxies>,
    limits: Limits,
}

impl PlainClient {
    /// A client whose requests take `timeout` at most, connecting included.
    pub fn plain(timeout: Duration, max_body_bytes: usize) -> Self {
        Self::plain_within(Limits {
            connect_timeout: timeout,
            timeout,
            max_body_bytes,
        })
    }

    /// A client with these limits.
    pub fn plain_within(limits: Limits) -> Self {
        Self {
            client: pooled(tcp(limits.connect_timeout)),
            proxies: None,
            limits,
        }
    }
}

impl HttpClient {
    /// A client for any server.
    ///
    /// # Errors
    /// When there are no authorities to trust, or they are malformed.
    pub fn new(roots: &TrustedRoots, proxies: Proxies, limits: Limits) -> Result<Self, TlsError> {
        let mut tcp = tcp(limits.connect_timeout);
        // The TLS connector on top handles https.
        tcp.enforce_http(false);
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let with_roots = |roots| {
            let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_no_client_auth();
            Ok::<_, TlsError>(config)
        };
        let builder = match roots {
            TrustedRoots::System => builder
                .with_provider_and_native_roots(provider)
                .map_err(TlsError::Authorities)?,
            TrustedRoots::Pem(pem) => builder.with_tls_config(with_roots(parse_authorities(pem)?)?),
            TrustedRoots::Empty => builder.with_tls_config(with_roots(RootCertStore::empty())?),
        };
        let connector = builder
            .https_or_http()
            .enable_http1()
            .wrap_connector(ProxyConnector::new(tcp, proxies.clone()));
        Ok(Self {
            client: pooled(connector),
            proxies: Some(proxies),
            limits,
        })
    }
}

fn tcp(connect_timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect_timeout));
    tcp.set_keepalive(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp
}

fn pooled<C: Connect + Clone>(connector: C) -> Client<C, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(connector)
}

impl<C: Connect + Clone + Send + Sync + 'static> HttpClient<C> {
    /// Sends a GET with these headers; returns status and body.
    ///
    /// # Errors
    /// When there is no complete response within the limits.
    pub async fn get(&self, uri: Uri, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes), HttpError> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::new()).map_err(|error| HttpError::Connection {
            kind: io::ErrorKind::InvalidInput,
            text: error.to_string(),
        })?;
        let response = self.exchange(request).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request; returns the response with its whole body.
    ///
    /// # Errors
    /// When there is no complete response within the limits.
    pub async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let response = self.start(request).await?;
            self.finish(response).await
        };
        let exchanged = timeout(self.limits.timeout, exchange).await;
        exchanged.unwrap_or(Err(HttpError::Timeout(self.limits.timeout)))
    }

    /// Sends a request; returns the head of the response. The caller bounds the time.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn start(&self, mut request: Request<Bytes>) -> Result<Response<Incoming>, HttpError> {
        let proxies = self.proxies.as_ref();
        if let Some(header) = proxies.and_then(|proxies| proxies.authorization(request.uri())) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, header);
        }
        let response = self.client.request(request.map(Full::new)).await;
        response.map_err(|error| HttpError::new(&error))
    }

    /// Reads the body of a response. The caller bounds the time.
    ///
    /// # Errors
    /// When it is larger than the limit, or its end does not arrive.
    pub async fn finish(&self, response: Response<Incoming>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = response.into_parts();
        let body = read_body(body, self.limits.max_body_bytes).await?;
        Ok(Response::from_parts(parts, body))
    }
}

impl HttpError {
    /// The category of a client's error, by its causes.
    fn new(error: &(dyn Error + 'static)) -> Self {
        let (mut cause, mut kind) = (Some(error), io::ErrorKind::Other);
        let text = || headgate_core::telemetry::error_chain(error);
        while let Some(error) = cause {
            if error.is::<ProxyFailure>() {
                return Self::Proxy(error.to_string());
            }
            if error.is::<rustls::Error>() {
                return Self::Tls(text());
            }
            cause = error.source();
            if let Some(error) = error.downcast_ref::<io::Error>() {
                kind = error.kind();
                // An I/O error hides what it wraps from `source`.
                let inner = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
                cause = inner.or(cause);
            }
        }
        Self::Connection { kind, text: text() }
    }
}

impl From<BodyError> for HttpError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(limit) => Self::TooLarge(limit),
            BodyError::Incomplete(text) => Self::Connection {
                kind: io::ErrorKind::UnexpectedEof,
                text,
            },
        }
    }
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

    const MAX_BODY_BYTES: usize = 1024 * 1024;

    #[test]
    fn malformed_authorities_are_rejected() {
        for pem in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert!(parse_authorities(pem.as_bytes()).is_err(), "{pem:?}");
        }
    }

    /// Sends a request to a server whose response has a body of `bytes`, and a Content-Length of `missing` more.
    async fn respond(bytes: usize, missing: usize) -> Result<(StatusCode, Bytes), HttpError> {
        let client = PlainClient::plain(Duration::from_mins(1), MAX_BODY_BYTES);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes + missing);
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client may close at its limit.
            let _ = stream.write_all(&vec![b' '; bytes]).await;
        };
        tokio::join!(client.get(uri, &[]), server).0
    }

    #[tokio::test]
    async fn response_is_complete_and_bounded_or_an_error() {
        assert_eq!(respond(MAX_BODY_BYTES, 0).await.unwrap().1.len(), MAX_BODY_BYTES);
        let error = respond(MAX_BODY_BYTES + 1, 0).await.unwrap_err();
        assert_eq!(error, HttpError::TooLarge(MAX_BODY_BYTES));
        assert!(matches!(respond(10, 1).await, Err(HttpError::Connection { .. })));
    }
}
