//! The identity that headgate has towards Azure, and the token request that proves it.
//!
//! There are three kinds, each one request with one response: a client secret, workload identity (the token of a service
//! account), and the managed identity of the virtual machine. Of a fourth, a person's `az`, the [`azure_cli`] gets the token. `azure_json`
//! rejects client certificates. No token and no secret is in a log, an error, or what `Debug` writes.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use jiff::Timestamp;
use serde_json::Value;

use crate::endpoints::Endpoints;
use crate::error::TokenError;
use crate::transport::BufferedResponse;
use crate::{Credential, ManagedIdentity, Secret};

mod azure_cli;

/// `client_assertion_type` of a service account's token (RFC 7523).
const JWT_ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Size limit of a service account's token, which has some 2 KB.
const MAX_ASSERTION_BYTES: usize = 64 * 1024;
/// Limit of the lifetime that a response gives a token.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_hours(7 * 24);

/// Why the settings give no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// No kind of credential is configured.
    #[error(
        "there is no credential for Azure: set useFederatedWorkloadIdentityExtension, useManagedIdentityExtension, \
         or aadClientId and aadClientSecret"
    )]
    NoCredential,
    /// Client secrets and workload identities need a tenant.
    #[error("there is no tenantId, which secrets and workload identities need")]
    MissingTenant,
    /// This tenant cannot be part of a URL.
    #[error("{0:?} is not a tenantId")]
    InvalidTenant(String),
    /// This URL of the instance metadata service is malformed.
    #[error("{0:?} is not the address of an instance metadata service")]
    InvalidImds(String),
}

/// An identity and the endpoint that issues its tokens.
#[derive(Clone, Debug)]
pub struct Identity {
    credential: Credential,
    tenant: Option<String>,
    /// Of the token endpoint.
    uri: Uri,
    /// The resource that tokens are for, without a slash at the end.
    audience: String,
}

/// The token of a response.
#[derive(Clone, Debug)]
pub(crate) struct IssuedToken {
    pub(crate) token: Secret,
    /// From the time of the request.
    pub(crate) lifetime: Duration,
}

impl Identity {
    /// The identity of a credential. `imds` is the URL of the instance metadata service, for managed identities.
    ///
    /// # Errors
    /// When there is no credential, or the tenant or `imds` is missing or malformed.
    pub fn new(
        credential: &Credential,
        tenant: Option<&str>,
        endpoints: &Endpoints,
        imds: &str,
    ) -> Result<Self, IdentityError> {
        let uri = match credential {
            Credential::None => return Err(IdentityError::NoCredential),
            Credential::AzureCli => Uri::default(),
            Credential::ClientSecret { .. } | Credential::WorkloadIdentity { .. } => entra_uri(tenant, endpoints)?,
            Credential::ManagedIdentity(selected) => imds_uri(selected.as_ref(), &endpoints.audience, imds)?,
        };
        Ok(Self {
            credential: credential.clone(),
            tenant: tenant.map(ToOwned::to_owned),
            uri,
            audience: endpoints.audience.clone(),
        })
    }

