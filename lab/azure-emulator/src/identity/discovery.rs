//! Documents by which clients find endpoints: `GET /metadata/endpoints` and the `OpenID` configuration.
//!
//! `/metadata/endpoints` has two shapes: Terraform and az read an object (2022-09-01), cloud-provider-azure and older
//! tools the first element of a list (2019-05-01). Endpoints that the emulator has are at the address of the request.
//! The others are the public cloud's, since clients require them.

use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::super::error::ErrorResponse;
use super::super::query::Parameters;
use super::super::request::JsonResponse;

/// Audiences of tokens; clients use the first one.
const AUDIENCES: [&str; 2] = ["https://management.core.windows.net/", "https://management.azure.com/"];

/// The emulator's name and those of Azure's clouds. cloud-provider-azure takes the item with the name in its
/// configuration from a list and, if there is none, goes to Azure itself. So every name has the emulator's addresses.
const CLOUD_NAMES: [&str; 6] = [
    "HeadgateEmulator",
    "AzureCloud",
    "AzurePublicCloud",
    "AzureChinaCloud",
    "AzureUSGovernment",
    "AzureUSGovernmentCloud",
];

/// The document for the requested API version.
pub(super) fn endpoints(request: &Request<Bytes>, base: &str) -> Response<Bytes> {
    if request.method() != Method::GET {
        // Guess: the answer to other methods.
        let message = "The requested resource only supports GET.";
        return ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).response();
    }
    let query = Parameters::from_query(request);
    let Some(version) = query.get("api-version") else {
        return ErrorResponse::missing_version().response();
    };
    // Versions are dates; their text sorts in the same order.
    let body = match version {
        version if version < "2022-09-01" => CLOUD_NAMES.iter().map(|name| cloud(name, base)).collect(),
        _ => cloud(CLOUD_NAMES[0], base),
    };
    JsonResponse::new(StatusCode::OK, body).response()
}

/// One cloud, since API version 2019-05-01. A trailing slash in `loginEndpoint` would appear twice in some clients'
/// URLs.
fn cloud(name: &str, base: &str) -> Value {
    json!({
        "name": name,
        "portal": base,
        "authentication": {
            "loginEndpoint": base,
            "audiences": AUDIENCES,
            "tenant": "common",
            "identityProvider": "AAD",
        },
        "resourceManager": base,
        "graph": base,
        "graphAudience": base,
        "gallery": base,
        "media": "https://rest.media.azure.net",
        "batch": "https://batch.core.windows.net/",
        "sqlManagement": "https://management.core.windows.net:8443/",
        "vmImageAliasDoc":
            "https://raw.githubusercontent.com/Azure/azure-rest-api-specs/master/arm-compute/quickstart-templates/aliases.json",
        "activeDirectoryDataLake": "https://datalake.azure.net/",
        "microsoftGraphResourceId": "https://graph.microsoft.com/",
        "appInsightsResourceId": "https://api.applicationinsights.io",
        "appInsightsTelemetryChannelResourceId": "https://dc.applicationinsights.azure.com/v2/track",
        "attestationResourceId": "https://attest.azure.net",
        "synapseAnalyticsResourceId": "https://dev.azuresynapse.net",
        "logAnalyticsResourceId": "https://api.loganalytics.io",
        "ossrDbmsResourceId": "https://ossrdbms-aad.database.windows.net",
        "suffixes": {
            "acrLoginServer": "azurecr.io",
            "attestationEndpoint": "attest.azure.net",
            "azureDataLakeAnalyticsCatalogAndJob": "azuredatalakeanalytics.net",
            "azureDataLakeStoreFileSystem": "azuredatalakestore.net",
            "azureFrontDoorEndpointSuffix": "azurefd.net",
            "keyVaultDns": "vault.azure.net",
            "mariadbServerEndpoint": "mariadb.database.azure.com",
            "mhsmDns": "managedhsm.azure.net",
            "mysqlServerEndpoint": "mysql.database.azure.com",
            "postgresqlServerEndpoint": "postgres.database.azure.com",
            "sqlServerHostname": "database.windows.net",
            "storage": "core.windows.net",
            "storageSyncEndpointSuffix": "afs.azure.net",
            "synapseAnalytics": "dev.azuresynapse.net",
        },
    })
}

