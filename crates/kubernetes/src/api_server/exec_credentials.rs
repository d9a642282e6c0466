//! Credentials from a program, or from files of a certificate or a token: the transport is built when they are there, and again when the API
//! server does not accept them any more.
//!
//! kube runs the program and blocks until it ends, so a blocking thread does that, at the first request. Other requests wait
//! meanwhile. If the program fails, the next request runs it again. Later, when a token is about to expire, kube runs the
//! program by itself without blocking requests. After a 401 the credentials are loaded again while requests go on with the old ones:
//! nobody else renews a certificate, or a token without a time, and kube reads the file of a token by the wall clock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use kube::client::Body;
use tokio::sync::{Mutex, OnceCell, watch};
use tokio::time::{Instant, timeout};
use tower::{BoxError, Service, ServiceExt as _};

use super::{RESPONSE_TIMEOUT, Transport, transport};

/// From one renewal to the next.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

/// Whether the configuration runs a program for its credentials.
pub(super) fn run_program(config: &kube::Config) -> bool {
    // An `auth-provider`, the older kind, can run one too.
    config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some()
}

/// Whether the credentials are a file that another program may replace.
pub(super) fn are_files(config: &kube::Config) -> bool {
    config.auth_info.client_certificate.is_some() || config.auth_info.token_file.is_some()
}

/// A transport that the first request builds, and a 401 builds again.
#[derive(Clone)]
pub(super) struct LazyTransport {
    config: Arc<kube::Config>,
    current: Arc<OnceCell<watch::Sender<Transport>>>,
    /// When the last renewal began. A renewal holds it.
    renewed_at: Arc<Mutex<Option<Instant>>>,
}

impl LazyTransport {
    pub(super) fn new(config: kube::Config, built: Option<Transport>) -> Self {
        Self {
            config: Arc::new(config),
            current: Arc::new(OnceCell::new_with(built.map(watch::Sender::new))),
            renewed_at: Arc::default(),
        }
    }

    async fn build(config: Arc<kube::Config>) -> Result<Transport, BoxError> {
        let mut build = tokio::task::spawn_blocking(move || transport(&config));
        let mut waited = Duration::ZERO;
        loop {
            if let Ok(built) = timeout(RESPONSE_TIMEOUT, &mut build).await {
                return Ok(built??);
            }
            // It is not killed: the next one would not be faster.
            waited += RESPONSE_TIMEOUT;
            tracing::warn!(?waited, "credentials program of the kubeconfig still running");
        }
    }

    fn renew(&self, current: watch::Sender<Transport>) {
        let Ok(mut renewed_at) = Arc::clone(&self.renewed_at).try_lock_owned() else {
            return;
        };
        if renewed_at.is_some_and(|at| at.elapsed() < RENEWAL_PAUSE) {
            return;
        }
        *renewed_at = Some(Instant::now());
        let config = Arc::clone(&self.config);
        tokio::spawn(async move {
            match Self::build(config).await {
                Ok(built) => drop(current.send_replace(built)),
                Err(error) => tracing::warn!(%error, "credentials that the api server does not accept not renewed"),
            }
            drop(renewed_at);
        });
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
        Box::pin(async move {
            let first = async || Self::build(Arc::clone(&this.config)).await.map(watch::Sender::new);
            let current = this.current.get_or_try_init(first).await?;
            let transport = current.borrow().clone();
            let response = transport.oneshot(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                this.renew(current.clone());
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex as Lock;

    use headgate_test_kubernetes::{eventually, met, scratch};
    use hyper::StatusCode;
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;
    use tokio::task::yield_now;
    use tokio::time::{advance, sleep};

    use super::super::renewed;
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

    /// An API server that accepts the one token, and answers 401 to others.
    async fn server(accepted: Arc<Lock<&'static str>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let accepted = Arc::clone(&accepted);
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let (mut line, mut is_accepted) = (String::new(), false);
                    while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                        is_accepted |= line
                            .trim_end()
                            .ends_with(&format!("Bearer {}", accepted.lock().unwrap()));
                        if line == "\r\n" {
                            let status = if is_accepted { "200 OK" } else { "401 Unauthorized" };
                            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                            stream.write_all(answer.as_bytes()).await.unwrap();
                            is_accepted = false;
                        }
                        line.clear();
                    }
                });
            }
        });
        address
    }

    fn request() -> Request<Body> {
        Request::get("/version").body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn a_token_that_the_server_no_longer_accepts_is_replaced_at_most_once_in_the_pause() {
        let accepted = Arc::new(Lock::new("first"));
        let credentials = Credentials::new(&server(Arc::clone(&accepted)).await, "true");
        credentials.print(&json!({"token": "first"}));
        let transport = renewed(
            credentials.config.clone(),
            Some(transport(&credentials.config).unwrap()),
        );
        let status = async || transport.clone().oneshot(request()).await.unwrap().status();
        assert_eq!(status().await, StatusCode::OK);

        *accepted.lock().unwrap() = "second";
        credentials.print(&json!({"token": "second"}));
        let ran = credentials.runs();
        assert_eq!(status().await, StatusCode::UNAUTHORIZED);
        eventually(Duration::from_secs(10), "the next token", async || {
            let status = status().await;
            met(status == StatusCode::OK, status)
        })
        .await;
        let renewed = credentials.runs();
        assert!(renewed > ran);

        *accepted.lock().unwrap() = "third";
        credentials.print(&json!({"token": "third"}));
        for _ in 0..10 {
            assert_eq!(status().await, StatusCode::UNAUTHORIZED);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(credentials.runs(), renewed);
    }

    #[tokio::test]
    async fn a_file_of_a_token_is_read_again_when_the_server_no_longer_accepts_it() {
        let accepted = Arc::new(Lock::new("first"));
        let file = scratch("token").join("token");
        std::fs::write(&file, "first").unwrap();
        let mut config = kube::Config::new(server(Arc::clone(&accepted)).await.parse().unwrap());
        config.auth_info.token_file = Some(file.display().to_string());
        let transport = renewed(config.clone(), Some(transport(&config).unwrap()));
        let status = async || transport.clone().oneshot(request()).await.unwrap().status();
        assert_eq!(status().await, StatusCode::OK);
        *accepted.lock().unwrap() = "second";
        std::fs::write(&file, "second").unwrap();
        eventually(Duration::from_secs(10), "the next token", async || {
            let status = status().await;
            met(status == StatusCode::OK, status)
        })
        .await;
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
