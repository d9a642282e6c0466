//! Waiting, within a bound, until a component answers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::ControlPlaneError;
use crate::process::last_log_lines;

/// From one question to the next.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until kube-apiserver's `/readyz` answers 200.
pub(super) async fn apiserver(client: &Client, bound: Duration, log: PathBuf) -> Result<(), ControlPlaneError> {
    let ask = async || {
        let request = Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        client
            .request_text(request)
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    until_ok("kube-apiserver", bound, log, ask).await
}

/// Waits until somebody listens on `address`.
pub(super) async fn listening(
    component: &str,
    address: SocketAddr,
    bound: Duration,
    log: PathBuf,
) -> Result<(), ControlPlaneError> {
    let ask = async || {
        TcpStream::connect(address)
            .await
            .map(|_| ())
            .map_err(|error| format!("{address}: {error}"))
    };
    until_ok(component, bound, log, ask).await
}

async fn until_ok(
    component: &str,
    bound: Duration,
    log: PathBuf,
    ask: impl AsyncFn() -> Result<(), String>,
) -> Result<(), ControlPlaneError> {
    let deadline = Instant::now() + bound;
    loop {
        let answer = match timeout(PATIENCE, ask()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(answer)) => answer,
            Err(_) => format!("none within {} s", PATIENCE.as_secs()),
        };
        if Instant::now() >= deadline {
            let component = component.to_owned();
            return Err(ControlPlaneError::NotReady {
                component,
                waited: bound,
                answer,
                tail: last_log_lines(&log),
            });
        }
        sleep(INTERVAL).await;
    }
}
