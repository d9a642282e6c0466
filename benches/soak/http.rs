//! A minimal HTTP client without retries and connection reuse, so that every request is counted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of a probe.
const PATIENCE: Duration = Duration::from_secs(10);

async fn bounded<T>(exchange: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, exchange)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn status(answer: &[u8]) -> io::Result<u16> {
    let code = answer.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    code.and_then(|code| str::from_utf8(code).ok()?.parse().ok())
        .ok_or_else(|| io::Error::other(format!("not an answer: {:?}", String::from_utf8_lossy(answer))))
}

/// Sends a GET on a new connection; returns status and body.
async fn ask(address: SocketAddr, path: &str, accept: &str) -> io::Result<(u16, String)> {
    bounded(async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let code = status(&answer)?;
        let text = String::from_utf8(answer).map_err(io::Error::other)?;
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        Ok((code, body.unwrap_or_default()))
    })
    .await
}

/// Sends a GET as a scraper or a load balancer does.
pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    ask(address, path, "*/*").await
}

/// Sends a GET with `Accept: application/json`.
pub(crate) async fn get_json(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    ask(address, path, "application/json").await
}

/// A keep-alive connection for many probes.
pub(crate) struct KeepAliveConnection {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl KeepAliveConnection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = bounded(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            answer: Vec::with_capacity(1024),
        })
    }

    /// Sends a GET to `/healthz`.
    pub(crate) async fn healthz(&mut self) -> io::Result<u16> {
        bounded(async {
            self.stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                .await?;
            self.answer.clear();
            loop {
                if self.stream.read_buf(&mut self.answer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if whole(&self.answer)? {
                    return status(&self.answer);
                }
            }
        })
        .await
    }
}

/// Whether `answer` is complete, with no bytes after its end.
fn whole(answer: &[u8]) -> io::Result<bool> {
    let text = str::from_utf8(answer).map_err(io::Error::other)?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Ok(false);
    };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or_default();
    if body.len() > length {
        return Err(io::Error::other(format!("more than one answer: {text:?}")));
    }
    Ok(body.len() == length)
}
