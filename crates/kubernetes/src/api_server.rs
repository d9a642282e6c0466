//! The connection to the API server: kube's client on a transport that notices a dead peer.
//!
//! A watch is silent for minutes at a time, so a connection that died without a word would hide a
//! taint until the watch's own timeout (290 s). Shortening that timeout costs the API server a request
//! a minute from every node; TCP keepalive and the user timeout cost it nothing and notice in under a
//! minute. Retries are left to the callers: kube's own are off.
//!
//! Where the kubeconfig runs a program for its credentials, the first request starts it, aside, and waits
//! for it: nothing else does.

mod program;

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::watch;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};

use program::AfterProgram;

/// Idle time before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long sent data or probes may stay unacknowledged. The loss is then noticed, and counted once
/// connecting anew has failed too, some 40 s after it happened; 60 s are promised.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the API server may take to begin an answer. A watch's answer begins at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {path} cannot be used: {source}")]
    Kubeconfig {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no service account here.
    #[error("no Pod service account was found ({source}); outside a cluster give --kubeconfig FILE or set KUBECONFIG")]
    InCluster {
        /// What is missing.
        #[source]
        source: kube::config::InClusterError,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error("no cluster was found ({source}); give --kubeconfig FILE, or set KUBECONFIG")]
    Nowhere {
        /// What was tried.
        #[source]
        source: Box<kube::config::InferConfigError>,
    },
    /// A proxy is configured, which this transport does not speak.
    #[error(
        "the kubeconfig asks for the proxy {proxy}; headgate connects to the API server directly, remove proxy-url"
    )]
    Proxy {
        /// The proxy's address.
        proxy: String,
    },
    /// Credentials or TLS material cannot be used.
    #[error("credentials or TLS settings for the API server cannot be used: {source}")]
    Credentials {
        /// What is wrong with them.
        #[source]
        source: Box<kube::Error>,
    },
}

/// The configuration from a kubeconfig file, or from the Pod's service account where none is given.
///
/// # Errors
/// When the file or the service account is missing or cannot be used.
pub async fn load_config(kubeconfig: Option<&Path>) -> Result<kube::Config, ConnectError> {
    let Some(path) = kubeconfig else {
        return kube::Config::incluster().map_err(|source| ConnectError::InCluster { source });
    };
    let wrap = |source| ConnectError::Kubeconfig {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let file = Kubeconfig::read_from(path).map_err(wrap)?;
    kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(wrap)
}

/// The configuration a person's tools use: the file given, or what `kubectl` would find (`KUBECONFIG`,
/// `~/.kube/config`), or the Pod's service account.
///
/// # Errors
/// When the file cannot be used or nothing is found.
pub async fn infer_config(kubeconfig: Option<&Path>) -> Result<kube::Config, ConnectError> {
    if kubeconfig.is_some() {
        return load_config(kubeconfig).await;
    }
    kube::Config::infer().await.map_err(|source| ConnectError::Nowhere {
        source: Box::new(source),
    })
}

/// A way to the API server, and a sign of its answers.
#[derive(Clone)]
pub struct ApiServer {
    /// The client.
    pub client: Client,
    /// Counts good answers to lists and watches of Nodes. kube says when a watch fails, not when one that is
    /// taken up again has nothing to tell.
    pub node_answers: watch::Receiver<u64>,
}

/// A client that notices a dead peer and never retries of itself. It is whole when it is there: a program that
/// the kubeconfig runs for its credentials has ended then.
///
/// # Errors
/// When the configuration asks for a proxy or its credentials cannot be used.
pub fn build_client(config: &kube::Config) -> Result<Client, ConnectError> {
    direct(config)?;
    Ok(over(transport(config)?, config).client)
}

/// The same client, with a sign of its answers, and at once: what a program for the credentials does is seen by
/// those who ask the API server.
///
/// # Errors
/// When the configuration asks for a proxy, or its credentials cannot be used where they need no program.
pub fn build_lazy_client(config: &kube::Config) -> Result<ApiServer, ConnectError> {
    direct(config)?;
    if program::is_run(config) {
        return Ok(over(AfterProgram::new(config.clone()), config));
    }
    Ok(over(transport(config)?, config))
}

fn direct(config: &kube::Config) -> Result<(), ConnectError> {
    config.proxy_url.as_ref().map_or(Ok(()), |proxy| {
        Err(ConnectError::Proxy {
            proxy: proxy.to_string(),
        })
    })
}

/// Requests with credentials, over connections that notice a dead peer.
type Transport = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Makes the transport. A program for the credentials is run to its end here, twice.
fn transport(config: &kube::Config) -> Result<Transport, ConnectError> {
    let wrap = |source| ConnectError::Credentials {
        source: Box::new(source),
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let tls = config.rustls_https_connector_with_connector(tcp).map_err(wrap)?;
    let http = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(tls);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(wrap)?)
        .layer(tower::timeout::TimeoutLayer::new(ANSWER_TIMEOUT))
        .map_err(BoxError::from)
        .service(http);
    Ok(Transport::new(service))
}

fn over<S>(transport: S, config: &kube::Config) -> ApiServer
where
    S: Service<Request<Body>, Response = Response<Incoming>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
{
    let (answers, node_answers) = watch::channel(0);
    let service = CountNodeAnswers {
        inner: transport,
        answers,
    };
    ApiServer {
        client: Client::new(service, config.default_namespace.clone()),
        node_answers,
    }
}

/// Counts good answers to lists and watches of Nodes.
#[derive(Clone)]
struct CountNodeAnswers<S> {
    inner: S,
    answers: watch::Sender<u64>,
}

impl<S, B> Service<Request<Body>> for CountNodeAnswers<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let counts = request.method() == Method::GET && request.uri().path() == "/api/v1/nodes";
        let answer = self.inner.call(request);
        let answers = self.answers.clone();
        Box::pin(async move {
            let response = answer.await?;
            if counts && response.status().is_success() {
                answers.send_modify(|count| *count += 1);
            }
            Ok(response)
        })
    }
}
