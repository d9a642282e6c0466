//! Token requests and how their responses are read.

use hyper::Response;
use serde_json::json;

use super::*;
use crate::AzureCloud;
use crate::ErrorClass::{Retriable, Terminal};

/// The instance metadata service of every virtual machine.
const IMDS_ENDPOINT: &str = "http://169.254.169.254";

fn identity(credential: &Credential) -> Identity {
    let endpoints = Endpoints::for_cloud(AzureCloud::Public);
    Identity::new(credential, Some("t"), &endpoints, IMDS_ENDPOINT).unwrap()
}

fn secret() -> Credential {
    Credential::ClientSecret {
        client_id: "c".to_owned(),
        secret: Secret::new("p&s w"),
    }
}

/// The credential with the file of its assertion, which does not exist yet.
fn workload_identity() -> (tempfile::TempDir, std::path::PathBuf, Credential) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let credential = Credential::WorkloadIdentity {
        client_id: "c".to_owned(),
        token_file: file.display().to_string(),
    };
    (directory, file, credential)
}

#[tokio::test]
async fn token_requests() {
    let (_directory, file, workload) = workload_identity();
    std::fs::write(&file, "ey.J.\n").unwrap();
    let machine = |selected| Credential::ManagedIdentity(selected);
    let by_client = machine(Some(ManagedIdentity::ClientId("a b".to_owned())));
    let by_resource = machine(Some(ManagedIdentity::ResourceId("/subscriptions/s".to_owned())));
    let imds = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com";
    let imds_of_resource = format!("{imds}&msi_res_id=%2Fsubscriptions%2Fs");
    let login = "https://login.microsoftonline.com/t/oauth2/v2.0/token";
    let with_secret = "client_id=c&client_secret=p%26s+w&grant_type=client_credentials&scope=https%3A%2F%2Fmanagement.azure.com%2F.default";
    let with_assertion = "client_id=c&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer&\
         client_assertion=ey.J.&grant_type=client_credentials&scope=https%3A%2F%2Fmanagement.azure.com%2F.default";
    for (credential, method, uri, body) in [
        (secret(), "POST", login.to_owned(), with_secret),
        (workload, "POST", login.to_owned(), with_assertion),
        (machine(None), "GET", imds.to_owned(), ""),
        (by_client, "GET", format!("{imds}&client_id=a+b"), ""),
        (by_resource, "GET", imds_of_resource, ""),
    ] {
        let request = identity(&credential).token_request().await.unwrap();
        assert_eq!((request.method().as_str(), request.uri().to_string()), (method, uri));
        assert_eq!(request.body(), body);
        assert_eq!(request.headers().contains_key("metadata"), method == "GET");
    }
}

#[tokio::test]
async fn unreadable_service_account_token_is_retriable() {
    let (_directory, file, workload) = workload_identity();
    let identity = identity(&workload);
    for text in [None, Some(" \n".to_owned()), Some("x".repeat(MAX_ASSERTION_BYTES + 1))] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let error = identity.token_request().await.err().unwrap();
        assert!(matches!(error, TokenError::File { .. }), "{error}");
        assert_eq!(error.class(), Retriable);
    }
}

#[test]
fn settings_without_identity() {
    let endpoints = Endpoints::for_cloud(AzureCloud::Public);
    let error =
        |credential: &Credential, tenant, imds| Identity::new(credential, tenant, &endpoints, imds).err().unwrap();
    let no_credential = error(&Credential::None, Some("t"), IMDS_ENDPOINT);
    assert_eq!(no_credential, IdentityError::NoCredential);
    assert_eq!(error(&secret(), None, IMDS_ENDPOINT), IdentityError::MissingTenant);
    assert_eq!(error(&secret(), Some(""), IMDS_ENDPOINT), IdentityError::MissingTenant);
    for tenant in ["a/b", "..", "a?b", "a b"] {
        let invalid = IdentityError::InvalidTenant(tenant.to_owned());
        assert_eq!(error(&secret(), Some(tenant), IMDS_ENDPOINT), invalid);
    }
    let machine = Credential::ManagedIdentity(None);
    for imds in ["", "x", "169.254.169.254", "http://"] {
        assert_eq!(error(&machine, None, imds), IdentityError::InvalidImds(imds.to_owned()));
    }
    let without_tenant = Identity::new(&machine, None, &endpoints, IMDS_ENDPOINT);
    assert!(without_tenant.is_ok(), "a managed identity needs no tenant");
}

#[test]
fn token_responses() {
    let now: Timestamp = "2026-11-21T09:00:00Z".parse().unwrap();
    let response = |status: u16, body: String| Response::builder().status(status).body(Bytes::from(body)).unwrap();
    let both = json!({"access_token": "t", "expires_in": "86399", "expires_on": "1"});
    let in_a_minute = (now.as_second() + 60).to_string();
    let long = 9_999_999_999_u64;
    for (body, seconds) in [
        (json!({"access_token": "t", "expires_in": 3599}), Some(3599)),
        (both, Some(86399)),
        (json!({"access_token": "t", "expires_on": in_a_minute}), Some(60)),
        (json!({"access_token": "t", "expires_in": -5}), Some(0)),
        (json!({"access_token": "t", "expires_in": long}), Some(604_800)),
        (json!({"access_token": "", "expires_in": 3599}), None),
        (json!({"expires_in": 3599}), None),
        (json!({"access_token": "t"}), None),
        (json!({"access_token": "t", "expires_in": "soon"}), None),
        (json!([]), None),
    ] {
        let issued = Identity::parse_response(&response(200, body.to_string()), now);
        assert_eq!(issued.ok().map(|issued| issued.lifetime.as_secs()), seconds, "{body}");
    }
    let wrong_secret =
        json!({"error": "invalid_client", "error_description": "AADSTS7000215: Invalid.\r\nTrace ID: t"}).to_string();
    let no_identity = json!({"error": "invalid_request", "error_description": "Identity not found"}).to_string();
    let (none, html) = (String::new(), "<html>".to_owned());
    for (status, body, text, class) in [
        (
            401,
            wrong_secret,
            "invalid_client (401): AADSTS7000215: Invalid.",
            Terminal,
        ),
        (400, no_identity, "invalid_request (400): Identity not found", Terminal),
        (410, none, "no reason given (410): ", Retriable),
        (503, html, "no reason given (503): ", Retriable),
    ] {
        let error = Identity::parse_response(&response(status, body), now).unwrap_err();
        assert_eq!((error.to_string(), error.class()), (format!("no token: {text}"), class));
    }
}

#[test]
fn debug_shows_no_secret() {
    let identity = identity(&secret());
    let body = json!({"expires_in": 1, "access_token": "tok3n"}).to_string();
    let issued = Identity::parse_response(&Response::new(body.into()), Timestamp::UNIX_EPOCH);
    let shown = format!("{identity:?} {issued:?}");
    assert!(!shown.contains("p&s w") && !shown.contains("tok3n"), "{shown}");
    let empty = Identity::parse_response(&Response::new(Bytes::new()), Timestamp::UNIX_EPOCH);
    assert_eq!(empty.unwrap_err().class(), Terminal);
}
