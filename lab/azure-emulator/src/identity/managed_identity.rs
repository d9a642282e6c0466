//! Tokens for managed identities: IMDS' endpoint for virtual machines, and App Service's.

use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::query::{Parameters, has_metadata_header};
use super::super::request::JsonResponse;
use super::account::IdentitySelector;
use super::{Identity, Issued};

/// The required value of `X-IDENTITY-HEADER`.
const IDENTITY_HEADER: &str = "emulator";
/// The version of App Service's endpoint that clients use.
const APP_SERVICE_VERSION: &str = "2019-08-01";

impl Identity {
    /// `GET /metadata/identity/oauth2/token`: every value is a string.
    pub(super) fn imds_token(&self, request: &Request<Bytes>, now: Timestamp) -> Response<Bytes> {
        let bad_request = |error, why: &str| error_response(StatusCode::BAD_REQUEST, error, why);
        let query = Parameters::from_query(request);
        if !has_metadata_header(request.headers()) {
            return bad_request("bad_request_102", "Required metadata header not specified");
        }
        if request.method() != Method::GET {
            return error_response(StatusCode::METHOD_NOT_ALLOWED, "invalid_request", "Method not allowed");
        }
        // Guess: the wording of this error and the next.
        if query.get("api-version").is_none() {
            return bad_request("invalid_request", "Required query variable 'api-version' is missing");
        }
        let Some(resource) = query.get("resource") else {
            return bad_request("invalid_request", "Required query variable 'resource' is missing");
        };
        match self.managed_token(&query, resource, now) {
            Ok((mut body, issued)) => {
                body["expires_in"] = issued.expires_in().to_string().into();
                body["ext_expires_in"] = issued.expires_in().to_string().into();
                JsonResponse::new(StatusCode::OK, body).response()
            }
            Err(why) => bad_request("invalid_request", why),
        }
    }

    /// The answer that both services give, with the token in it.
    fn managed_token(
        &self,
        query: &Parameters,
        resource: &str,
        now: Timestamp,
    ) -> Result<(Value, Issued), &'static str> {
        let account = self.settings.managed_identity(&selector(query))?;
        let issued = self.issue(&account, resource, now);
        let body = json!({
            "access_token": issued.token,
            "client_id": account.client,
            "expires_on": issued.until.to_string(),
            "not_before": issued.from.to_string(),
            "resource": resource,
            "token_type": "Bearer",
        });
        Ok((body, issued))
    }

    /// `GET /msi/token`, which `IDENTITY_ENDPOINT` names.
    pub(super) fn app_service(&self, request: &Request<Bytes>, now: Timestamp) -> Response<Bytes> {
        let query = Parameters::from_query(request);
        // Guess: status and wording of these errors. MSAL reads the members.
        let error_response = |status: StatusCode, why: &str| {
            JsonResponse::new(status, json!({"statusCode": status.as_u16(), "message": why})).response()
        };
        let bad_request = |why: &str| error_response(StatusCode::BAD_REQUEST, why);
        let header = request.headers().get("x-identity-header");
        let header = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
        if header != IDENTITY_HEADER {
            let why = "The X-IDENTITY-HEADER is missing or not the one of IDENTITY_HEADER";
            return error_response(StatusCode::UNAUTHORIZED, why);
        }
        if request.method() != Method::GET {
            return error_response(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed");
        }
        if query.get("api-version") != Some(APP_SERVICE_VERSION) {
            return bad_request("The api-version must be 2019-08-01");
        }
        let Some(resource) = query.get("resource") else {
            return bad_request("The resource is missing");
        };
        match self.managed_token(&query, resource, now) {
            Ok((body, _)) => JsonResponse::new(StatusCode::OK, body).response(),
            Err(why) => bad_request(why),
        }
    }
}

/// The requested identity. Clients use different names for the parameters, and so do the two services.
fn selector(query: &Parameters) -> IdentitySelector<'_> {
    IdentitySelector {
        client: query.get("client_id").or_else(|| query.get("clientid")),
        resource: query.get("msi_res_id").or_else(|| query.get("mi_res_id")),
    }
}

fn error_response(status: StatusCode, error: &str, description: &str) -> Response<Bytes> {
    JsonResponse::new(status, json!({"error": error, "error_description": description})).response()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{get, listed, send};

    #[test]
    fn errors_name_what_is_wrong() {
        let (imds, app_service) = ("/metadata/identity/oauth2/token", "/msi/token");
        let (metadata, header) = ("Metadata: true", "X-IDENTITY-HEADER: emulator");
        let (of_imds, of_app_service) = ("api-version=2018-02-01&resource=r", "api-version=2019-08-01&resource=r");
        for (path, query, headers, status, error) in [
            (imds, of_imds, "", 400, "bad_request_102"),
            (imds, of_imds, "Metadata: false", 400, "bad_request_102"),
            (
                imds,
                of_imds,
                "Metadata: true\nX-Forwarded-For: a",
                400,
                "bad_request_102",
            ),
            (imds, "resource=r", metadata, 400, "invalid_request"),
            (imds, "api-version=2018-02-01", metadata, 400, "invalid_request"),
            (
                imds,
                &format!("{of_imds}&client_id=no"),
                metadata,
                400,
                "invalid_request",
            ),
            (app_service, of_app_service, "", 401, ""),
            (app_service, of_app_service, "X-IDENTITY-HEADER: no", 401, ""),
            (app_service, "api-version=2017-09-01&resource=r", header, 400, ""),
            (app_service, "api-version=2019-08-01", header, 400, ""),
            (app_service, &format!("{of_app_service}&client_id=no"), header, 400, ""),
        ] {
            let (seen, body) = send(&listed(), &get(&format!("{path}?{query}"), headers));
            assert_eq!(seen, status, "{path} {query}");
            if path == imds {
                assert_eq!(body["error"], error, "{query}");
                assert!(body["error_description"].is_string());
            } else {
                assert_eq!(body["statusCode"], status, "{query}");
                assert!(body["message"].is_string());
            }
        }
    }
}
