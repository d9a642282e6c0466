//! The bare responder: hyper without further code, as a baseline. It is this benchmark's own program, started
//! again as a child process; it answers every request with the agent's answer, byte for byte.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use bytes::Bytes;
use headgate_sandbox::process::Process;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use crate::measuring::addresses::written;

/// The argument that makes this program the responder.
const ROLE: &str = "--respond";
/// The name of its listener in the addresses file.
const NAME: &str = "bare";

/// The arguments of the responder.
pub(crate) struct Arguments {
    body: Bytes,
    addresses_file: PathBuf,
}

impl Arguments {
    /// Parses them; `None` if this process is not the responder.
    pub(crate) fn read(arguments: &[String]) -> Option<Self> {
        match arguments {
            [role, body, file] if role == ROLE => Some(Self {
                body: Bytes::from(body.clone()),
                addresses_file: PathBuf::from(file),
            }),
            _ => None,
        }
    }
}

/// Starts the responder with this body; returns its address.
pub(crate) async fn start(body: &str, directory: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let addresses_file = directory.join("bare.json");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ROLE).arg(body).arg(&addresses_file);
    let mut process = Process::start("the bare responder", command, &directory.join("bare.log"))?;
    let address = written(&addresses_file, &mut process).await?.of(NAME)?;
    Ok((process, address))
}

/// Serves until the process is killed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("the bare responder's port")?;
        std::fs::write(
            &arguments.addresses_file,
            json!({NAME: listener.local_addr()?}).to_string(),
        )?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let body = arguments.body.clone();
            let service = service_fn(move |_: Request<hyper::body::Incoming>| {
                let mut response = Response::new(Full::new(body.clone()));
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                async { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}
