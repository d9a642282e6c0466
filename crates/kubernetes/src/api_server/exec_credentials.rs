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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use headgate_test_kubernetes::scratch;
    use serde_json::json;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    /// The program of a kubeconfig.
    struct Credentials {
        directory: PathBuf,
        config: kube::Config,
    }

    impl Credentials {
        /// A program that prints the file `credentials`, after `script`, which has the number of this run in `n`.
        fn new(server: &str, script: &str) -> Self {
            let directory = scratch("program");
            let script = format!(
                "cd {}; echo >> runs; n=$(wc -l < runs); {script}; cat credentials",
                directory.display()
            );
            let mut config = kube::Config::new(server.parse().unwrap());
            config.auth_info = serde_json::from_value(json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh", "args": ["-c", script], "interactiveMode": "Never"}}))
            .unwrap();
            Self { directory, config }
        }

        fn print(&self, status: &serde_json::Value) {
            let credential =
                json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
            std::fs::write(self.directory.join("credentials"), credential.to_string()).unwrap();
        }

        fn runs(&self) -> usize {
            std::fs::read(self.directory.join("runs")).map_or(0, |runs| runs.len())
        }
    }

    fn request() -> Request<Body> {
        Request::get("/version").body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_hangs_is_the_failure_of_its_request() {
        let credentials = Credentials::new("http://127.0.0.1:9", "[ ! -e hang ] || exec sleep 2");
        // It has expired, so each request asks the program.
        credentials.print(&json!({"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}));
        let transport = transport(&credentials.config).unwrap();
        std::fs::write(credentials.directory.join("hang"), "").unwrap();
        let answer = tokio::spawn(transport.oneshot(request()));
        for _ in 0..100 {
            yield_now().await;
        }
        advance(RESPONSE_TIMEOUT).await;
        let error = answer.await.unwrap().unwrap_err();
        assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    }

    #[tokio::test]
    async fn no_transport_is_without_the_credentials_of_its_program() {
        let certificate = json!({"clientCertificateData": "c", "clientKeyData": "k"});
        for (script, status) in [
            ("[ $n != 1 ] || exit 1", &certificate),
            ("[ $n != 2 ] || exit 1", &certificate),
            ("true", &json!({})),
        ] {
            let credentials = Credentials::new("https://127.0.0.1:9", script);
            credentials.print(status);
            assert!(transport(&credentials.config).is_err(), "{script} {status}");
        }
        let credentials = Credentials::new("https://127.0.0.1:9", "true");
        credentials.print(&json!({"token": "t"}));
        transport(&credentials.config).unwrap();
        assert_eq!(credentials.runs(), 1);
    }
}
