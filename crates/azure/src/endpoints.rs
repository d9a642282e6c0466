//! The endpoints of an Azure cloud: ARM, its token endpoint, and the audience of its tokens.
//!
//! Bearer tokens and secrets are sent to these origins only: over TLS, or over plain HTTP to a loopback address. A URL in a
//! response is followed only if it is at ARM's origin ([`Origin::contains`]).

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use serde_json::Value;
use tokio::time::timeout;

use crate::AzureCloud;
use crate::transport::{Transport, TransportError};

/// For the request of an ARM's metadata.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The metadata document that cloud-provider-azure requests, too.
const METADATA_PATH: &str = "/metadata/endpoints?api-version=2019-05-01";

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// This text is not the URL of an origin.
    #[error("{0:?} is not an address without a path, such as https://management.azure.com")]
    InvalidUrl(String),
    /// Requests to this URL would show tokens and secrets to the network.
    #[error("{0} is not https: headgate sends tokens over plain HTTP to its own machine only")]
    NotHttps(String),
    /// The metadata of an ARM cannot be read.
    #[error("the metadata of {endpoint} cannot be used: {why}")]
    Metadata {
        /// The URL from `resourceManagerEndpoint`.
        endpoint: String,
        /// The reason, to complete the error's sentence.
        why: String,
    },
}

/// The scheme, host and port of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    /// The host name in lower case.
    host: String,
    port: u16,
}

