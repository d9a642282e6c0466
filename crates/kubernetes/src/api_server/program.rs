//! Credentials from a program: the transport is made once the program has ended well.
//!
//! kube runs the program and waits for it. That is done on a thread of its own, by the first request, and again by
//! the next one after it has failed; others wait meanwhile. Later, when a token is about to expire, kube runs it aside
//! by itself.

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

use super::{ANSWER_TIMEOUT, Transport, transport};

/// Whether a program is run for the credentials.
pub(super) fn is_run(config: &kube::Config) -> bool {
    // A provider of the old kind may run one too.
    config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some()
}

/// A transport that is made by its first request.
#[derive(Clone)]
pub(super) struct AfterProgram {
    config: Arc<kube::Config>,
    made: Arc<OnceCell<Transport>>,
}

impl AfterProgram {
    pub(super) fn new(config: kube::Config) -> Self {
        Self {
            config: Arc::new(config),
            made: Arc::default(),
        }
    }

    async fn transport(&self) -> Result<Transport, BoxError> {
        let made = self.made.get_or_try_init(async || {
            let config = Arc::clone(&self.config);
            let mut making = tokio::task::spawn_blocking(move || transport(&config));
            let mut waited = Duration::ZERO;
            loop {
                if let Ok(made) = timeout(ANSWER_TIMEOUT, &mut making).await {
                    return Ok::<_, BoxError>(made??);
                }
                // It is not ended: the next would be no quicker.
                waited += ANSWER_TIMEOUT;
                tracing::warn!(
                    ?waited,
                    "the program that the kubeconfig runs for credentials has not ended; the API server is not asked before"
                );
            }
        });
        made.await.cloned()
    }
}

impl Service<Request<Body>> for AfterProgram {
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