/// `GET /{tenant}/v2.0/.well-known/openid-configuration`.
pub(super) fn configuration(base: &str, tenant: &str) -> Response<Bytes> {
    let url = |path: &str| format!("{base}/{tenant}/{path}");
    let body = json!({
        "token_endpoint": url("oauth2/v2.0/token"),
        "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt", "client_secret_basic"],
        "jwks_uri": url("discovery/v2.0/keys"),
        "response_modes_supported": ["query", "fragment", "form_post"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["HS256"],
        "response_types_supported": ["code", "id_token", "code id_token", "id_token token"],
        "scopes_supported": ["openid", "profile", "email", "offline_access"],
        "issuer": url("v2.0"),
        "request_uri_parameter_supported": false,
        "authorization_endpoint": url("oauth2/v2.0/authorize"),
        "device_authorization_endpoint": url("oauth2/v2.0/devicecode"),
        "end_session_endpoint": url("oauth2/v2.0/logout"),
        "claims_supported": ["sub", "iss", "aud", "exp", "iat", "nbf", "tid", "ver"],
        "tenant_region_scope": "WW",
        "cloud_instance_name": "microsoftonline.com",
    });
    JsonResponse::new(StatusCode::OK, body).response()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://127.0.0.1:8443";

    fn send(query: &str) -> (u16, Value) {
        let uri = format!("/metadata/endpoints{query}");
        let response = endpoints(&Request::get(uri).body(Bytes::new()).unwrap(), BASE);
        let body = serde_json::from_slice(response.body()).unwrap();
        (response.status().as_u16(), body)
    }

    #[test]
    fn each_client_finds_what_it_reads() {
        for (version, pointers) in [
            // cloud-provider-azure, and az with ARM_CLOUD_METADATA_URL.
            (
                "2019-05-01",
                ["/0/authentication/loginEndpoint", "/0/resourceManager", "/0/portal"],
            ),
            // Terraform, and `az cloud register --endpoint-resource-manager`.
            (
                "2022-09-01",
                ["/authentication/loginEndpoint", "/resourceManager", "/portal"],
            ),
        ] {
            let (status, body) = send(&format!("?api-version={version}"));
            assert_eq!(status, 200);
            for pointer in pointers {
                assert_eq!(body.pointer(pointer), Some(&json!(BASE)), "{version} {pointer}");
            }
            let cloud = body.get(0).unwrap_or(&body);
            let first = &cloud["authentication"]["audiences"][0];
            assert_eq!(first, "https://management.core.windows.net/", "{version}");
        }
        let (_, clouds) = send("?api-version=2019-05-01");
        assert_eq!(
            clouds[0]["name"], "HeadgateEmulator",
            "a client that names no cloud takes the first"
        );
        for name in ["AzurePublicCloud", "AzureChinaCloud"] {
            let mut named = clouds.as_array().unwrap().iter().filter(|cloud| cloud["name"] == name);
            let cloud = named.next().unwrap();
            assert_eq!(cloud["resourceManager"], BASE, "{name}: not Azure's own");
        }
        let (_, body) = send("?api-version=2022-09-01");
        for name in [
            "name",
            "batch",
            "microsoftGraphResourceId",
            "sqlManagement",
            "vmImageAliasDoc",
        ] {
            assert!(body[name].is_string(), "{name}");
        }
        assert!(body["suffixes"].as_object().unwrap().values().all(Value::is_string));
        let (status, body) = send("");
        assert_eq!(
            (status, &body["error"]["code"]),
            (400, &json!("MissingApiVersionParameter"))
        );
    }
}