    /// Statuses of the token endpoint after which a request is retried.
    pub(crate) fn retried_statuses(&self) -> &'static [u16] {
        match self.credential {
            Credential::ManagedIdentity(_) => &[404, 408, 410, 429, 500, 502, 503, 504],
            _ => &[408, 429, 500, 502, 503, 504],
        }
    }

    /// The host of the token endpoint, for errors.
    pub(crate) fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// The token of `az`; `None` if this is another identity, whose tokens come with a request.
    pub(crate) async fn token_of_az(&self, now: Timestamp) -> Option<Result<IssuedToken, TokenError>> {
        match self.credential {
            Credential::AzureCli => Some(azure_cli::token(&self.audience, self.tenant.as_deref(), now).await),
            _ => None,
        }
    }

    /// Builds the request. Reads the service account's token anew, because kubelet replaces it.
    pub(crate) async fn token_request(&self) -> Result<Request<Bytes>, TokenError> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        let mut form = match &self.credential {
            Credential::ManagedIdentity(_) => {
                headers.insert("metadata", HeaderValue::from_static("true"));
                return Ok(request);
            }
            Credential::ClientSecret { client_id, secret } => vec![
                ("client_id", client_id.clone()),
                ("client_secret", secret.expose().to_owned()),
            ],
            Credential::AzureCli | Credential::None => {
                return Err(TokenError::AzureCli("it needs no request".to_owned()));
            }
            Credential::WorkloadIdentity { client_id, token_file } => vec![
                ("client_id", client_id.clone()),
                ("client_assertion_type", JWT_ASSERTION_TYPE.to_owned()),
                ("client_assertion", read_assertion(Path::new(token_file)).await?),
            ],
        };
        form.push(("grant_type", "client_credentials".to_owned()));
        form.push(("scope", format!("{}/.default", self.audience)));
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        *request.method_mut() = Method::POST;
        *request.body_mut() = Serializer::new(String::new()).extend_pairs(form).finish().into();
        Ok(request)
    }

    /// Reads the response to [`Self::token_request`].
    pub(crate) fn parse_response(response: &BufferedResponse, now: Timestamp) -> Result<IssuedToken, TokenError> {
        let document: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        if response.status() != StatusCode::OK {
            let description = text("error_description").unwrap_or_default();
            return Err(TokenError::ErrorResponse {
                status: response.status().as_u16(),
                error: text("error").unwrap_or("no reason given").to_owned(),
                description: description.lines().next().unwrap_or_default().to_owned(),
            });
        }
        let token = text("access_token").filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| TokenError::InvalidResponse("it has no access_token".to_owned()))?;
        let number = |name: &str| {
            let value = document.get(name)?;
            // IMDS writes numbers as strings.
            value.as_i64().or_else(|| value.as_str()?.parse().ok())
        };
        let seconds = number("expires_in").or_else(|| Some(number("expires_on")? - now.as_second()));
        let seconds =
            seconds.ok_or_else(|| TokenError::InvalidResponse("it has no expires_in and no expires_on".to_owned()))?;
        Ok(IssuedToken {
            token: Secret::new(token),
            lifetime: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(MAX_TOKEN_LIFETIME),
        })
    }
}

/// The token endpoint of a tenant in Microsoft Entra.
fn entra_uri(tenant: Option<&str>, endpoints: &Endpoints) -> Result<Uri, IdentityError> {
    let tenant = tenant
        .filter(|tenant| !tenant.is_empty())
        .ok_or(IdentityError::MissingTenant)?;
    let invalid = || IdentityError::InvalidTenant(tenant.to_owned());
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !tenant.bytes().all(allowed) || tenant.starts_with('.') {
        return Err(invalid());
    }
    let path = format!("/{tenant}/oauth2/v2.0/token");
    endpoints.authority.join(&path).map_err(|_| invalid())
}

/// The token endpoint of a managed identity. It is plain HTTP: the address is link-local, and the request has no secret.
fn imds_uri(selected: Option<&ManagedIdentity>, audience: &str, imds: &str) -> Result<Uri, IdentityError> {
    let mut query = Serializer::new(String::new());
    query.append_pair("api-version", "2018-02-01");
    query.append_pair("resource", audience);
    match selected {
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

/// Reads the service account's token, as kubelet last wrote it.
async fn read_assertion(file: &Path) -> Result<String, TokenError> {
    let unusable = |why: String| TokenError::File {
        file: file.display().to_string(),
        why,
    };
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = read
        .map_err(|error| unusable(error.to_string()))?
        .map_err(|error| unusable(error.to_string()))?;
    match text.trim() {
        "" => Err(unusable("it is empty".to_owned())),
        text if text.len() > MAX_ASSERTION_BYTES => {
            Err(unusable(format!("it is larger than {MAX_ASSERTION_BYTES} bytes")))
        }
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests;
