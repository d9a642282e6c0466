//! Requests as Microsoft's clients send them, and the fields that they need in the answers.

use serde_json::{Value, json};

use super::tokens::payload;
use super::*;

pub(super) const BASE: &str = "https://127.0.0.1:8443";
pub(super) const ARM: &str = "https://management.azure.com";
pub(super) const TENANT: &str = "11111111-2222-3333-4444-555555555555";

pub(super) fn now() -> Timestamp {
    "2026-11-21T08:00:00Z".parse().unwrap()
}

pub(super) fn listed() -> Identity {
    let settings = json!({"accounts": [
        {"tenantId": TENANT, "clientId": "app", "clientSecret": "hush"},
        {"tenantId": TENANT, "clientId": "vm", "resourceId": "/subscriptions/s/vm"},
    ]});
    Identity::new(serde_json::from_value(settings).unwrap(), &[7; 32])
}

pub(super) fn any_account() -> Identity {
    Identity::new(IdentitySettings::default(), &[7; 32])
}

pub(super) fn send(identity: &Identity, request: &Request<Bytes>) -> (u16, Value) {
    let response = identity.answer(request, BASE, now()).unwrap();
    assert_eq!(response.headers()["content-type"], "application/json; charset=utf-8");
    let body = serde_json::from_slice(response.body()).unwrap();
    (response.status().as_u16(), body)
}

/// A request with `name: value` headers.
pub(super) fn get(uri: &str, headers: &str) -> Request<Bytes> {
    let headers = headers.lines().filter_map(|line| line.split_once(": "));
    let request = headers.fold(Request::get(uri), |request, (name, value)| request.header(name, value));
    request.body(Bytes::new()).unwrap()
}

/// A request for a token, with a form as it is on the wire.
pub(super) fn post(path: &str, form: &str) -> Request<Bytes> {
    let body = Bytes::from(form.to_owned());
    Request::post(path)
        .header("client-request-id", "mine")
        .body(body)
        .unwrap()
}

/// A projected service account token.
pub(super) fn projected(from: i64, until: i64) -> String {
    let account = Principal {
        tenant: "cluster".to_owned(),
        client: "pod".to_owned(),
        object: "pod".to_owned(),
    };
    Signer::new(b"the cluster's").sign(&account, "api://AzureADTokenExchange", from, until)
}

pub(super) fn bearer(token: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("Bearer {token}")).unwrap()
}

/// Requests a token, authenticates with it, and returns the answer of the token endpoint.
fn granted(case: &str, request: &Request<Bytes>, client: &str, audience: &str) -> Value {
    let identity = listed();
    let (status, body) = send(&identity, request);
    assert_eq!((status, &body["token_type"]), (200, &json!("Bearer")), "{case}: {body}");
    let token = body["access_token"].as_str().unwrap();
    assert_eq!(payload(token).unwrap()["aud"], audience, "{case}");
    let principal = identity.principal(Some(&bearer(token)), BASE, now()).unwrap();
    assert_eq!(
        (principal.client.as_str(), principal.tenant.as_str()),
        (client, TENANT),
        "{case}"
    );
    body
}

#[test]
fn applications_get_tokens_that_the_emulator_accepts() {
    let assertion = projected(now().as_second() - 60, now().as_second() + 600);
    let app = "client_id=app&grant_type=client_credentials";
    let secret = format!("{app}&client_secret=hush");
    let asserted = format!(
        "{app}&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer\
         &client_assertion={assertion}"
    );
    let arm = "scope=https%3A%2F%2Fmanagement.azure.com%2F.default";
    for (case, form, audience) in [
        (
            "MSAL for Python",
            format!("{secret}&client_info=1&claims=%7B%7D&{arm}"),
            ARM,
        ),
        (
            "MSAL for Go, with the emulator's own address",
            format!("{secret}&scope=https%3A%2F%2F127.0.0.1%3A8443%2F.default+openid+offline_access+profile"),
            BASE,
        ),
        (
            "the slash belongs to the resource",
            format!("{secret}&scope=https%3A%2F%2Fmanagement.core.windows.net%2F%2F.default"),
            "https://management.core.windows.net/",
        ),
        (
            "workload identity in Python, with the file's newline",
            format!("{asserted}%0A&{arm}"),
            ARM,
        ),
        ("workload identity in Go", format!("{asserted}&{arm}"), ARM),
    ] {
        let request = post(&format!("/{TENANT}/oauth2/v2.0/token"), &form);
        let body = granted(case, &request, "app", audience);
        assert_eq!(
            (&body["expires_in"], &body["ext_expires_in"]),
            (&json!(3599), &json!(3599)),
            "{case}"
        );
    }
}

#[test]
fn machines_get_tokens_that_are_all_strings() {
    let imds = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://management.azure.com";
    let app_service = "/msi/token?api-version=2019-08-01&resource=https://management.azure.com";
    let header = "X-IDENTITY-HEADER: emulator";
    for (case, path, more, headers, audience) in [
        ("azure-identity", imds, "", "Metadata: true", ARM),
        (
            "the documentation",
            imds,
            "/",
            "Metadata: true",
            "https://management.azure.com/",
        ),
        ("by client", imds, "&client_id=vm", "Metadata: true", ARM),
        (
            "by resource, as MSAL",
            imds,
            "&msi_res_id=/subscriptions/s/vm",
            "Metadata: true",
            ARM,
        ),
        (
            "by resource, as documented",
            imds,
            "&mi_res_id=/subscriptions/S/vm",
            "Metadata: true",
            ARM,
        ),
        ("cloud-provider-azure", app_service, "", header, ARM),
        ("App Service, by client", app_service, "&client_id=vm", header, ARM),
    ] {
        let body = granted(case, &get(&format!("{path}{more}"), headers), "vm", audience);
        assert!(
            body.as_object().unwrap().values().all(Value::is_string),
            "{case}: {body}"
        );
        assert_eq!(body["expires_on"], (now().as_second() + 3600).to_string(), "{case}");
        assert_eq!(
            (&body["resource"], &body["client_id"]),
            (&json!(audience), &json!("vm")),
            "{case}"
        );
    }
}

