//! Just enough HTTP to ask, so that nothing is retried or reused behind the counter's back.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take; a probe that takes longer has failed.
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

/// Asks on a connection of its own; status and body.
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

/// Asks as a scraper or a load balancer does.
pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    ask(address, path, "*/*").await
}

/// Asks for JSON.
pub(crate) async fn get_json(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    ask(address, path, "application/json").await
}

/// A connection for many probes.
pub(crate) struct Kept {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Kept {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = bounded(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            answer: Vec::with_capacity(1024),
        })
    }

    /// Asks `/healthz` once more.
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

/// Whether `answer` has come to its end, and not beyond.
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
