//! The connection to the API server: kube's client on a transport that detects a dead peer.
//!
//! A watch can be silent for minutes, so a connection that dies without an error would hide a taint until the timeout of
//! the watch (290 s). A shorter timeout would cost the API server a request a minute from every node. TCP keepalive and the
//! user timeout cost it nothing and detect the loss in less than a minute.
//!
//! Invariant: the client does not retry. A request of a caller is one request to the API server.
//!
//! If the kubeconfig runs a program for its credentials, `exec_credentials` runs it at the first request; after a 401 it loads them
//! again.
//!
//! In a Pod, kube reads the file of the API server's CA again when a connection is opened, at most once in a minute
//! (`kube::Config::root_cert_file`), so a rotation of the CA needs no restart.

mod exec_credentials;
mod program;

use std::error::Error;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_http::proxies::{Proxies, ProxyConnector};
use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Client;
use kube::client::{AuthError, Body, ConfigExt as _, RustlsTlsError};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::timeout::TimeoutLayer;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use exec_credentials::LazyTransport;
pub use program::Program;

/// Idle time before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long sent data or probes may stay unacknowledged. The loss is detected then, and counted when connecting again has
/// failed too, about 40 s after it happened. The documentation promises 60 s, and a test adds these times up.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the time from a request to the head of its response. The response to a watch begins at once.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// For how long connections are kept for later requests: longer than between two renewals of a leader's Lease, and shorter than one that gets
/// no answer. Where an API server behind a load balancer has died, one renewal meets such a connection, and the next opens one.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Why there is no client for the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {path} cannot be used: {cause}")]
    Kubeconfig {
        /// The path of the kubeconfig.
        path: PathBuf,
        /// The problem with the file or its content.
        cause: String,
    },
    /// The kubeconfig that `kubectl` uses cannot be used.
    #[error("the kubeconfig that kubectl uses cannot be used: {cause}")]
    DefaultKubeconfig {
        /// The problem with the file or its content.
        cause: String,
    },
    /// The kubeconfig lacks the named user.
    #[error("the kubeconfig has no user {user:?}; allowed: {known}")]
    NoSuchUser {
        /// The name of the user.
        user: String,
        /// The users that it has.
        known: String,
    },
    /// There is no Pod service account, and no kubeconfig was given.
    #[error("no Pod service account was found ({source}); outside a cluster give --kubeconfig FILE or set KUBECONFIG")]
    InCluster {
        /// The missing file or variable.
        #[source]
        source: kube::config::InClusterError,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "no cluster was found: no kubeconfig is at {files}, and this is no Pod; give --kubeconfig FILE, or set KUBECONFIG"
    )]
    NotFound {
        /// Where a kubeconfig was looked for.
        files: String,
    },
    /// The kubeconfig names a proxy of a kind that this transport does not support.
    #[error("the kubeconfig names the proxy {proxy}, which cannot be used; allowed in proxy-url: an http URL")]
    Proxy {
        /// The URL of the proxy, without its user.
        proxy: String,
    },
    /// The credentials or the TLS settings cannot be used.
    #[error("credentials or TLS settings for the API server cannot be used: {source}")]
    Credentials {
        /// The problem with them.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Loads the configuration from a kubeconfig, or from the Pod's service account if none is given.
///
/// # Errors
/// If the file or the service account is missing or cannot be used.
pub async fn load_config(kubeconfig: Option<&Path>) -> Result<kube::Config, ConnectError> {
    let Some(path) = kubeconfig else {
        return kube::Config::incluster().map_err(|source| ConnectError::InCluster { source });
    };
    from_file(path, &KubeConfigOptions::default()).await
}

/// Loads the configuration as `kubectl` does: from the given file, or from those of `KUBECONFIG`, else `~/.kube/config`. Only if these are
/// not there or empty, and no entry is named, it is that of the Pod's service account: it may belong to another cluster than a kubeconfig
/// that cannot be used. `entries` names the context, and the cluster and the user instead of the context's.
///
/// # Errors
/// If a file cannot be used or lacks a named entry, or no configuration is found.
pub async fn infer_config(
    kubeconfig: Option<&Path>,
    entries: &KubeConfigOptions,
) -> Result<kube::Config, ConnectError> {
    if let Some(path) = kubeconfig {
        return from_file(path, entries).await;
    }
    let files = default_kubeconfigs(std::env::var_os("KUBECONFIG"));
    if let Some(config) = from_files(&files, entries).await? {
        return Ok(config);
    }
    let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    kube::Config::incluster().map_err(|_| ConnectError::NotFound {
        files: files.join(", "),
    })
}

/// The kubeconfigs that `kubectl` merges.
fn default_kubeconfigs(variable: Option<OsString>) -> Vec<PathBuf> {
    let named = std::env::split_paths(&variable.unwrap_or_default())
        .filter(|path| !path.as_os_str().is_empty())
        .collect::<Vec<_>>();
    if named.is_empty() {
        return std::env::home_dir()
            .map(|home| home.join(".kube/config"))
            .into_iter()
            .collect();
    }
    named
}

/// Loads the configuration from those of the files that are there; none if they say nothing and no entry is named.
async fn from_files(paths: &[PathBuf], options: &KubeConfigOptions) -> Result<Option<kube::Config>, ConnectError> {
    let file = merged(paths)?;
    let KubeConfigOptions { context, cluster, user } = options;
    if is_empty(&file) && [context, cluster, user].into_iter().all(Option::is_none) {
        return Ok(None);
    }
    check_user(&file, options)?;
    let config = kube::Config::from_custom_kubeconfig(file, options).await;
    config.map(Some).map_err(|error| ConnectError::DefaultKubeconfig {
        cause: error.to_string(),
    })
}

fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, ConnectError> {
    paths.iter().try_fold(Kubeconfig::default(), |merged, path| {
        let next = match Kubeconfig::read_from(path) {
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => return Ok(merged),
            next => next,
        };
        next.and_then(|next| merged.merge(next))
            .map_err(|error| unusable(path, error))
    })
}

fn is_empty(file: &Kubeconfig) -> bool {
    file.contexts.is_empty()
        && file.clusters.is_empty()
        && file.auth_infos.is_empty()
        && file.current_context.as_deref().unwrap_or_default().is_empty()
}

/// Refuses a user that the kubeconfig does not have: kube would send requests without credentials.
fn check_user(file: &Kubeconfig, options: &KubeConfigOptions) -> Result<(), ConnectError> {
    let Some(user) = &options.user else { return Ok(()) };
    let known: Vec<_> = file.auth_infos.iter().map(|known| known.name.as_str()).collect();
    if known.contains(&user.as_str()) {
        Ok(())
    } else {
        Err(ConnectError::NoSuchUser {
            user: user.clone(),
            known: known.join(", "),
        })
    }
}

async fn from_file(path: &Path, options: &KubeConfigOptions) -> Result<kube::Config, ConnectError> {
    let file = Kubeconfig::read_from(path).map_err(|error| unusable(path, error))?;
    check_user(&file, options)?;
    let config = kube::Config::from_custom_kubeconfig(file, options).await;
    config.map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, error: KubeconfigError) -> ConnectError {
    ConnectError::Kubeconfig {
        path: path.to_owned(),
        cause: match error {
            KubeconfigError::ReadConfig(cause, _) => cause.to_string(),
            error => error.to_string(),
        },
    }
}

/// Builds a client that detects a dead peer and does not retry. Blocks until the program that the kubeconfig runs for its
/// credentials has ended, if there is one.
///
/// # Errors
/// If the proxy or the credentials cannot be used.
pub fn build_client(config: &kube::Config, program: Program) -> Result<Client, ConnectError> {
    let named = program.on(config);
    let built = transport(&named)?;
    let transport = renewed(named, Some(built));
    if program != Program::Cli {
        return Ok(over(transport, config));
    }
    let server = config.cluster_url.to_string();
    let server = server.trim_end_matches('/').to_owned();
    let named = ServiceBuilder::new()
        .map_err(move |error: BoxError| -> BoxError {
            Box::new(NoAnswer {
                server: server.clone(),
                cause: root_cause(&*error),
            })
        })
        .service(transport);
    Ok(over(named, config))
}

/// The API server did not answer a request of a command.
#[derive(Debug, thiserror::Error)]
#[error("the API server {server} does not answer: {cause}")]
pub struct NoAnswer {
    server: String,
    /// The innermost error.
    cause: String,
}

fn root_cause(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text
}

/// Builds the same client without blocking: the program for the credentials runs at the first request, and its failure is
/// the failure of that request.
///
/// # Errors
/// If the proxy cannot be used, or the credentials need no program and cannot be used.
pub fn build_lazy_client(config: &kube::Config, program: Program) -> Result<Client, ConnectError> {
    let named = program.on(config);
    proxies(config)?;
    let has_program = exec_credentials::run_program(config);
    let built = (!has_program).then(|| transport(&named)).transpose()?;
    Ok(over(renewed(named, built), config))
}

/// A transport that loads the credentials again after a 401, if anybody may have replaced them.
fn renewed(config: kube::Config, built: Option<Transport>) -> Transport {
    let is_replaced = exec_credentials::run_program(&config) || exec_credentials::are_files(&config);
    match built {
        Some(built) if !is_replaced => built,
        built => Transport::new(LazyTransport::new(config, built)),
    }
}

/// The proxy to the API server: that of the kubeconfig, or those of the environment. `NO_PROXY` is about the latter only.
///
/// kube has the environment's in `proxy_url`, too, without looking at `NO_PROXY`.
fn proxies(config: &kube::Config) -> Result<Option<Proxies>, ConnectError> {
    let Some(proxy) = &config.proxy_url else {
        return Ok(None);
    };
    let named = ["HTTPS_PROXY", "https_proxy"].map(|name| std::env::var(name).unwrap_or_default());
    if named
        .iter()
        .any(|value| value.parse::<Uri>().is_ok_and(|value| value == *proxy))
    {
        return Ok(Some(Proxies::from_env()));
    }
    if proxy.scheme_str() != Some("http") {
        let (scheme, host) = (proxy.scheme_str().unwrap_or_default(), proxy.host().unwrap_or_default());
        return Err(ConnectError::Proxy {
            proxy: format!("{scheme}://{host}"),
        });
    }
    Ok(Some(Proxies::always(proxy)))
}

/// Sends requests with credentials over connections that detect a dead peer.
type Transport = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Builds the transport. It runs the program for the credentials, for a certificate twice, and waits for it.
fn transport(config: &kube::Config) -> Result<Transport, ConnectError> {
    let wrap = |source| ConnectError::Credentials {
        source: Box::new(source),
    };
    let auth = config.auth_layer().map_err(wrap)?;
    let tls = {
        let mut config = config.clone();
        if auth.is_some() {
            config.auth_info.exec = None;
        }
        config.rustls_client_config().map_err(wrap)?
    };
    // kube takes a program that fails this time for one without a certificate.
    if auth.is_none() && config.auth_info.exec.is_some() && !tls.client_auth_cert_resolver.has_certs() {
        let cause = "the program gave neither a token nor a client certificate".to_owned();
        return Err(wrap(kube::Error::Auth(AuthError::AuthExec(cause))));
    }
    let mut tls = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into();
        let name = name.map_err(|source| wrap(kube::Error::RustlsTls(RustlsTlsError::InvalidServerName(source))))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let tls = tls.enable_http1();

    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let mut client = legacy::Client::builder(TokioExecutor::new());
    client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT);
    let http = match proxies(config)? {
        None => boxed(client.build(tls.wrap_connector(tcp))),
        Some(proxies) => boxed(client.build(tls.wrap_connector(ProxyConnector::new(tcp, proxies)))),
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        // The User-Agent, and the user that a kubeconfig impersonates.
        .layer(config.extra_headers_layer().map_err(wrap)?)
        // Over the program, too, which a request waits for where its token is about to expire.
        .layer(TimeoutLayer::new(RESPONSE_TIMEOUT))
        .option_layer(auth)
        .service(http);
    Ok(Transport::new(service))
}

fn boxed<C>(http: legacy::Client<C, Body>) -> Transport
where
    C: Connect + Clone + Send + Sync + 'static,
{
    Transport::new(http.map_err(BoxError::from))
}

fn over<S>(transport: S, config: &kube::Config) -> Client
where
    S: Service<Request<Body>, Response = Response<Incoming>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
{
    Client::new(transport, config.default_namespace.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headgate_test_kubernetes::scratch;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::{Barrier, watch};
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    #[test]
    fn a_silent_loss_is_detected_within_the_documented_minute() {
        let unacknowledged = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL + USER_TIMEOUT;
        let connecting_again = 2 * CONNECT_TIMEOUT;
        assert!(unacknowledged + connecting_again < Duration::from_mins(1));
    }

    #[tokio::test]
    async fn connections_are_kept_for_a_short_time() {
        const REQUESTS: usize = 8;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let (open, all_sent) = (watch::Sender::new(0_usize), Arc::new(Barrier::new(REQUESTS)));
        let opened = open.clone();
        let _server = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                opened.send_modify(|open| *open += 1);
                let (opened, all_sent) = (opened.clone(), Arc::clone(&all_sent));
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while connection.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                        all_sent.wait().await;
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                        connection.write_all(answer).await.unwrap();
                    }
                    opened.send_modify(|open| *open -= 1);
                });
            }
        }));
        let client = over(transport(&config).unwrap(), &config);
        let version = || client.request_text(Request::get("/version").body(Vec::new()).unwrap());
        for _ in 0..2 {
            let answers = futures::future::join_all((0..REQUESTS).map(|_| version())).await;
            assert!(answers.iter().all(Result::is_ok));
            assert_eq!(*open.borrow(), REQUESTS, "a burst opens no connection twice");
        }
        tokio::time::pause();
        tokio::time::advance(2 * IDLE_TIMEOUT).await;
        tokio::time::resume();
        let mut open = open.subscribe();
        let none = open.wait_for(|open| *open == 0);
        drop(tokio::time::timeout(Duration::from_secs(10), none).await.unwrap());
    }

    const USABLE: &str = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://a.example"}}]}"#;

    /// The answer names the server, the service account or the problem.
    async fn chosen(contents: &[&str], context: Option<&str>) -> String {
        let directory = scratch("kubeconfigs");
        let path = |(index, content): (usize, &&str)| {
            let path = directory.join(index.to_string());
            if *content != "missing" {
                std::fs::write(&path, content).unwrap();
            }
            path
        };
        let paths: Vec<_> = contents.iter().enumerate().map(path).collect();
        let options = KubeConfigOptions {
            context: context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        match from_files(&paths, &options).await {
            Ok(Some(config)) => config.cluster_url.to_string(),
            Ok(None) => "service account".to_owned(),
            Err(error) => error.to_string().replace(&*directory.to_string_lossy(), ""),
        }
    }

    #[tokio::test]
    async fn only_where_no_kubeconfig_says_anything_the_service_account_is_used() {
        let empty = r#"{"clusters": null, "current-context": ""}"#;
        for nothing in [&[][..], &["missing"], &[""], &[empty, "missing"]] {
            assert_eq!(chosen(nothing, None).await, "service account", "{nothing:?}");
            let error = chosen(nothing, Some("a")).await;
            let is_named = error.contains("cannot be used") && error.contains("context: a");
            assert!(is_named, "{error}");
        }
        for files in [&[USABLE][..], &["missing", USABLE], &[USABLE, "missing"]] {
            assert_eq!(chosen(files, None).await, "https://a.example/", "{files:?}");
        }
        let no_current = r#"{"contexts": [{"name": "a", "context": {"cluster": "a"}}]}"#;
        let no_cluster = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "b"}}]}"#;
        let missing_file = USABLE.replace(r#""server""#, r#""certificate-authority": "/missing", "server""#);
        for (files, words) in [
            (&["a: ["][..], "the kubeconfig /0 cannot be used: failed to parse"),
            (&[USABLE, "a: ["], "the kubeconfig /1 cannot be used: failed to parse"),
            (&[r#"{"current-context": "b"}"#], "context: b"),
            (&[no_current], "current context"),
            (&[no_cluster], "cluster of context: b"),
            (&[&missing_file], "/missing"),
        ] {
            let error = chosen(files, None).await;
            assert!(error.contains("cannot be used") && error.contains(words), "{error}");
        }
    }
}