#[test]
fn without_a_list_every_account_is_accepted() {
    let identity = any_account();
    let form = "client_id=x&grant_type=client_credentials&client_secret=y&scope=https://vault.azure.net/.default";
    let (status, body) = send(&identity, &post("/any/oauth2/v2.0/token", form));
    assert_eq!(status, 200);
    // A token for another audience is issued, but ARM does not accept it.
    let token = bearer(body["access_token"].as_str().unwrap());
    let error = identity.principal(Some(&token), BASE, now()).unwrap_err();
    assert_eq!(error.code, "InvalidAuthenticationTokenAudience");
    let uri = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=r&client_id=mine";
    assert_eq!(send(&identity, &get(uri, "Metadata: True")).1["client_id"], "mine");
}

#[test]
fn msal_finds_the_endpoints() {
    let identity = any_account();
    let (_, body) = send(
        &identity,
        &get(&format!("/{TENANT}/v2.0/.well-known/openid-configuration"), ""),
    );
    for (name, path) in [
        ("token_endpoint", "/oauth2/v2.0/token"),
        ("authorization_endpoint", "/oauth2/v2.0/authorize"),
        ("issuer", "/v2.0"),
        ("jwks_uri", "/discovery/v2.0/keys"),
    ] {
        assert_eq!(body[name], format!("{BASE}/{TENANT}{path}"));
    }
    assert_eq!(
        send(&identity, &get("/metadata/endpoints?api-version=2022-09-01", "")).0,
        200
    );
    for path in [
        "/",
        "/subscriptions/s",
        "/metadata/scheduledevents",
        "/subscriptions/s/oauth2",
        "/a/b/oauth2/token/c",
        "//",
    ] {
        assert!(identity.answer(&get(path, ""), BASE, now()).is_none(), "{path}");
    }
}

#[test]
fn unauthenticated_callers_get_the_reason() {
    let identity = listed();
    let account = identity.settings.client(TENANT, "app").unwrap().0;
    let issued = |audience, at: Timestamp| identity.issue(&account, audience, at).token;
    let good = issued(ARM, now());
    let bearers = |token: &str| Some(bearer(token));
    let long_ago = now() - Duration::from_mins(158);
    let missing = (
        "AuthenticationFailed",
        "Authentication failed. The 'Authorization' header is missing.",
    );
    let not_bearer = ("AuthenticationFailedInvalidHeader", "Authentication failed.");
    let invalid = ("InvalidAuthenticationToken", "The access token is invalid.");
    let expired = (
        "ExpiredAuthenticationToken",
        "The access token expiry UTC time '11/21/2026 6:22:00 AM' is earlier than current UTC time '11/21/2026 8:00:00 AM'.",
    );
    let elsewhere = (
        "InvalidAuthenticationTokenAudience",
        "The access token has been obtained for wrong audience or resource '",
    );
    let early = now() + Duration::from_mins(6);
    for (header, (code, message)) in [
        (None, missing),
        (Some(HeaderValue::from_static("Basic YTpi")), not_bearer),
        (Some(HeaderValue::from_static("Bearer")), not_bearer),
        (Some(HeaderValue::from_bytes(b"Bearer \xff").unwrap()), not_bearer),
        (bearers("garbage"), invalid),
        (bearers(&good[..good.len() - 4]), invalid),
        (bearers(&projected(0, 9_999_999_999)), invalid),
        (bearers(&issued(ARM, early)), invalid),
        (bearers(&issued(ARM, long_ago)), expired),
        (bearers(&issued("https://graph.microsoft.com", now())), elsewhere),
        (bearers(&issued("http://127.0.0.1:1", now())), elsewhere),
    ] {
        let error = identity.principal(header.as_ref(), BASE, now()).unwrap_err();
        assert_eq!((error.status.as_u16(), error.code.as_str()), (401, code));
        assert!(error.message.starts_with(message), "{}", error.message);
        let response = error.response();
        let challenge = response.headers()["www-authenticate"].to_str().unwrap();
        let start =
            format!("Bearer authorization_uri=\"{BASE}/{TENANT}\", error=\"invalid_token\", error_description=\"The ");
        assert!(challenge.starts_with(&start), "{challenge}");
        assert_eq!(challenge.matches('"').count(), 6, "{challenge}");
    }
}

#[test]
fn callers_are_authenticated_until_the_token_expires() {
    let identity = listed();
    let account = identity.settings.client(TENANT, "app").unwrap().0;
    let issued = |audience| Some(bearer(&identity.issue(&account, audience, now()).token));
    let later = now() + Duration::from_secs(3599);
    for audience in [
        ARM,
        "https://management.azure.com/",
        "https://management.core.windows.net/",
        "https://management.core.windows.net",
        "https://management.usgovcloudapi.net",
        "https://management.core.usgovcloudapi.net",
        "https://management.chinacloudapi.cn/",
        BASE,
        "https://127.0.0.1:8443/",
    ] {
        for base in [BASE, "https://127.0.0.1:8443/"] {
            let principal = identity.principal(issued(audience).as_ref(), base, later);
            assert_eq!(principal.unwrap().client, "app", "{audience}");
        }
    }
    let text = format!("{identity:?}");
    assert!(!text.contains("hush"), "{text}");
}
