//! What MSAL asks of an authority before it asks for a token. Every URL is on the address that was asked.

use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use serde_json::json;

use super::super::query::Parameters;
use super::super::request::Answer;
use super::entra::Version;

/// `GET /{tenant}/v2.0/.well-known/openid-configuration`, or without `v2.0`.
pub(super) fn configuration(base: &str, tenant: &str, version: Version) -> Response<Bytes> {
    let (oauth2, keys, issuer) = match version {
        Version::One => ("oauth2", "discovery/keys", format!("https://sts.windows.net/{tenant}/")),
        Version::Two => ("oauth2/v2.0", "discovery/v2.0/keys", format!("{base}/{tenant}/v2.0")),
    };
    let here = |path: &str| format!("{base}/{tenant}/{path}");
    let body = json!({
        "token_endpoint": here(&format!("{oauth2}/token")),
        "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt", "client_secret_basic"],
        "jwks_uri": here(keys),
        "response_modes_supported": ["query", "fragment", "form_post"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["HS256"],
        "response_types_supported": ["code", "id_token", "code id_token", "id_token token"],
        "scopes_supported": ["openid", "profile", "email", "offline_access"],
        "issuer": issuer,
        "request_uri_parameter_supported": false,
        "authorization_endpoint": here(&format!("{oauth2}/authorize")),
        "device_authorization_endpoint": here(&format!("{oauth2}/devicecode")),
        "end_session_endpoint": here(&format!("{oauth2}/logout")),
        "claims_supported": ["sub", "iss", "aud", "exp", "iat", "nbf", "tid", "ver"],
        "tenant_region_scope": "WW",
        "cloud_instance_name": "microsoftonline.com",
    });
    Answer::new(StatusCode::OK, body).response()
}

/// `GET /{tenant}/discovery/v2.0/keys`: none, since tokens are signed with a key that is shared with
/// nobody. Clients do not ask for it; a resource that wants to check our tokens cannot.
pub(super) fn keys() -> Response<Bytes> {
    Answer::new(StatusCode::OK, json!({"keys": []})).response()
}

/// `GET /common/discovery/instance`: the authority knows itself, by its one name.
pub(super) fn instance(request: &Request<Bytes>, base: &str) -> Response<Bytes> {
    let query = Parameters::of(request);
    let authorize = query
        .get("authorization_endpoint")
        .and_then(|url| url.strip_prefix(base));
    let tenant = authorize.and_then(|path| path.trim_start_matches('/').split('/').next());
    let tenant = tenant.filter(|tenant| !tenant.is_empty()).unwrap_or("common");
    let host = base.split_once("://").map_or(base, |(_, host)| host);
    let body = json!({
        "tenant_discovery_endpoint": format!("{base}/{tenant}/v2.0/.well-known/openid-configuration"),
        "api-version": "1.1",
        "metadata": [{"preferred_network": host, "preferred_cache": host, "aliases": [host]}],
    });
    Answer::new(StatusCode::OK, body).response()
}
