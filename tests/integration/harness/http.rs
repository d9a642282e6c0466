//! HTTP/1.1 at the level of bytes: the exact responses and their order.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Time for a request and its response, on a busy machine.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// A response as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// The status line, such as `HTTP/1.1 200 OK`.
    pub(crate) status_line: String,
    pub(crate) status: u16,
    /// Names and values of the headers, as received and in their order.
    pub(crate) headers: Vec<(String, String)>,
    /// The body, without chunked encoding.
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// The value of the first header with this name; names ignore case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(&found.1)
    }

    /// The body as UTF-8 text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The body, parsed as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Sends a GET on a new connection.
pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    get_from(None, address, path).await
}

/// The same from a given address.
pub(crate) async fn get_from(source: Option<Ipv4Addr>, address: SocketAddr, path: &str) -> io::Result<Response> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    exchange_from(source, address, request.as_bytes()).await
}

/// `/statusz` of a process as JSON.
pub(crate) async fn statusz(address: SocketAddr) -> Value {
    let request = b"GET /statusz HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n";
    exchange(address, request).await.unwrap().json()
}

/// A request to the control API of an emulator; its answer as JSON.
pub(crate) async fn control(address: SocketAddr, method: &str, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let request = format!(
        "{method} /emulator/v1/{path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(address, request.as_bytes()).await.unwrap();
    assert_eq!(answer.status / 100, 2, "{method} {path}: {}", answer.text());
    if answer.body.is_empty() {
        Value::Null
    } else {
        answer.json()
    }
}

/// Sends these bytes on a new connection and reads one response.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<Response> {
    exchange_from(None, address, request).await
}

async fn exchange_from(source: Option<Ipv4Addr>, address: SocketAddr, request: &[u8]) -> io::Result<Response> {
    let exchange = async {
        let mut connection = match source {
            None => Connection::open(address).await?,
            Some(source) => {
                let socket = TcpSocket::new_v4()?;
                socket.bind((source, 0).into())?;
                let stream = socket.connect(address).await?;
                Connection {
                    stream,
                    unread: Vec::new(),
                }
            }
        };
        connection.send(request).await?;
        connection.response().await
    };
    timeout(EXCHANGE_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A connection for several requests or a part of one. The caller bounds its waits.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            stream: TcpStream::connect(address).await?,
            unread: Vec::new(),
        })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads a response to a request that is not HEAD.
    pub(crate) async fn response(&mut self) -> io::Result<Response> {
        let head = self.until(b"\r\n\r\n").await?;
        let head = String::from_utf8(head).map_err(io::Error::other)?;
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default().to_owned();
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let headers: Option<Vec<(String, String)>> = lines
            .map(|line| {
                line.split_once(':')
                    .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            })
            .collect();
        let (Some(status), Some(headers)) = (status, headers) else {
            return Err(io::Error::other(format!("not an HTTP response: {head:?}")));
        };
        let mut response = Response {
            status_line,
            status,
            headers,
            body: Vec::new(),
        };
        response.body = if response
            .header("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
        {
            self.chunks().await?
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            self.exactly(length).await?
        } else if matches!(response.status, 100..200 | 204 | 304) {
            Vec::new()
        } else {
            self.rest().await?
        };
        Ok(response)
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut self.unread);
        self.stream.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n").await?;
            let text = String::from_utf8_lossy(&line);
            let size = text.trim_end().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            let mut chunk = self.exactly(size + 2).await?;
            chunk.truncate(size);
            body.append(&mut chunk);
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                let later = self.unread.split_off(at + end.len());
                return Ok(std::mem::replace(&mut self.unread, later));
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.more().await?;
        }
        let later = self.unread.split_off(length);
        Ok(std::mem::replace(&mut self.unread, later))
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.unread).await? == 0 {
            let read = String::from_utf8_lossy(&self.unread).into_owned();
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("closed after {read:?}"),
            ));
        }
        Ok(())
    }
}
