//! One attempt to send a notice: the URL from its file, one POST, and what the answer means.
//!
//! Certificates are verified. Redirects are not followed, because they could lead the notice elsewhere. An error is a
//! category without the URL, the receiver's name and the answer.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use headgate_http::client::{HttpClient, HttpError, Limits, TlsError, TrustedRoots};
use headgate_http::proxies::Proxies;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use tokio::time::timeout;

use super::settings::NotificationSettings;

/// For one attempt: connection, tunnel, TLS, request and response together.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
const LIMITS: Limits = Limits {
    connect_timeout: ATTEMPT_TIMEOUT,
    timeout: ATTEMPT_TIMEOUT,
    // The part of an answer that is read before the connection is closed.
    max_body_bytes: 64 * 1024,
};
/// For the rest of an answer, whose status is known already.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest URL file.
const MAX_URL_BYTES: u64 = 4096;
/// The longest wait that a receiver can request.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(10);

/// Why an attempt failed. The text is for logs: it has neither the URL nor the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttemptError {
    /// The file with the URL cannot be read, or has no URL.
    #[error("the file of notifications.urlFile cannot be read or has no http or https URL")]
    UrlFile,
    /// The template cannot be rendered for this notice.
    #[error("notifications.template cannot be rendered: {0}")]
    Template(String),
    /// The receiver was not reached, or the connection broke.
    #[error("no connection to the receiver: {0}")]
    Connection(io::ErrorKind),
    /// The proxy was not reached, or it refused.
    #[error("the proxy of HTTPS_PROXY or HTTP_PROXY did not connect to the receiver")]
    Proxy,
    /// The certificate is not trusted, or TLS failed otherwise.
    #[error("TLS failed; check the receiver's certificate, and the authorities in the file of SSL_CERT_FILE")]
    Tls,
    /// There was no complete answer in time.
    #[error("no answer within {} s", ATTEMPT_TIMEOUT.as_secs())]
    Timeout,
    /// The receiver answered with another status than 2xx.
    #[error("the receiver answered {status}")]
    Status {
        /// The status code.
        status: u16,
        /// How long the receiver asks to wait.
        retry_after: Option<Duration>,
    },
}

impl AttemptError {
    /// The values of [`Self::reason`].
    pub(crate) const REASONS: [&'static str; 7] = [
        "connection",
        "proxy",
        "status",
        "template",
        "timeout",
        "tls",
        "url_file",
    ];

    /// The label in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UrlFile => "url_file",
            Self::Template(_) => "template",
            Self::Connection(_) => "connection",
            Self::Proxy => "proxy",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Status { .. } => "status",
        }
    }

    /// Whether the same notice would fail again, whatever the time.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Template(_) => true,
            Self::Status { status, .. } => (300..500).contains(status) && ![408, 425, 429].contains(status),
            _ => false,
        }
    }

    /// How long the receiver asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Sends notices to the URL in a file.
#[derive(Clone)]
pub struct Webhook {
    client: HttpClient,
    url_file: PathBuf,
    content_type: HeaderValue,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhook")
    }
}

impl Webhook {
    /// A webhook for these settings; `None` if they name no file.
    ///
    /// # Errors
    /// When there are no authorities to trust.
    pub fn new(
        settings: &NotificationSettings,
        proxies: Proxies,
        roots: &TrustedRoots,
    ) -> Result<Option<Self>, TlsError> {
        let Some(url_file) = settings.url_file.clone() else {
            return Ok(None);
        };
        Ok(Some(Self {
            client: HttpClient::new(roots, proxies, LIMITS)?,
            url_file,
            content_type: HeaderValue::from_static(settings.template.content_type()),
        }))
    }

    /// Sends one body.
    ///
    /// # Errors
    /// When the receiver did not accept it in time.
    pub async fn send(&self, body: String) -> Result<(), AttemptError> {
        timeout(ATTEMPT_TIMEOUT, self.attempt(body))
            .await
            .unwrap_or(Err(AttemptError::Timeout))
    }

    async fn attempt(&self, body: String) -> Result<(), AttemptError> {
        let url_file = self.url_file.clone();
        // A Secret that is mounted changes without a restart.
        let url = tokio::task::spawn_blocking(move || read_url(&url_file)).await;
        let url = url.ok().flatten().ok_or(AttemptError::UrlFile)?;
        let mut request = Request::new(Bytes::from(body));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, url);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type.clone());
        let agent = concat!("headgate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        // Notices are rare: each gets a connection of its own, so none fails because an idle one was closed.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let response = self.client.start(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        // The status decides; a receiver may end its answer as it likes.
        drop(timeout(ANSWER_TIMEOUT, self.client.finish(response)).await);
        if status.is_success() {
            Ok(())
        } else {
            Err(status_error(status, &headers))
        }
    }
}

fn status_error(status: StatusCode, headers: &HeaderMap) -> AttemptError {
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    AttemptError::Status {
        status: status.as_u16(),
        retry_after: seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
    }
}

impl From<HttpError> for AttemptError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Timeout(_) => Self::Timeout,
            HttpError::Proxy(_) => Self::Proxy,
            HttpError::Tls(_) => Self::Tls,
            HttpError::Connection { kind, .. } => Self::Connection(kind),
            HttpError::TooLarge(_) => Self::Connection(io::ErrorKind::Other),
        }
    }
}

/// Reads at most `limit` bytes of a file.
fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

/// The URL in a file, if it is one of http or https.
fn read_url(path: &Path) -> Option<Uri> {
    let text = String::from_utf8(read_limited(path, MAX_URL_BYTES).ok()?).ok()?;
    let url: Uri = text.trim().parse().ok()?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    (is_http && url.host().is_some()).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_final_or_retried() {
        for (status, is_final) in [
            (301, true),
            (400, true),
            (404, true),
            (408, false),
            (425, false),
            (429, false),
        ] {
            let error = AttemptError::Status {
                status,
                retry_after: None,
            };
            assert_eq!(error.is_final(), is_final, "{status}");
        }
        for status in [500, 502, 503, 599] {
            assert!(
                !AttemptError::Status {
                    status,
                    retry_after: None
                }
                .is_final(),
                "{status}"
            );
        }
        let mut headers = HeaderMap::new();
        for (value, expected) in [("7", Some(7)), ("999999", Some(600)), ("soon", None)] {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
            let found = status_error(StatusCode::TOO_MANY_REQUESTS, &headers).retry_after();
            assert_eq!(found, expected.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn url_files_are_read_with_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("url");
        assert_eq!(read_url(&path), None, "no file");
        for (content, expected) in [
            ("https://hooks.example.com/secret\n", true),
            ("  http://10.0.0.1:8080/  ", true),
            ("ftp://example.com/", false),
            ("/relative", false),
            ("", false),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read_url(&path).is_some(), expected, "{content:?}");
        }
    }
}
