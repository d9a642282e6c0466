//! Entra's token endpoint: client credentials, with a secret or a federated token (workload identity).
//!
//! The format and the validity of a federated token are checked; its signature, issuer and audience are not, since the
//! emulator does not have the keys of any cluster.

use axum::http::header::CACHE_CONTROL;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::guids::guid_for_name;
use super::super::query::Parameters;
use super::super::request::JsonResponse;
use super::account::{IdentitySettings, Principal, UnknownAccount};
use super::tokens::payload;
use super::{CLOCK_SKEW, Identity};

/// Size of a form. One with a federated token has two or three thousand bytes.
const MAX_FORM_BYTES: usize = 64 * 1024;
/// The required value of `client_assertion_type`.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// An OAuth error response.
#[derive(Debug)]
struct TokenError {
    status: StatusCode,
    error: &'static str,
    /// The number after `AADSTS`.
    code: u32,
    message: String,
}

impl TokenError {
    fn new(status: StatusCode, error: &'static str, code: u32, message: impl Into<String>) -> Self {
        Self {
            status,
            error,
            code,
            message: message.into(),
        }
    }

    fn request(code: u32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", code, message)
    }

    fn client(code: u32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_client", code, message)
    }

    fn missing_parameter(parameter: &str) -> Self {
        let message = format!("The request body must contain the following parameter: '{parameter}'.");
        Self::request(900_144, message)
    }

    /// The HTTP response, with the ids that Microsoft's support asks for.
    fn response(&self, correlation: Option<&str>, now: Timestamp) -> Response<Bytes> {
        let trace = guid_for_name(&format!("trace {now} {}", self.code)).to_string();
        let correlation = correlation.map_or_else(
            || guid_for_name(&format!("correlation {now}")).to_string(),
            str::to_owned,
        );
        let time = now.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        let body = json!({
            "error": self.error,
            "error_description": format!(
                "AADSTS{}: {} Trace ID: {trace} Correlation ID: {correlation} Timestamp: {time}",
                self.code, self.message
            ),
            "error_codes": [self.code],
            "timestamp": time,
            "trace_id": trace,
            "correlation_id": correlation,
            "error_uri": format!("https://login.microsoftonline.com/error?code={}", self.code),
        });
        uncached_json(self.status, body)
    }
}

impl Identity {
    /// `POST /{tenant}/oauth2/v2.0/token`.
    pub(super) fn token(&self, tenant: &str, request: &Request<Bytes>, now: Timestamp) -> Response<Bytes> {
        match self.grant(tenant, request, now) {
            Ok(body) => uncached_json(StatusCode::OK, body),
            Err(error) => {
                let correlation = request.headers().get("client-request-id");
                error.response(correlation.and_then(|id| id.to_str().ok()), now)
            }
        }
    }

    fn grant(&self, tenant: &str, request: &Request<Bytes>, now: Timestamp) -> Result<Value, TokenError> {
        if request.method() != Method::POST {
            let message = format!(
                "The endpoint only accepts POST requests. Received a {} request.",
                request.method()
            );
            return Err(TokenError::request(900_561, message));
        }
        if request.body().len() > MAX_FORM_BYTES {
            // Guess: the answer to a form that is too large.
            return Err(TokenError::request(90_013, "Invalid input received from the user."));
        }
        let form = Parameters::parse(request.body());
        let grant = form
            .get("grant_type")
            .ok_or_else(|| TokenError::missing_parameter("grant_type"))?;
        if grant != "client_credentials" {
            let message = format!("The app requested an unsupported grant type '{grant}'.");
            return Err(TokenError::new(
                StatusCode::BAD_REQUEST,
                "unsupported_grant_type",
                70_003,
                message,
            ));
        }
        let client = form
            .get("client_id")
            .ok_or_else(|| TokenError::missing_parameter("client_id"))?;
        let account = self.client(tenant, client, &form, now)?;
        let issued = self.issue(&account, audience(&form)?, now);
        Ok(json!({
            "token_type": "Bearer",
            "expires_in": issued.expires_in(),
            "ext_expires_in": issued.expires_in(),
            "access_token": issued.token,
        }))
    }

