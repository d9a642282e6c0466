//! The command: the emulator on listeners, ARM over plain HTTP and over TLS, and the control API.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Clock;
use headgate_http::body::{BodyError, read_body};
use headgate_http::server::{self, CloseWithoutAnswer, Limits, Metrics, ServeError};
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::chunked_body::chunked_body;
use super::error::ErrorResponse;
use super::seed::{Seed, SeedError};
use super::settings::Settings;
use super::tls::{Tls, TlsError};
use super::{ConnectionCut, Emulator};

/// Size of a request's body, as ARM's.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Limits of connections. Large answers and stalls take up to ten minutes. No load balancer probes the emulator, so
/// idle connections are closed at once when it stops.
const LIMITS: Limits = Limits {
    linger_timeout: Duration::ZERO,
    answer_timeout: Duration::from_mins(15),
    write_timeout: Duration::from_mins(1),
    ..Limits::HEALTH
};

/// The flags of `headgate-lab azure-emulator`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of ARM, tokens and IMDS over plain HTTP.
    pub listen: SocketAddr,
    /// Address of the same over TLS.
    pub tls_listen: Option<SocketAddr>,
    /// File for the certificate of the authority that signs the TLS certificate.
    pub tls_ca_file: Option<PathBuf>,
    /// Address of the control API.
    pub control_listen: SocketAddr,
    /// The seed file; without it the emulator starts empty.
    pub seed: Option<PathBuf>,
    /// File for the bound addresses, as JSON.
    pub addresses_file: Option<PathBuf>,
    /// Settings at the start; the control API can change them.
    pub settings: Settings,
}

/// The addresses that the listeners are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Addresses {
    /// ARM, tokens and IMDS over plain HTTP.
    pub arm: SocketAddr,
    /// The same over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arm_tls: Option<SocketAddr>,
    /// The control API, `/emulator/v1`.
    pub control: SocketAddr,
}

/// The emulator cannot start, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The seed cannot be used.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// A listener cannot be bound.
    #[error("cannot listen on {address}: {source}; choose another address, or port 0 for a free one")]
    Bind {
        /// The address to bind.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The addresses file or the authority's certificate cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The file to write.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system has no random number, or cannot report a signal or an address.
    #[error("the operating system reports an error: {0}")]
    System(io::Error),
    /// A listener has failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Binds the listeners and serves requests until `stop` completes.
///
/// # Errors
/// The emulator cannot start, or a listener fails.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), ListenError> {
    let seed = options.seed.as_deref().map(Seed::read).transpose()?.unwrap_or_default();
    let random = getrandom::u64().map_err(|error| ListenError::System(error.into()))?;
    let emulator = Emulator::new(options.settings.clone(), seed, Clock::System, random)?;
    let arm = bind(options.listen)?;
    let control = bind(options.control_listen)?;
    let tls = options
        .tls_listen
        .map(|address| Ok::<_, ListenError>((bind(address)?, Tls::new()?)))
        .transpose()?;
    let address = |listener: &TcpListener| listener.local_addr().map_err(ListenError::System);
    let addresses = Addresses {
        arm: address(&arm)?,
        arm_tls: tls.as_ref().map(|(listener, _)| address(listener)).transpose()?,
        control: address(&control)?,
    };
    if let (Some(file), Some((_, tls))) = (&options.tls_ca_file, &tls) {
        write(file, tls.authority.as_bytes())?;
    }
    if let Some(file) = &options.addresses_file {
        write(
            file,
            &serde_json::to_vec(&addresses).map_err(|error| ListenError::System(error.into()))?,
        )?;
    }
    tracing::info!(arm = %addresses.arm, armTls = addresses.arm_tls.map(tracing::field::display), control = %addresses.control, "ARM emulator started");

    let metrics = Metrics::register(&mut Registry::default());
    let stop_listeners = CancellationToken::new();
    let plain = server::serve(
        "arm",
        arm,
        emulator.router("http"),
        LIMITS,
        &metrics,
        stop_listeners.clone(),
    );
    let controls = server::serve(
        "control",
        control,
        emulator.control_router(),
        LIMITS,
        &metrics,
        stop_listeners.clone(),
    );
    let encrypted = async {
        match tls {
            Some((listener, tls)) => {
                let incoming = tls.accept_on(listener);
                server::serve(
                    "armTls",
                    incoming,
                    emulator.router("https"),
                    LIMITS,
                    &metrics,
                    stop_listeners.clone(),
                )
                .await
            }
            None => Ok(()),
        }
    };
    let stopped = async {
        stop.await;
        stop_listeners.cancel();
        Ok(())
    };
    let served = tokio::try_join!(plain, controls, encrypted, stopped);
    if let Some(file) = &options.addresses_file {
        // The addresses in it are no longer served.
        let _ = std::fs::remove_file(file);
    }
    served.map(drop).map_err(ListenError::from)
}

fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    // With SO_REUSEPORT, two emulators on one address would each receive some of the requests.
    let bound = server::bind_exclusive(address);
    bound.map_err(|source| ListenError::Bind { address, source })
}

/// Replaces a file atomically.
fn write(file: &Path, text: &[u8]) -> Result<(), ListenError> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Readable by every user: addresses and certificates are not secret.
    let readable = std::fs::Permissions::from_mode(0o644);
    let temporary = tempfile::Builder::new()
        .permissions(readable)
        .tempfile_in(directory.unwrap_or(Path::new(".")));
    let written = temporary.and_then(|mut temporary| {
        io::Write::write_all(&mut temporary, text)?;
        temporary.persist(file)?;
        Ok(())
    });
    written.map_err(|source| ListenError::Write {
        file: file.to_owned(),
        source,
    })
}

impl Emulator {
    /// The router of a listener for ARM; `scheme` is the one of the URLs in its answers.
    fn router(&self, scheme: &'static str) -> Router {
        let emulator = self.clone();
        Router::new().fallback(move |request: Request<Body>| {
            let emulator = emulator.clone();
            async move {
                let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
                let authority = request.uri().authority().map(axum::http::uri::Authority::as_str);
                let base = format!("{scheme}://{}", host.or(authority).unwrap_or("localhost"));
                match buffer_request(request).await {
                    Ok(request) => emulator
                        .call(request, &base)
                        .await
                        .map_or_else(close_without_response, |answer| answer.map(chunked_body)),
                    Err(error) => error.response().map(chunked_body),
                }
            }
        })
    }

    /// The router of the control API's listener.
    fn control_router(&self) -> Router {
        let emulator = self.clone();
        Router::new().fallback(move |request: Request<Body>| {
            let emulator = emulator.clone();
            async move {
                let answer = match buffer_request(request).await {
                    Ok(request) => emulator.control(&request),
                    Err(error) => error.response(),
                };
                answer.map(chunked_body)
            }
        })
    }
}

fn close_without_response(_: ConnectionCut) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(CloseWithoutAnswer);
    response
}

/// Reads the body of a request, within its bounds.
async fn buffer_request(request: Request<Body>) -> Result<Request<Bytes>, ErrorResponse> {
    let (parts, body) = request.into_parts();
    match timeout(BODY_TIMEOUT, read_body(body, MAX_BODY_BYTES)).await {
        Ok(Ok(body)) => Ok(Request::from_parts(parts, body)),
        Ok(Err(BodyError::TooLarge(_))) => Err(ErrorResponse::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestContentTooLarge",
            format!("The request content size exceeds the maximum size of '{MAX_BODY_BYTES}' bytes."),
        )),
        Ok(Err(BodyError::Incomplete(_))) => {
            Err(ErrorResponse::invalid_content("The request content could not be read."))
        }
        Err(_) => Err(ErrorResponse::new(
            StatusCode::REQUEST_TIMEOUT,
            "RequestTimeout",
            "The request content did not arrive in time.",
        )),
    }
}
