//! Credentials from a program: the transport is built when the program has ended with success.
//!
//! kube runs the program and blocks until it ends, so a blocking thread does that, at the first request. Other requests wait
//! meanwhile. If the program fails, the next request runs it again. Later, when a token is about to expire, kube runs the
//! program by itself without blocking requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use kube::client::Body;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _};

use super::{RESPONSE_TIMEOUT, Transport, transport};

/// Whether the configuration runs a program for its credentials.
pub(super) fn is_needed(config: &kube::Config) -> bool {
    // An `auth-provider`, the older kind, can run one too.
    config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some()
}

/// A transport that the first request builds.
#[derive(Clone)]
pub(super) struct LazyTransport {
    config: Arc<kube::Config>,
    transport: Arc<OnceCell<Transport>>,
}

impl LazyTransport {
    pub(super) fn new(config: kube::Config) -> Self {
        Self {
            config: Arc::new(config),
            transport: Arc::default(),
        }
    }

    async fn transport(&self) -> Result<Transport, BoxError> {
        let transport = self.transport.get_or_try_init(async || {
            let config = Arc::clone(&self.config);
            let mut build = tokio::task::spawn_blocking(move || transport(&config));
            let mut waited = Duration::ZERO;
            loop {
                if let Ok(built) = timeout(RESPONSE_TIMEOUT, &mut build).await {
                    return Ok::<_, BoxError>(built??);
                }
                // It is not killed: the next one would not be faster.
                waited += RESPONSE_TIMEOUT;
                tracing::warn!(
                    ?waited,
                    "credentials program of the kubeconfig still running, requests to the api server wait for it"
                );
            }
        });
        transport.await.cloned()
    }
}

impl Service<Request<Body>> for LazyTransport {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.transport().await?.oneshot(request).await })
    }
}