    fn client(&self, tenant: &str, client: &str, form: &Parameters, now: Timestamp) -> Result<Principal, TokenError> {
        let listed = !self.settings.accounts.is_empty();
        let (account, known) = self.settings.client(tenant, client).map_err(|unknown| match unknown {
            UnknownAccount::Tenant => TokenError::request(
                90_002,
                format!(
                    "Tenant '{tenant}' not found. Check to make sure you have the correct tenant ID and are signing into \
                     the correct cloud. Check with your subscription administrator, this may happen if there are no \
                     active subscriptions for the tenant."
                ),
            ),
            UnknownAccount::Client => TokenError::new(
                StatusCode::BAD_REQUEST,
                "unauthorized_client",
                700_016,
                format!(
                    "Application with identifier '{client}' was not found in the directory '{tenant}'. This can happen if \
                     the application has not been installed by the administrator of the tenant or consented to by any \
                     user in the tenant. You may have sent your authentication request to the wrong tenant."
                ),
            ),
        })?;
        match (form.get("client_secret"), form.get("client_assertion")) {
            (Some(secret), _) => {
                if !IdentitySettings::accepts_secret(known, listed, secret) {
                    return Err(TokenError::client(
                        7_000_215,
                        format!(
                            "Invalid client secret provided. Ensure the secret being sent in the request is the client \
                             secret value, not the client secret ID, for a secret added to app '{client}'."
                        ),
                    ));
                }
            }
            // Some clients send the newline at the end of the projected token's file.
            (None, Some(assertion)) => check_assertion(form.get("client_assertion_type"), assertion.trim(), now)?,
            (None, None) => {
                return Err(TokenError::client(
                    7_000_216,
                    "'client_assertion', 'client_secret' or 'request' is required for the 'client_credentials' grant type.",
                ));
            }
        }
        Ok(account)
    }
}

/// Checks the format and the validity of a federated token.
fn check_assertion(kind: Option<&str>, assertion: &str, now: Timestamp) -> Result<(), TokenError> {
    if kind != Some(ASSERTION_TYPE) {
        // Guess: the answer to another type; the code is that of a missing parameter.
        return Err(TokenError::missing_parameter("client_assertion_type"));
    }
    // Guess: 401 and invalid_client, as for every other mistake in an assertion.
    let claims = payload(assertion).ok_or_else(|| TokenError::client(50_027, "JWT token is invalid or malformed."))?;
    let time_of = |name: &str| {
        let seconds = claims.get(name).and_then(Value::as_i64);
        seconds.and_then(|seconds| Timestamp::from_second(seconds).ok())
    };
    let (from, until) = (time_of("nbf").or_else(|| time_of("iat")), time_of("exp"));
    let is_expired = until.is_none_or(|until| until <= now);
    let is_early = from.is_some_and(|from| from > now + CLOCK_SKEW);
    if is_expired || is_early {
        let time = |at: Option<Timestamp>| at.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S.0000000Z");
        return Err(TokenError::client(
            700_024,
            format!(
                "Client assertion is not within its valid time range. Current time: {}, assertion valid from {}, expiry \
                 time of assertion {}. Review the documentation at \
                 https://learn.microsoft.com/entra/identity-platform/certificate-credentials .",
                time(Some(now)),
                time(from),
                time(until)
            ),
        ));
    }
    Ok(())
}

/// The resource in the scope. One is allowed, beside the scopes that every client adds.
fn audience(form: &Parameters) -> Result<&str, TokenError> {
    let scopes = form
        .get("scope")
        .ok_or_else(|| TokenError::missing_parameter("scope"))?;
    let mut resources = scopes
        .split_ascii_whitespace()
        .filter(|scope| !["openid", "profile", "offline_access"].contains(scope));
    let resource = match (resources.next(), resources.next()) {
        (Some(scope), None) => scope.strip_suffix("/.default"),
        _ => None,
    };
    resource.filter(|resource| !resource.is_empty()).ok_or_else(|| {
        TokenError::new(
            StatusCode::BAD_REQUEST,
            "invalid_scope",
            1_002_012,
            format!(
                "The provided value for scope {scopes} is not valid. Client credential flows must have a scope value with \
                 /.default suffixed to the resource identifier (application ID URI)."
            ),
        )
    })
}

