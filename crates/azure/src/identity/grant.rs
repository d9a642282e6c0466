//! The three ways to get a token: a secret, a service account's token, the machine's identity.
//!
//! Each is one request and one answer. Client certificates are refused where the settings are read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode, Uri};
use jiff::Timestamp;
use serde_json::Value;

use super::super::endpoints::Endpoints;
use super::super::transport::Answer;
use super::TokenError;
use crate::{Credential, ManagedIdentity, Secret};

/// The instance metadata service, at every virtual machine.
pub const IMDS_ENDPOINT: &str = "http://169.254.169.254";
/// What a service account's token is called.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// A token is some 2 KB.
const MOST_ASSERTION: usize = 64 * 1024;

/// Nobody to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Nothing was said.
    #[error(
        "there is no credential for Azure: set useFederatedWorkloadIdentityExtension, useManagedIdentityExtension, \
         or aadClientId and aadClientSecret"
    )]
    None,
    /// Whose account?
    #[error("there is no tenantId, which secrets and workload identities need")]
    Tenant,
    /// It cannot stand in a URL.
    #[error("{0:?} is no tenantId")]
    BadTenant(String),
    /// IMDS is somewhere else.
    #[error("{0:?} is no address of an instance metadata service")]
    Imds(String),
}

/// Whom to be, and whom to ask.
#[derive(Clone, Debug)]
pub struct Identity {
    kind: Kind,
    /// What is asked.
    uri: Uri,
    /// What for, without a slash at the end.
    audience: String,
}

#[derive(Clone, Debug)]
enum Kind {
    Secret { client_id: String, secret: Secret },
    Assertion { client_id: String, file: PathBuf },
    Machine,
}

/// A request for a token.
pub(super) struct Wanted {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A token and for how long it is good.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) token: Secret,
    pub(super) good_for: Duration,
}

impl Identity {
    /// As the settings have it; `imds` is where a machine's identity is asked for, [`IMDS`].
    ///
    /// # Errors
    /// Where they have none, or it lacks something.
    pub fn new(
        credential: &Credential,
        tenant: Option<&str>,
        endpoints: &Endpoints,
        imds: &str,
    ) -> Result<Self, IdentityError> {
        let entra = || {
            let tenant = tenant
                .filter(|tenant| !tenant.is_empty())
                .ok_or(IdentityError::MissingTenant)?;
            let good = tenant
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            let bad = || IdentityError::InvalidTenant(tenant.to_owned());
            if !good || tenant.starts_with('.') {
                return Err(bad());
            }
            let path = format!("/{tenant}/oauth2/v2.0/token");
            endpoints.authority.join(&path).map_err(|_| bad())
        };
        let (kind, uri) = match credential {
            Credential::None => return Err(IdentityError::IdentityError),
            Credential::ClientSecret { client_id, secret } => {
                let (client_id, secret) = (client_id.clone(), secret.clone());
                (Kind::Secret { client_id, secret }, entra()?)
            }
            Credential::WorkloadIdentity { client_id, token_file } => {
                let (client_id, file) = (client_id.clone(), token_file.into());
                (Kind::Assertion { client_id, file }, entra()?)
            }
            Credential::ManagedIdentity(which) => (Kind::Machine, machine(which.as_ref(), &endpoints.audience, imds)?),
        };
        Ok(Self {
            kind,
            uri,
            audience: endpoints.audience.clone(),
        })
    }

    /// Statuses that are worth another try.
    pub(super) fn retried(&self) -> &'static [u16] {
        match self.kind {
            Kind::Machine => &[404, 408, 410, 429, 500, 502, 503, 504],
            Kind::Secret { .. } | Kind::Assertion { .. } => &[408, 429, 500, 502, 503, 504],
        }
    }

    /// Who is asked, for people.
    pub(super) fn asked(&self) -> String {
        self.uri.host().unwrap_or_default().to_owned()
    }

    /// What to send.
    pub(super) async fn wanted(&self) -> Result<Wanted, TokenError> {
        let mut headers = HeaderMap::new();
        let mut form = match &self.kind {
            Kind::Machine => {
                headers.insert("metadata", HeaderValue::from_static("true"));
                return Ok(Wanted {
                    method: Method::GET,
                    uri: self.uri.clone(),
                    headers,
                    body: Bytes::new(),
                });
            }
            Kind::Secret { client_id, secret } => vec![
                ("client_id", client_id.clone()),
                ("client_secret", secret.expose().to_owned()),
            ],
            Kind::Assertion { client_id, file } => vec![
                ("client_id", client_id.clone()),
                ("client_assertion_type", ASSERTION_TYPE.to_owned()),
                ("client_assertion", assertion(file).await?),
            ],
        };
        form.push(("grant_type", "client_credentials".to_owned()));
        form.push(("scope", format!("{}/.default", self.audience)));
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Wanted {
            method: Method::POST,
            uri: self.uri.clone(),
            headers,
            body: Serializer::new(String::new()).extend_pairs(form).finish().into(),
        })
    }

    /// What came back.
    pub(super) fn granted(answer: &BufferedResponse, now: Timestamp) -> Result<Granted, TokenError> {
        let document: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        if answer.status() != StatusCode::OK {
            let description = text("error_description").unwrap_or_default();
            return Err(TokenError::Refused {
                status: answer.status().as_u16(),
                error: text("error").unwrap_or("no reason given").to_owned(),
                description: description.lines().next().unwrap_or_default().to_owned(),
            });
        }
        let token = text("access_token").filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| TokenError::Answer("it has no access_token".to_owned()))?;
        let number = |name: &str| {
            let value = document.get(name)?;
            // IMDS writes numbers as texts.
            value.as_i64().or_else(|| value.as_str()?.parse().ok())
        };
        let seconds = number("expires_in").or_else(|| Some(number("expires_on")? - now.as_second()));
        let seconds = seconds.ok_or_else(|| TokenError::Answer("it does not say when the token ends".to_owned()))?;
        Ok(Granted {
            token: Secret::new(token),
            good_for: Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(7 * 86_400)),
        })
    }
}

/// Where a machine's identity is had. In plain HTTP: it is a link-local address, and nothing secret is sent.
fn machine(which: Option<&ManagedIdentity>, audience: &str, imds: &str) -> Result<Uri, IdentityError> {
    let mut query = Serializer::new(String::new());
    query.append_pair("api-version", "2018-02-01");
    query.append_pair("resource", audience);
    match which {
        Some(ManagedIdentity::ClientId(id)) => {
            query.append_pair("client_id", id);
        }
        Some(ManagedIdentity::ResourceId(id)) => {
            query.append_pair("msi_res_id", id);
        }
        None => {}
    }
    let base = imds.trim_end_matches('/');
    let uri: Option<Uri> = format!("{base}/metadata/identity/oauth2/token?{}", query.finish())
        .parse()
        .ok();
    uri.filter(|uri| uri.scheme().is_some() && uri.authority().is_some())
        .ok_or_else(|| IdentityError::InvalidImds(imds.to_owned()))
}

/// The service account's token, as kubelet last wrote it.
async fn assertion(file: &Path) -> Result<String, TokenError> {
    let shown = file.display().to_string();
    let unreadable = |why: String| TokenError::File {
        file: shown.clone(),
        why,
    };
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = read
        .map_err(|error| unreadable(error.to_string()))?
        .map_err(|error| unreadable(error.to_string()))?;
    match text.trim() {
        "" => Err(unreadable("it is empty".to_owned())),
        text if text.len() > MOST_ASSERTION => Err(unreadable("it is too large to be a token".to_owned())),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests;