impl Origin {
    /// Parses a URL without a path.
    ///
    /// # Errors
    /// When it is malformed or has a path, or is plain HTTP to another machine.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let invalid = || EndpointError::InvalidUrl(text.to_owned());
        let uri: Uri = text.trim().trim_end_matches('/').parse().map_err(|_| invalid())?;
        let has_no_path = matches!(uri.path_and_query().map(PathAndQuery::as_str), None | Some("/" | ""));
        let origin = Self::from_uri(&uri).filter(|_| has_no_path).ok_or_else(invalid)?;
        if origin.https || origin.is_loopback() {
            Ok(origin)
        } else {
            Err(EndpointError::NotHttps(text.to_owned()))
        }
    }

    fn from_uri(uri: &Uri) -> Option<Self> {
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        // A URL with a user is not an endpoint.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            // A malformed port.
            None if authority.as_str().len() > authority.host().len() => return None,
            None if https => 443,
            None => 80,
        };
        let host = authority.host().to_ascii_lowercase();
        Some(Self { https, host, port })
    }

    fn is_loopback(&self) -> bool {
        let address = self
            .host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Whether a URL is at this origin.
    pub fn contains(&self, uri: &Uri) -> bool {
        Self::from_uri(uri).as_ref() == Some(self)
    }

    /// The URL of a path at this origin.
    pub(crate) fn join(&self, path_and_query: &str) -> Result<Uri, String> {
        let scheme = if self.https { "https" } else { "http" };
        let with_port = format!("{}:{}", self.host, self.port);
        let is_default_port = self.port == if self.https { 443 } else { 80 };
        let authority = if is_default_port { &self.host } else { &with_port };
        Uri::builder()
            .scheme(scheme)
            .authority(authority.as_str())
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

/// The endpoints of one Azure cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The endpoint of Azure Resource Manager.
    pub resource_manager: Origin,
    /// The token endpoint for client secrets and workload identities.
    pub authority: Origin,
    /// The resource that tokens are requested for, without a slash at the end.
    pub audience: String,
}

impl Endpoints {
    /// The endpoints of a public or sovereign cloud.
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
                // As in Microsoft's clients.
                "management.core.usgovcloudapi.net",
            ),
        };
        let https = |host: &str| Origin {
            https: true,
            host: host.to_owned(),
            port: 443,
        };
        Self {
            resource_manager: https(resource_manager),
            authority: https(authority),
            audience: format!("https://{audience}"),
        }
    }

    /// Reads the endpoints from the metadata of another ARM, as cloud-provider-azure does. `cloud` selects one if the
    /// metadata has several.
    ///
    /// # Errors
    /// When the metadata is not received in time, or is malformed.
    pub async fn discover(transport: &Transport, endpoint: &str, cloud: Option<&str>) -> Result<Self, EndpointError> {
        let metadata = |why: String| EndpointError::Metadata {
            endpoint: endpoint.to_owned(),
            why,
        };
        let uri = Origin::parse(endpoint)?.join(METADATA_PATH).map_err(metadata)?;
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = uri;
        let response = timeout(DISCOVERY_TIMEOUT, transport.send(request)).await;
        let response = response
            .map_err(|_| metadata(format!("no answer in {} s", DISCOVERY_TIMEOUT.as_secs())))?
            .map_err(|error: TransportError| metadata(error.to_string()))?;
        if !response.status().is_success() {
            return Err(metadata(format!("it answered {}", response.status().as_u16())));
        }
        let document = serde_json::from_slice(response.body()).map_err(|error| metadata(error.to_string()))?;
        Self::from_metadata(&document, cloud).map_err(metadata)
    }

    /// Reads the metadata document: a list of clouds, or one cloud.
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
            format!("it has no cloud {:?}, only {names:?}", cloud.unwrap_or_default())
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
    fn urls_at_an_origin() {
        let arm = Origin::parse("https://management.azure.com").unwrap();
        for (url, expected) in [
            ("https://management.azure.com/x?t=1", true),
            ("https://MANAGEMENT.azure.com:443/x", true),
            ("http://management.azure.com/x", false),
            ("https://management.azure.com:8443/x", false),
            ("https://management.azure.com.evil.test/x", false),
            ("https://management.azure.com@evil.test/x", false),
            ("https://me@management.azure.com/x", false),
            ("/x", false),
        ] {
            assert_eq!(url.parse().is_ok_and(|uri| arm.contains(&uri)), expected, "{url}");
        }
        assert_eq!(arm.join("/x?y=z").unwrap(), "https://management.azure.com/x?y=z");
        let other = Origin::parse("http://127.0.0.1:8080").unwrap();
        assert_eq!(other.join("/x").unwrap(), "http://127.0.0.1:8080/x");
    }

    #[test]
    fn endpoints_of_known_clouds() {
        use AzureCloud::{China, Public, UsGovernment};
        let (usgov, core) = ("usgovcloudapi.net", "core.usgovcloudapi.net");
        for (cloud, arm, login, audience) in [
            (Public, "azure.com", "microsoftonline.com", "azure.com"),
            (China, "chinacloudapi.cn", "chinacloudapi.cn", "chinacloudapi.cn"),
            (UsGovernment, usgov, "microsoftonline.us", core),
        ] {
            let endpoints = Endpoints::for_cloud(cloud);
            let resource_manager = format!("https://management.{arm}:443");
            assert_eq!(endpoints.resource_manager.to_string(), resource_manager);
            assert_eq!(endpoints.authority.to_string(), format!("https://login.{login}:443"));
            assert_eq!(endpoints.audience, format!("https://management.{audience}"));
        }
    }

    #[test]
    fn endpoints_from_metadata() {
        let one = |name: &str, host: &str| {
            json!({"name": name, "resourceManager": format!("https://{host}/"), "authentication": {
                "loginEndpoint": format!("https://login.{host}/"), "audiences": [format!("https://{host}/"), "https://other"]}})
        };
        let several = json!([one("A", "a.test"), one("B", "b.test")]);
        let arm = |document: &Value, cloud| {
            Endpoints::from_metadata(document, cloud).map(|endpoints| endpoints.resource_manager.to_string())
        };
        assert_eq!(arm(&several, None).unwrap(), "https://a.test:443");
        assert_eq!(arm(&several, Some("b")).unwrap(), "https://b.test:443");
        assert_eq!(arm(&one("A", "a.test"), None).unwrap(), "https://a.test:443");
        let endpoints = Endpoints::from_metadata(&several, None).unwrap();
        assert_eq!(endpoints.authority.to_string(), "https://login.a.test:443");
        assert_eq!(endpoints.audience, "https://a.test");
        let error = arm(&several, Some("c")).unwrap_err();
        assert_eq!(error, "it has no cloud \"c\", only [\"A\", \"B\"]");
        for document in [json!([]), json!({}), json!(null), json!({"resourceManager": 1})] {
            assert!(arm(&document, None).is_err(), "{document}");
        }
        let error = arm(&json!({"resourceManager": "https://a"}), None).unwrap_err();
        assert_eq!(error, "it has no authentication.loginEndpoint");
        let plain = json!({"resourceManager": "http://a.test"});
        assert!(arm(&plain, None).unwrap_err().contains("is not https"));
    }
}
