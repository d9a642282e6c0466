//! Token requests and how their responses are read.

use hyper::Response;
use serde_json::json;

use super::*;
use crate::{AzureCloud, ErrorClass};

/// The instance metadata service of every virtual machine.
const IMDS_ENDPOINT: &str = "http://169.254.169.254";

fn identity(credential: &Credential) -> Identity {
    Identity::new(
        credential,
        Some("t"),
        &Endpoints::for_cloud(AzureCloud::Public),
        IMDS_ENDPOINT,
    )
    .unwrap()
}

fn secret() -> Credential {
    Credential::ClientSecret {
        client_id: "c".to_owned(),
        secret: Secret::new("p&s w"),
    }
}

#[tokio::test]
async fn token_requests() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "ey.J.\n").unwrap();
    let workload = Credential::WorkloadIdentity {
        client_id: "c".to_owned(),
        token_file: file.display().to_string(),
    };
    let machine = |selected| Credential::ManagedIdentity(selected);
    let imds = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com";
    for (credential, method, uri, body) in [
        (
            secret(),
            "POST",
            "https://login.microsoftonline.com/t/oauth2/v2.0/token".to_owned(),
            "client_id=c&client_secret=p%26s+w&grant_type=client_credentials&scope=https%3A%2F%2Fmanagement.azure.com%2F.default",
        ),
        (
            workload,
            "POST",
            "https://login.microsoftonline.com/t/oauth2/v2.0/token".to_owned(),
            "client_id=c&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer&\
             client_assertion=ey.J.&grant_type=client_credentials&scope=https%3A%2F%2Fmanagement.azure.com%2F.default",
        ),
        (machine(None), "GET", imds.to_owned(), ""),
        (
            machine(Some(ManagedIdentity::ClientId("a b".to_owned()))),
            "GET",
            format!("{imds}&client_id=a+b"),
            "",
        ),
        (
            machine(Some(ManagedIdentity::ResourceId("/subscriptions/s".to_owned()))),
            "GET",
            format!("{imds}&msi_res_id=%2Fsubscriptions%2Fs"),
            "",
        ),
    ] {
        let request = identity(&credential).token_request().await.unwrap();
        assert_eq!((request.method().as_str(), request.uri().to_string()), (method, uri));
        assert_eq!(request.body(), body);
        assert_eq!(request.headers().contains_key("metadata"), method == "GET");
    }
}

#[tokio::test]
async fn unreadable_service_account_token_is_retriable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let workload = Credential::WorkloadIdentity {
        client_id: "c".to_owned(),
        token_file: file.display().to_string(),
    };
    let identity = identity(&workload);
    for text in [None, Some(" \n".to_owned()), Some("x".repeat(MAX_ASSERTION_BYTES + 1))] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let error = identity.token_request().await.err().unwrap();
        assert!(matches!(error, TokenError::File { .. }), "{error}");
        assert_eq!(error.class(), ErrorClass::Retriable);
    }
}

#[test]
fn settings_without_identity() {
    let endpoints = Endpoints::for_cloud(AzureCloud::Public);
    let error =
        |credential: &Credential, tenant, imds| Identity::new(credential, tenant, &endpoints, imds).err().unwrap();
    assert_eq!(
        error(&Credential::None, Some("t"), IMDS_ENDPOINT),
        IdentityError::NoCredential
    );
    assert_eq!(error(&secret(), None, IMDS_ENDPOINT), IdentityError::MissingTenant);
    assert_eq!(error(&secret(), Some(""), IMDS_ENDPOINT), IdentityError::MissingTenant);
    for tenant in ["a/b", "..", "a?b", "a b"] {
        assert_eq!(
            error(&secret(), Some(tenant), IMDS_ENDPOINT),
            IdentityError::InvalidTenant(tenant.to_owned())
        );
    }
    let machine = Credential::ManagedIdentity(None);
    for imds in ["", "x", "169.254.169.254", "http://"] {
        assert_eq!(error(&machine, None, imds), IdentityError::InvalidImds(imds.to_owned()));
    }
    assert!(
        Identity::new(&machine, None, &endpoints, IMDS_ENDPOINT).is_ok(),
        "a managed identity needs no tenant"
    );
}

#[test]
fn token_responses() {
    let now: Timestamp = "2026-11-21T09:00:00Z".parse().unwrap();
    let response = |status: u16, body: String| Response::builder().status(status).body(Bytes::from(body)).unwrap();
    for (body, seconds) in [
        (
            json!({"token_type": "Bearer", "expires_in": 3599, "access_token": "t"}),
            Some(3599),
        ),
        (
            json!({"expires_in": "86399", "expires_on": "1", "access_token": "t"}),
            Some(86399),
        ),
        (
            json!({"expires_on": (now.as_second() + 60).to_string(), "access_token": "t"}),
            Some(60),
        ),
        (json!({"expires_in": -5, "access_token": "t"}), Some(0)),
        (
            json!({"expires_in": 9_999_999_999_u64, "access_token": "t"}),
            Some(604_800),
        ),
        (json!({"expires_in": 3599, "access_token": ""}), None),
        (json!({"expires_in": 3599}), None),
        (json!({"access_token": "t"}), None),
        (json!({"access_token": "t", "expires_in": "soon"}), None),
        (json!([]), None),
    ] {
        let issued = Identity::parse_response(&response(200, body.to_string()), now);
        assert_eq!(issued.ok().map(|issued| issued.lifetime.as_secs()), seconds, "{body}");
    }
    for (status, body, text, class) in [
        (
            401,
            json!({"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret.\r\nTrace ID: t"}).to_string(),
            "no token: invalid_client (401): AADSTS7000215: Invalid client secret.",
            ErrorClass::Terminal,
        ),
        (
            400,
            json!({"error": "invalid_request", "error_description": "Identity not found"}).to_string(),
            "no token: invalid_request (400): Identity not found",
            ErrorClass::Terminal,
        ),
        (410, String::new(), "no token: no reason given (410): ", ErrorClass::Retriable),
        (503, "<html>".to_owned(), "no token: no reason given (503): ", ErrorClass::Retriable),
    ] {
        let error = Identity::parse_response(&response(status, body), now).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.class()), (text, class));
    }
}

#[test]
fn debug_shows_no_secret() {
    let identity = identity(&secret());
    let issued = Identity::parse_response(
        &Response::new(Bytes::from(
            json!({"expires_in": 1, "access_token": "tok3n"}).to_string(),
        )),
        Timestamp::UNIX_EPOCH,
    );
    let shown = format!("{identity:?} {issued:?}");
    assert!(!shown.contains("p&s w") && !shown.contains("tok3n"), "{shown}");
    assert_eq!(
        Identity::parse_response(&Response::new(Bytes::new()), Timestamp::UNIX_EPOCH)
            .err()
            .map(|error| error.class()),
        Some(ErrorClass::Terminal)
    );
}
