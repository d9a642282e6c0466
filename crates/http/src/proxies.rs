//! Which proxy a request takes, by the variables that curl reads: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in
//! capitals or not.
//!
//! A https URL is reached through a tunnel (CONNECT); a request with an http URL is sent to the proxy itself. Addresses of
//! this machine and of its link, IMDS among them, are reached directly, whatever the variables say.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt as _};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The proxies of a process, or of one server. Clones share them.
#[derive(Clone)]
pub struct Proxies {
    matcher: Arc<Matcher>,
    /// Whether addresses of this machine and of its link are reached through them, too.
    has_near: bool,
}

/// No connection through this proxy.
#[derive(Debug, thiserror::Error)]
#[error("the proxy {proxy}: {reason}")]
pub(crate) struct ProxyFailure {
    proxy: Uri,
    reason: String,
}

impl Proxies {
    /// Those that the environment names.
    pub fn from_env() -> Self {
        Self::from(Matcher::from_env())
    }

    /// This one for every URL.
    pub fn always(proxy: &Uri) -> Self {
        Self {
            matcher: Arc::new(Matcher::builder().all(proxy.to_string()).build()),
            has_near: true,
        }
    }

    fn intercept(&self, target: &Uri) -> Option<Intercept> {
        let found = self.matcher.intercept(target);
        found.filter(|_| self.has_near || !is_near(target))
    }

    /// The header that the proxy of a plain http URL asks for.
    pub(crate) fn authorization(&self, target: &Uri) -> Option<HeaderValue> {
        let is_plain = target.scheme_str() == Some("http");
        let proxy = self.intercept(target).filter(|_| is_plain)?;
        proxy.basic_auth().cloned()
    }
}

impl From<Matcher> for Proxies {
    fn from(matcher: Matcher) -> Self {
        Self {
            matcher: Arc::new(matcher),
            has_near: false,
        }
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without passwords.
        self.matcher.fmt(f)
    }
}

/// Whether a URL is of this machine or its link.
fn is_near(target: &Uri) -> bool {
    let host = target.host().unwrap_or_default();
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unicast_link_local(),
        Err(_) => host == "localhost",
    }
}

/// Connects to a URL's host, or to its proxy.
#[derive(Clone, Debug)]
pub struct ProxyConnector {
    tcp: HttpConnector,
    proxies: Proxies,
}

impl ProxyConnector {
    /// Connects with `tcp`, which must not be limited to http URLs.
    pub fn new(tcp: HttpConnector, proxies: Proxies) -> Self {
        Self { tcp, proxies }
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = ProxyStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ProxyStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (tcp, proxy) = (self.tcp.clone(), self.proxies.intercept(&target));
        Box::pin(async move {
            let Some(proxy) = proxy else {
                let stream = tcp.oneshot(target).await?;
                return Ok(ProxyStream {
                    stream,
                    is_to_proxy: false,
                });
            };
            let is_to_proxy = target.scheme_str() == Some("http");
            let connected = connect_through(tcp, &proxy, target, is_to_proxy).await;
            let stream = connected.map_err(|reason| ProxyFailure {
                proxy: proxy.uri().clone(),
                reason,
            })?;
            Ok(ProxyStream { stream, is_to_proxy })
        })
    }
}

async fn connect_through(
    tcp: HttpConnector,
    proxy: &Intercept,
    target: Uri,
    is_to_proxy: bool,
) -> Result<TokioIo<TcpStream>, String> {
    if proxy.uri().scheme_str() != Some("http") {
        return Err("only proxies with an http URL can be used".to_owned());
    }
    if is_to_proxy {
        let connected = tcp.oneshot(proxy.uri().clone()).await;
        return connected.map_err(|error| headgate_core::telemetry::error_chain(&error));
    }
    let mut tunnel = Tunnel::new(proxy.uri().clone(), tcp);
    if let Some(authorization) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(authorization.clone());
    }
    let connected = tunnel.oneshot(target).await;
    connected.map_err(|error| headgate_core::telemetry::error_chain(&error))
}

/// A connection that knows whether requests on it are a proxy's.
#[derive(Debug)]
pub struct ProxyStream {
    stream: TokioIo<TcpStream>,
    is_to_proxy: bool,
}

impl Connection for ProxyStream {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_to_proxy)
    }
}

impl Read for ProxyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for ProxyStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_excluded_addresses_are_reached_directly() {
        let proxies = Proxies::from(
            Matcher::builder()
                .all("http://user:password@proxy:3128")
                .no("example.com, 10.0.0.0/8")
                .build(),
        );
        for (url, is_proxied) in [
            ("https://management.azure.com/", true),
            ("http://collector:4318/v1/traces", true),
            ("https://168.63.129.16/", true),
            ("https://hooks.example.com/", false),
            ("http://10.1.2.3/", false),
            ("http://localhost:4318/", false),
            ("https://127.0.0.1/", false),
            ("http://[::1]/", false),
            ("http://[fe80::1]/", false),
            ("http://169.254.169.254/metadata/identity/oauth2/token", false),
        ] {
            let target = Uri::from_static(url);
            assert_eq!(proxies.intercept(&target).is_some(), is_proxied, "{url}");
            let has_header = is_proxied && url.starts_with("http:");
            assert_eq!(proxies.authorization(&target).is_some(), has_header, "{url}");
        }
        assert!(!format!("{proxies:?}").contains("password"));
    }

    #[test]
    fn a_proxy_for_every_url_is_one_for_near_addresses_too() {
        let proxies = Proxies::always(&Uri::from_static("http://user:password@proxy:3128"));
        for url in [
            "https://127.0.0.1:6443/",
            "https://localhost:6443/",
            "https://10.1.2.3/",
        ] {
            let found = proxies.intercept(&Uri::from_static(url)).unwrap();
            assert!(found.basic_auth().is_some(), "{url}");
        }
        assert!(!format!("{proxies:?}").contains("password"));
    }
}
