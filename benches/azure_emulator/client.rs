//! A client of ARM over one persistent connection, with as much of HTTP/1.1 as the emulator's responses need.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// Space that is reserved for a read.
const READ_BYTES: usize = 64 * 1024;
/// Time between two polls of an operation.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A response with a status of the 200s.
#[derive(Debug)]
pub(crate) struct Response<'a> {
    pub(crate) body: &'a [u8],
    /// The status URL of the operation that the request started.
    pub(crate) operation: Option<String>,
}

/// A persistent connection to the emulator.
pub(crate) struct Client {
    stream: TcpStream,
    base: String,
    token: String,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr, token: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(server).await.context("a connection")?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            base: format!("http://{server}"),
            token: token.to_owned(),
            request: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// There is no response in time, or its status is not one of the 200s.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> anyhow::Result<Response<'_>> {
        let path = path.strip_prefix(&self.base).unwrap_or(path);
        let (host, token, length) = (&self.base["http://".len()..], &self.token, body.len());
        self.request.clear();
        self.request.extend_from_slice(
            format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
            .as_bytes(),
        );
        self.request.extend_from_slice(body);
        let exchanged = timeout(
            RESPONSE_TIMEOUT,
            exchange(&mut self.stream, &self.request, &mut self.buffer),
        )
        .await;
        let head = exchanged
            .context("no response in time")?
            .with_context(|| format!("{method} {path}"))?;
        let (head, body) = self.buffer.split_at(head);
        let head = std::str::from_utf8(head)?;
        let status: u16 = head.get(9..12).unwrap_or_default().parse().context("a status")?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(body));
        }
        let operation = header(head, "azure-asyncoperation").map(str::to_owned);
        Ok(Response { body, operation })
    }

    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(self.send("GET", path, b"").await?.body)?)
    }

    /// Polls an operation until it ends.
    ///
    /// # Errors
    /// The operation failed, or was canceled without being superseded by a newer write.
    pub(crate) async fn wait_for_operation(&mut self, operation: &str) -> anyhow::Result<()> {
        loop {
            let status = self.get(operation).await?;
            let detail = status.pointer("/error/details/0/code").and_then(Value::as_str);
            match (status["status"].as_str(), detail) {
                (Some("InProgress"), _) => sleep(POLL_INTERVAL).await,
                (Some("Succeeded"), _) | (Some("Canceled"), Some("CanceledAndSupersededDueToAnotherOperation")) => {
                    return Ok(());
                }
                _ => bail!("an operation ended with {status}"),
            }
        }
    }
}

/// Sends a request and reads the whole response into `buffer`; returns the length of its head.
async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> anyhow::Result<usize> {
    buffer.clear();
    stream.write_all(request).await?;
    let mut head = None;
    loop {
        if head.is_none() {
            head = buffer
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .map(|end| end + 4);
        }
        if let Some(head) = head {
            let text = std::str::from_utf8(&buffer[..head])?;
            let body: usize = header(text, "content-length").map_or(Ok(0), str::parse)?;
            if buffer.len() >= head + body {
                return Ok(head);
            }
            buffer.reserve(head + body - buffer.len());
        } else {
            buffer.reserve(READ_BYTES);
        }
        ensure!(stream.read_buf(buffer).await? > 0, "the connection was closed");
    }
}

/// The value of a header; names ignore case.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
