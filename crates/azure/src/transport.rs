//! How bytes get to Azure: HTTP/1.1 over TCP or TLS (rustls with ring), or a service in the same process.
//!
//! An answer is whole or there is none, and is never larger than [`MOST_BYTES`]. Nothing is retried here and
//! no redirect followed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
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

/// A load balancer at ARM's limits is some 10 MiB.
pub const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Time to connect, so that a try is not spent on an address where nobody is.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that is idle for longer is closed; Azure's front ends give up at about four minutes.
const IDLE: Duration = Duration::from_secs(90);
/// Idle time before keepalive probes, and between them.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A whole answer.
pub type Answer = Response<Bytes>;

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection, or it ended.
    #[error("{0}")]
    Connection(String),
    /// The body is larger than anything that is asked for.
    #[error("a body of more than {MOST_BYTES} bytes")]
    TooLarge,
}

/// TLS cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The machine has no certificate authorities.
    #[error("no certificate authorities to trust: {0}; SSL_CERT_FILE names a bundle")]
    Authorities(std::io::Error),
    /// Those that were given cannot be used.
    #[error("the certificate authorities cannot be used: {0}")]
    Pem(String),
    /// Versions and algorithms do not fit.
    #[error(transparent)]
    Config(#[from] rustls::Error),
}

/// Whose certificates are believed.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// The machine's authorities, or those that `SSL_CERT_FILE` names.
    #[default]
    System,
    /// These only, as PEM text.
    Authorities(Vec<u8>),
}

/// A way to Azure; clones share its connections.
#[derive(Clone)]
pub struct Transport(BoxCloneSyncService<Request<Bytes>, Answer, TransportError>);

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    /// By any service, such as one in the same process.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<Request<Bytes>, Response = Answer, Error = TransportError> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        Self(BoxCloneSyncService::new(service))
    }

    /// Over the network.
    ///
    /// # Errors
    /// Where there are no authorities to trust.
    pub fn network(trust: &Trust) -> Result<Self, TlsError> {
        let mut tcp = HttpConnector::new();
        // The scheme is the next layer's business.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(3));
        let provider = rustls::crypto::ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let builder = match trust {
            Trust::System => builder
                .with_provider_and_native_roots(provider)
                .map_err(TlsError::Authorities)?,
            Trust::Authorities(pem) => builder.with_tls_config(
                ClientConfig::builder_with_provider(Arc::new(provider))
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(authorities(pem)?)
                    .with_no_client_auth(),
            ),
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self::new(service_fn(move |request: Request<Bytes>| {
            let client = client.clone();
            async move {
                let response = client
                    .request(request.map(Full::new))
                    .await
                    .map_err(|error| TransportError::Connection(headgate_telemetry::error_chain(&error)))?;
                let (parts, body) = response.into_parts();
                match Limited::new(body, MOST_BYTES).collect().await {
                    Ok(body) => Ok(Response::from_parts(parts, body.to_bytes())),
                    Err(error) if error.is::<LengthLimitError>() => Err(TransportError::TooLarge),
                    Err(error) => Err(TransportError::Connection(headgate_telemetry::error_chain(
                        error.as_ref(),
                    ))),
                }
            }
        })))
    }

    /// Sends a request.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Answer, TransportError> {
        self.0.clone().oneshot(request).await
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| TlsError::Pem(error.to_string()))?;
        store.add(certificate)?;
    }
    if store.is_empty() {
        return Err(TlsError::Pem("there is no certificate among them".to_owned()));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn authorities_that_are_none() {
        for pem in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let trust = Trust::Authorities(pem.as_bytes().to_vec());
            assert!(Transport::network(&trust).is_err(), "{pem:?}");
        }
    }

    /// What is made of an answer with a body of so many bytes, of which so many more were announced.
    async fn answered(bytes: usize, missing: usize) -> Result<Answer, TransportError> {
        let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
        let transport = Transport::network(&Trust::Authorities(authority.cert.pem().into_bytes())).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes + missing);
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client may have heard enough.
            let _ = stream.write_all(&vec![b' '; bytes]).await;
        };
        let request = Request::get(uri).body(Bytes::new()).unwrap();
        tokio::join!(transport.send(request), server).0
    }

    #[tokio::test]
    async fn an_answer_is_whole_and_bounded_or_there_is_none() {
        assert_eq!(answered(MOST_BYTES, 0).await.unwrap().body().len(), MOST_BYTES);
        assert_eq!(answered(MOST_BYTES + 1, 0).await.unwrap_err(), TransportError::TooLarge);
        assert!(matches!(answered(10, 1).await, Err(TransportError::Connection(_))));
    }
}
