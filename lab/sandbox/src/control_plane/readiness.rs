//! Waits until a component is ready, with a timeout.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::ControlPlaneError;
use crate::process::last_log_lines;

/// Time between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until kube-apiserver's `/readyz` answers 200.
pub(super) async fn wait_for_apiserver(
    client: &Client,
    limit: Duration,
    log: PathBuf,
) -> Result<(), ControlPlaneError> {
    let check = async || {
        let request = Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        client
            .request_text(request)
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    until_ok("kube-apiserver", limit, log, check).await
}

/// Waits until `address` accepts connections.
pub(super) async fn wait_for_listener(
    component: &str,
    address: SocketAddr,
    limit: Duration,
    log: PathBuf,
) -> Result<(), ControlPlaneError> {
    let check = async || {
        TcpStream::connect(address)
            .await
            .map(|_| ())
            .map_err(|error| format!("{address}: {error}"))
    };
    until_ok(component, limit, log, check).await
}

async fn until_ok(
    component: &str,
    limit: Duration,
    log: PathBuf,
    check: impl AsyncFn() -> Result<(), String>,
) -> Result<(), ControlPlaneError> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = match timeout(CHECK_TIMEOUT, check()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(answer)) => answer,
            Err(_) => format!("none within {} s", CHECK_TIMEOUT.as_secs()),
        };
        if Instant::now() >= deadline {
            let component = component.to_owned();
            return Err(ControlPlaneError::NotReady {
                component,
                waited: limit,
                answer,
                tail: last_log_lines(&log),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
}
