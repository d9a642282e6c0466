//! TLS for the emulator's listener, with a certificate made at the start. A handshake runs when its connection is first
//! read, so that a slow client delays no other one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use headgate_certificates::{CertificateAuthority, CertificateError};
use headgate_http::server::{Listener, ProxyProtocol};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// Names in the certificate.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The certificate of the TLS listener, and of the authority that signed it.
#[derive(Clone)]
pub(super) struct Tls {
    /// The certificate that clients must trust, as PEM text.
    pub(super) authority: String,
    acceptor: TlsAcceptor,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate cannot be made.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// The certificate cannot be used.
    #[error("cannot serve TLS: {0}")]
    Config(#[from] rustls::Error),
}

impl Tls {
    pub(super) fn new() -> Result<Self, TlsError> {
        let authority = CertificateAuthority::new("headgate-lab azure-emulator CA")?;
        let (certificate, key) = authority.issue_server_certificate("headgate-lab azure-emulator", &HOSTS)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(Self {
            authority: authority.certificate_pem,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// Accepts the connections of a listener over TLS.
    pub(super) fn accept_on(self, listener: TcpListener) -> TlsIncoming {
        TlsIncoming {
            listener,
            acceptor: self.acceptor,
        }
    }
}

/// A listener for TLS connections.
pub(super) struct TlsIncoming {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsIncoming {
    type Stream = LazyStream;

    async fn accept(&self) -> io::Result<LazyStream> {
        let stream = Listener::accept(&self.listener).await?;
        Ok(LazyStream::Handshake(Box::new(self.acceptor.accept(stream))))
    }

    async fn steer_away(&self, _: ProxyProtocol, _: impl FnMut(LazyStream) + Send) {}
}

/// A connection that performs its TLS handshake when it is first used.
pub(super) enum LazyStream {
    Handshake(Box<Accept<TcpStream>>),
    Open(Box<TlsStream<TcpStream>>),
    Failed,
}

impl LazyStream {
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let Self::Handshake(accept) = self {
            match Pin::new(accept.as_mut()).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(stream)) => *self = Self::Open(Box::new(stream)),
                Poll::Ready(Err(error)) => {
                    *self = Self::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Pin::new(stream.as_mut()))),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for LazyStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.poll_open(cx) {
            Poll::Ready(Ok(stream)) => stream.poll_read(cx, buffer),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for LazyStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_open(cx) {
            Poll::Ready(Ok(stream)) => stream.poll_write(cx, buffer),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before the handshake there is nothing to flush.
        match &mut *self {
            Self::Open(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Open(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}
