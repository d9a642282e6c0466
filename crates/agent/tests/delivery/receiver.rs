//! Receivers of notices and a proxy, on sockets of this machine.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use headgate_certificates::CertificateAuthority;
use headgate_http::proxies::Proxies;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// The path of every receiver's URL, which no log and no error may contain.
pub(crate) const SECRET_PATH: &str = "/hooks/T0000/secret-token";

/// A request as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) body: String,
}

type Requests = Arc<Mutex<Vec<Request>>>;
type Statuses = Arc<Mutex<VecDeque<u16>>>;

/// A server that records requests and answers with given statuses, then with 200.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    requests: Requests,
}

async fn bound() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

impl Receiver {
    pub(crate) async fn plain(statuses: &[u16]) -> Self {
        let (listener, address) = bound().await;
        let (requests, statuses) = (
            Requests::default(),
            Statuses::new(Mutex::new(statuses.iter().copied().collect())),
        );
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&recorded), Arc::clone(&statuses)));
            }
        });
        Self {
            address,
            scheme: "http",
            requests,
        }
    }

    /// One that accepts connections and never answers.
    pub(crate) async fn silent() -> Self {
        let (listener, address) = bound().await;
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
            }
        });
        Self {
            address,
            scheme: "http",
            requests: Requests::default(),
        }
    }

    /// One with a certificate for `host`, and the authority that issued it as PEM text.
    pub(crate) async fn tls(host: &str) -> (Self, String) {
        let authority = CertificateAuthority::new("receivers").unwrap();
        let (certificate, key) = authority.issue_server_certificate("receiver", &[host]).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (listener, address) = bound().await;
        let requests = Requests::default();
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, recorded) = (acceptor.clone(), Arc::clone(&recorded));
                tokio::spawn(async move {
                    // A client that does not trust the certificate ends the handshake.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, recorded, Statuses::default()).await;
                    }
                });
            }
        });
        (
            Self {
                address,
                scheme: "https",
                requests,
            },
            authority.certificate_pem,
        )
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}{SECRET_PATH}", self.scheme, self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, requests: Requests, statuses: Statuses) {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let header = |name: &str| {
        let lines = head.iter().filter_map(|line| line.split_once(": "));
        let mut found = lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned());
        found.next().unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).await.unwrap();
    let path = head[0].split(' ').nth(1).unwrap().to_owned();
    requests.lock().unwrap().push(Request {
        path,
        content_type: header("content-type"),
        body: String::from_utf8(body).unwrap(),
    });
    let status = statuses.lock().unwrap().pop_front().unwrap_or(200);
    let more = match status {
        302 => "Location: /elsewhere\r\n",
        429 => "Retry-After: 30\r\n",
        _ => "",
    };
    let answer = format!("HTTP/1.1 {status} Status\r\n{more}Content-Length: 6\r\n\r\nsecret");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// An HTTP proxy to servers of this machine, whatever their names, or one that refuses.
pub(crate) struct Proxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub(crate) async fn start(accepts: bool) -> Self {
        let (listener, address) = bound().await;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(stream, accepts, Arc::clone(&recorded)));
            }
        });
        Self { address, requests }
    }

    /// The proxies of a process whose only one is this.
    pub(crate) fn proxies(&self) -> Proxies {
        let url = format!("http://user:pass@{}", self.address);
        Proxies::from(Matcher::builder().all(url).build())
    }

    /// The methods and targets of its requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn forward(mut client: TcpStream, accepts: bool, requests: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(head.clone()).unwrap();
    if !accepts {
        let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
        return;
    }
    let (request, _) = text.split_once(" HTTP/1.1").unwrap();
    let is_authorized = text.to_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz");
    requests.lock().unwrap().push(format!("{request} {is_authorized}"));
    let (method, target) = request.split_once(' ').unwrap();
    let authority = target.trim_start_matches("http://").split('/').next().unwrap();
    let (_, port) = authority.split_once(':').unwrap();
    let address = (Ipv4Addr::LOCALHOST, port.parse::<u16>().unwrap());
    let mut receiver = TcpStream::connect(address).await.unwrap();
    if method == "CONNECT" {
        let opened = b"HTTP/1.1 200 Connection established\r\n\r\n";
        client.write_all(opened).await.unwrap();
    } else {
        receiver.write_all(&head).await.unwrap();
    }
    let _ = tokio::io::copy_bidirectional(&mut client, &mut receiver).await;
}
