//! A connection to the receiver, directly or through an HTTP proxy with CONNECT (RFC 9110, section 9.3.6).
//!
//! `hyper-util` has a tunnel as well, behind a feature that nothing else here needs.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::Service;

/// The largest head of a proxy's response.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// The proxy refused the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy did not open a tunnel")]
pub(crate) struct TunnelRefused;

/// Connects to a URL's host and port.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    proxy: Option<Uri>,
}

impl Connector {
    pub(crate) fn new(tcp: HttpConnector, proxy: Option<Uri>) -> Self {
        Self { tcp, proxy }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connection = self.tcp.call(self.proxy.clone().unwrap_or_else(|| target.clone()));
        let is_tunnel = self.proxy.is_some();
        Box::pin(async move {
            let connection = connection.await?;
            if !is_tunnel {
                return Ok(connection);
            }
            let stream = open_tunnel(connection.into_inner(), &target).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// `host:port` of a URL, with the port of its scheme.
fn authority(target: &Uri) -> Option<String> {
    let port = target.port_u16().unwrap_or(match target.scheme_str() {
        Some("https") => 443,
        _ => 80,
    });
    Some(format!("{}:{port}", target.host()?))
}

async fn open_tunnel(mut proxy: TcpStream, target: &Uri) -> Result<TcpStream, BoxError> {
    let authority = authority(target).ok_or(TunnelRefused)?;
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    proxy.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the receiver.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES {
            return Err(TunnelRefused.into());
        }
        match proxy.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(TunnelRefused.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let is_open = [&b"HTTP/1.1 2"[..], b"HTTP/1.0 2"]
        .iter()
        .any(|start| head.starts_with(start));
    if is_open { Ok(proxy) } else { Err(TunnelRefused.into()) }
}
