//! A minimal HTTP/1.1 client for probes: one request, and a response that ends by its Content-Length.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Maximum length of a response in bytes.
pub(crate) const ANSWER_BYTES: usize = 4096;
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request for `/healthz`, the last on its connection or not.
pub(crate) fn request(server: SocketAddr, last: bool) -> Vec<u8> {
    let connection = if last { "Connection: close\r\n" } else { "" };
    format!("GET /healthz HTTP/1.1\r\nHost: {server}\r\n{connection}\r\n").into_bytes()
}

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The length of the head in bytes.
    pub(crate) head: usize,
    /// The length of the body in bytes.
    pub(crate) body: usize,
}

impl Answer {
    /// Parses the response at the start of `bytes`; `None` while it is incomplete.
    ///
    /// # Errors
    /// It is not a response, or too long.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if bytes.len() < ANSWER_BYTES {
                Ok(None)
            } else {
                wrong("an answer without an end")
            };
        };
        let head = end + 4;
        let Some(status) = number(bytes.get(9..12).unwrap_or_default()) else {
            return wrong("an answer without a status");
        };
        let body = bytes[..end].split(|byte| *byte == b'\n').find_map(|line| {
            let (name, value) = line.split_at_checked(15)?;
            name.eq_ignore_ascii_case(b"content-length:")
                .then(|| number(value.trim_ascii()))?
        });
        match body {
            None => wrong("an answer without Content-Length"),
            Some(body) if head + body > ANSWER_BYTES => wrong("an answer that is too long"),
            Some(body) if bytes.len() < head + body => Ok(None),
            Some(body) => Ok(Some(Self {
                status: u16::try_from(status).unwrap_or_default(),
                head,
                body,
            })),
        }
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A blocking keep-alive connection.
pub(crate) struct Prober {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: [u8; ANSWER_BYTES],
}

impl Prober {
    /// Connects, for many requests or for one.
    pub(crate) fn connect(server: SocketAddr, last: bool) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            request: request(server, last),
            buffer: [0; ANSWER_BYTES],
        })
    }

    /// Sends one request; returns the response.
    pub(crate) fn ask(&mut self) -> io::Result<(u16, &[u8], &[u8])> {
        self.stream.write_all(&self.request)?;
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += read;
            if let Some(answer) = Answer::parse(&self.buffer[..filled])? {
                let (head, rest) = self.buffer.split_at(answer.head);
                return Ok((answer.status, head, &rest[..answer.body]));
            }
        }
    }
}