fn uncached_json(status: StatusCode, body: Value) -> Response<Bytes> {
    JsonResponse::new(status, body)
        .header(CACHE_CONTROL, "no-store, no-cache")
        .response()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TENANT, get, listed, now, post, projected, send};
    use super::*;

    const GOOD: &str = "client_secret=hush";
    const GRANT: &str = "grant_type=client_credentials";
    const SCOPE: &str = "scope=https://management.azure.com/.default";

    fn refused(form: &str, status: u16, error: &str, code: u32) {
        let (seen, body) = send(&listed(), &post(&format!("/{TENANT}/oauth2/v2.0/token"), form));
        assert_eq!((seen, &body["error"]), (status, &json!(error)), "{form}: {body}");
        assert_eq!(body["error_codes"], json!([code]), "{form}: {body}");
        let description = body["error_description"].as_str().unwrap();
        assert!(description.starts_with(&format!("AADSTS{code}: ")), "{description}");
        assert!(
            !description.contains("hush") && !description.contains("'wrong"),
            "{description}"
        );
        assert_eq!(body["correlation_id"], "mine");
        assert_eq!(body["timestamp"], "2026-11-21 08:00:00Z");
    }

    #[test]
    fn incomplete_forms_are_refused() {
        let (app, large) = ("client_id=app", "x".repeat(MAX_FORM_BYTES));
        for form in [
            "",
            GRANT,
            &format!("{GRANT}&{app}&{GOOD}"),
            &format!("{app}&{GOOD}&{SCOPE}"),
        ] {
            refused(form, 400, "invalid_request", 900_144);
        }
        refused(
            &format!("grant_type=password&{app}"),
            400,
            "unsupported_grant_type",
            70_003,
        );
        refused(&format!("{GRANT}&{app}&{SCOPE}"), 401, "invalid_client", 7_000_216);
        refused(&format!("{GRANT}&{app}&x={large}"), 400, "invalid_request", 90_013);
        for scope in [
            "https://management.azure.com",
            "/.default",
            "a/.default+b/.default",
            "openid",
        ] {
            let form = format!("{GRANT}&{app}&{GOOD}&scope={scope}");
            refused(&form, 400, "invalid_scope", 1_002_012);
        }
        let (status, body) = send(&listed(), &get(&format!("/{TENANT}/oauth2/v2.0/token"), ""));
        assert_eq!((status, &body["error_codes"]), (400, &json!([900_561])));
    }

    #[test]
    fn wrong_credentials_are_refused() {
        // A client without a secret in the list cannot sign in with one.
        for client in ["app", "vm"] {
            let form = format!("{GRANT}&client_id={client}&{SCOPE}&client_secret=wrong");
            refused(&form, 401, "invalid_client", 7_000_215);
        }
        let form = |client: &str| format!("{GRANT}&client_id={client}&{SCOPE}&{GOOD}");
        refused(&form("unknown"), 400, "unauthorized_client", 700_016);
        let (status, body) = send(&listed(), &post("/other/oauth2/v2.0/token", &form("app")));
        assert_eq!((status, &body["error_codes"]), (400, &json!([90_002])));
        let second = now().as_second();
        let (old, early) = (
            projected(second - 600, second - 1),
            projected(second + 3600, second + 7200),
        );
        let form = format!("{GRANT}&client_id=app&{SCOPE}&client_assertion");
        refused(&format!("{form}={early}"), 400, "invalid_request", 900_144);
        let form = format!("client_assertion_type={ASSERTION_TYPE}&{form}");
        for (assertion, code) in [("a.b.c", 50_027), (old.as_str(), 700_024), (early.as_str(), 700_024)] {
            refused(&format!("{form}={assertion}"), 401, "invalid_client", code);
        }
    }
}
