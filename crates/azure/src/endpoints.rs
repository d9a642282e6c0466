//! Where Azure is: ARM, who gives tokens for it, and what they are to be for.
//!
//! Bearer tokens and secrets go to these addresses and nowhere else: over TLS, or in plain HTTP to this very
//! machine. An absolute URL in an answer is only followed to where ARM is ([`Origin::contains`]).

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use serde_json::Value;
use tokio::time::timeout;

use super::transport::{Transport, TransportError};
use crate::AzureCloud;

/// Time for the metadata of an ARM.
const LOOK_UP: Duration = Duration::from_secs(30);

/// An endpoint that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not an address.
    #[error("{0:?} is no address such as https://management.azure.com")]
    Address(String),
    /// TokenCache and secrets would be seen.
    #[error("{0} is not https: tokens go over plain HTTP to this machine only")]
    Plain(String),
    /// Its metadata cannot be read.
    #[error("the metadata of {endpoint} cannot be used: {why}")]
    Metadata {
        /// Whose.
        endpoint: String,
        /// Why.
        why: String,
    },
}

/// A scheme, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    /// In lower case.
    host: String,
    port: u16,
}

impl Origin {
    /// Of an address without a path.
    ///
    /// # Errors
    /// Where it has one, is none, or would show secrets to others.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let bad = || EndpointError::Address(text.to_owned());
        let uri: Uri = text.trim().trim_end_matches('/').parse().map_err(|_| bad())?;
        let bare = matches!(uri.path_and_query().map(PathAndQuery::as_str), None | Some("/" | ""));
        let origin = Self::of(&uri).filter(|_| bare).ok_or_else(bad)?;
        if origin.https || origin.is_this_machine() {
            Ok(origin)
        } else {
            Err(EndpointError::Plain(text.to_owned()))
        }
    }

    fn of(uri: &Uri) -> Option<Self> {
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        // Nobody's name and password belongs there.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            // A port that is there and cannot be read.
            None if authority.as_str().len() > authority.host().len() => return None,
            None if https => 443,
            None => 80,
        };
        let host = authority.host().to_ascii_lowercase();
        Some(Self { https, host, port })
    }

    fn is_this_machine(&self) -> bool {
        let address = self
            .host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Whether this URL is there.
    #[must_use]
    pub fn contains(&self, uri: &Uri) -> bool {
        Self::of(uri).as_ref() == Some(self)
    }

    /// What is there at a path.
    pub(super) fn join(&self, path_and_query: &str) -> Result<Uri, String> {
        let scheme = if self.https { "https" } else { "http" };
        let authority = format!("{}:{}", self.host, self.port);
        let standard = self.port == if self.https { 443 } else { 80 };
        Uri::builder()
            .scheme(scheme)
            .authority(if standard {
                self.host.as_str()
            } else {
                authority.as_str()
            })
            .path_and_query(path_and_query)
            .build()
            .map_err(|error| error.to_string())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// Where one Azure is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// ARM.
    pub resource_manager: Origin,
    /// Who gives tokens for secrets and service accounts.
    pub authority: Origin,
    /// What the tokens are to be for, without a slash at the end.
    pub audience: String,
}

impl Endpoints {
    /// Of a cloud that everybody knows.
    #[must_use]
    pub fn for_cloud(cloud: AzureCloud) -> Self {
        let (resource_manager, authority, audience) = match cloud {
            AzureCloud::Public => (
                "management.azure.com",
                "login.microsoftonline.com",
                "management.azure.com",
            ),
            AzureCloud::China => (
                "management.chinacloudapi.cn",
                "login.chinacloudapi.cn",
                "management.chinacloudapi.cn",
            ),
            AzureCloud::UsGovernment => (
                "management.usgovcloudapi.net",
                "login.microsoftonline.us",
                // As Microsoft's clients have it.
                "management.core.usgovcloudapi.net",
            ),
        };
        let at = |host: &str| Origin {
            https: true,
            host: host.to_owned(),
            port: 443,
        };
        Self {
            resource_manager: at(resource_manager),
            authority: at(authority),
            audience: format!("https://{audience}"),
        }
    }

    /// Of an ARM that says so itself, as cloud-provider-azure asks it. `cloud` names one of several it may know.
    ///
    /// # Errors
    /// Where it cannot be asked, or its answer used.
    pub async fn discover(transport: &Transport, endpoint: &str, cloud: Option<&str>) -> Result<Self, EndpointError> {
        let metadata = |why: String| EndpointError::Metadata {
            endpoint: endpoint.to_owned(),
            why,
        };
        let uri = Origin::parse(endpoint)?
            .join("/metadata/endpoints?api-version=2019-05-01")
            .map_err(metadata)?;
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = uri;
        let answer = timeout(LOOK_UP, transport.send(request)).await;
        let answer = answer
            .map_err(|_| metadata(format!("no answer in {} s", LOOK_UP.as_secs())))?
            .map_err(|error: TransportError| metadata(error.to_string()))?;
        if !answer.status().is_success() {
            return Err(metadata(format!("it answered {}", answer.status().as_u16())));
        }
        let document = serde_json::from_slice(answer.body()).map_err(|error| metadata(error.to_string()))?;
        Self::from_metadata(&document, cloud).map_err(metadata)
    }

    /// Reads what `/metadata/endpoints` says: a list of clouds, or one.
    fn from_metadata(document: &Value, cloud: Option<&str>) -> Result<Self, String> {
        let clouds = match document {
            Value::Array(clouds) => clouds.as_slice(),
            one => std::slice::from_ref(one),
        };
        let name = |item: &Value| item.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let found = match cloud {
            Some(cloud) => clouds.iter().find(|item| name(item).eq_ignore_ascii_case(cloud)),
            None => clouds.first(),
        };
        let found = found.ok_or_else(|| {
            let names: Vec<_> = clouds.iter().map(name).collect();
            format!("it knows no cloud {:?}, only {names:?}", cloud.unwrap_or_default())
        })?;
        let text = |pointer: &str| {
            let text = found.pointer(pointer).and_then(Value::as_str);
            text.ok_or_else(|| format!("it has no {}", pointer.trim_start_matches('/').replace('/', ".")))
        };
        let origin = |pointer: &str| Origin::parse(text(pointer)?).map_err(|error| error.to_string());
        Ok(Self {
            resource_manager: origin("/resourceManager")?,
            authority: origin("/authentication/loginEndpoint")?,
            audience: text("/authentication/audiences/0")?.trim_end_matches('/').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn origins() {
        for (text, shown) in [
            ("https://Management.Azure.com", Some("https://management.azure.com:443")),
            ("https://arm.local:8443/", Some("https://arm.local:8443")),
            ("http://127.0.0.1:1", Some("http://127.0.0.1:1")),
            ("http://[::1]:1", Some("http://[::1]:1")),
            ("http://localhost", Some("http://localhost:80")),
            ("http://arm.local", None),
            ("http://127.0.0.1.evil.test", None),
            ("http://169.254.169.254", None),
            ("https://a@arm.local", None),
            ("https://arm.local/path", None),
            ("https://arm.local?x", None),
            ("ftp://127.0.0.1", None),
            ("arm.local", None),
            ("", None),
        ] {
            let origin = Origin::parse(text).ok().map(|origin| origin.to_string());
            assert_eq!(origin.as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_at_an_origin() {
        let arm = Origin::parse("https://management.azure.com").unwrap();
        for (url, held) in [
            ("https://management.azure.com/x?t=1", true),
            ("https://MANAGEMENT.azure.com:443/x", true),
            ("http://management.azure.com/x", false),
            ("https://management.azure.com:8443/x", false),
            ("https://management.azure.com.evil.test/x", false),
            ("https://management.azure.com@evil.test/x", false),
            ("https://me@management.azure.com/x", false),
            ("/x", false),
        ] {
            assert_eq!(url.parse().is_ok_and(|uri| arm.contains(&uri)), held, "{url}");
        }
        assert_eq!(arm.join("/x?y=z").unwrap(), "https://management.azure.com/x?y=z");
        let other = Origin::parse("http://127.0.0.1:8080").unwrap();
        assert_eq!(other.join("/x").unwrap(), "http://127.0.0.1:8080/x");
    }

    #[test]
    fn clouds_that_everybody_knows() {
        let shown = |cloud| {
            let of = Endpoints::for_cloud(cloud);
            format!("{} {} {}", of.resource_manager, of.authority, of.audience)
        };
        assert_eq!(
            shown(AzureCloud::Public),
            "https://management.azure.com:443 https://login.microsoftonline.com:443 https://management.azure.com"
        );
        assert_eq!(
            shown(AzureCloud::China),
            "https://management.chinacloudapi.cn:443 https://login.chinacloudapi.cn:443 https://management.chinacloudapi.cn"
        );
        assert_eq!(
            shown(AzureCloud::UsGovernment),
            "https://management.usgovcloudapi.net:443 https://login.microsoftonline.us:443 \
             https://management.core.usgovcloudapi.net"
        );
    }

    #[test]
    fn metadata() {
        let one = |name: &str, host: &str| {
            json!({"name": name, "resourceManager": format!("https://{host}/"), "authentication": {
                "loginEndpoint": format!("https://login.{host}/"), "audiences": [format!("https://{host}/"), "https://other"]}})
        };
        let several = json!([one("A", "a.test"), one("B", "b.test")]);
        let arm = |document: &Value, cloud| {
            Endpoints::from_metadata(document, cloud).map(|of| of.resource_manager.to_string())
        };
        assert_eq!(arm(&several, None).unwrap(), "https://a.test:443");
        assert_eq!(arm(&several, Some("b")).unwrap(), "https://b.test:443");
        assert_eq!(arm(&one("A", "a.test"), None).unwrap(), "https://a.test:443");
        let of = Endpoints::from_metadata(&several, None).unwrap();
        assert_eq!(
            (of.authority.to_string().as_str(), of.audience.as_str()),
            ("https://login.a.test:443", "https://a.test")
        );
        assert_eq!(
            arm(&several, Some("c")).unwrap_err(),
            "it knows no cloud \"c\", only [\"A\", \"B\"]"
        );
        for document in [json!([]), json!({}), json!(null), json!({"resourceManager": 1})] {
            assert!(arm(&document, None).is_err(), "{document}");
        }
        assert_eq!(
            arm(&json!({"resourceManager": "https://a"}), None).unwrap_err(),
            "it has no authentication.loginEndpoint"
        );
        let plain = json!({"resourceManager": "http://a.test"});
        assert!(arm(&plain, None).unwrap_err().contains("is not https"));
    }
}
