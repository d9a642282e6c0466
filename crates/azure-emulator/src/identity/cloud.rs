//! `GET /metadata/endpoints`, by which clients of a cloud that they do not know find its parts: Terraform
//! and az read an object (2022-09-01), cloud-provider-azure and older tools the first of a list
//! (2019-05-01), Azure Stack's an object of other names (2015-01-01).
//!
//! Everything that the emulator has is on the address that was asked; of the rest, the public cloud's
//! addresses are told, since clients want them to be there.

use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::super::error::ArmError;
use super::super::query::Parameters;
use super::super::request::Answer;

/// What tokens are asked for: clients take the first.
const AUDIENCES: [&str; 2] = ["https://management.core.windows.net/", "https://management.azure.com/"];

/// Our own name, and those of Azure's clouds. cloud-provider-azure takes from a list the item called as its
/// configuration says, and where there is none goes to Azure itself: every cloud of a list is this one.
const NAMES: [&str; 6] = [
    "HeadgateEmulator",
    "AzureCloud",
    "AzurePublicCloud",
    "AzureChinaCloud",
    "AzureUSGovernment",
    "AzureUSGovernmentCloud",
];

/// The document of the version that is asked for.
pub(super) fn endpoints(request: &Request<Bytes>, base: &str) -> Response<Bytes> {
    if request.method() != Method::GET {
        // A guess: what other methods get.
        let message = "The requested resource only supports GET.";
        return ArmError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).response();
    }
    let query = Parameters::of(request);
    let Some(version) = query.get("api-version") else {
        let message = "The api-version query parameter (?api-version=) is required for all requests.";
        return ArmError::new(StatusCode::BAD_REQUEST, "MissingApiVersionParameter", message).response();
    };
    // Versions are dates, which their text orders.
    let body = match version {
        "1.0" => oldest(base),
        version if version < "2019-05-01" => old(base),
        version if version < "2022-09-01" => NAMES.iter().map(|name| cloud(name, base)).collect(),
        _ => cloud(NAMES[0], base),
    };
    Answer::new(StatusCode::OK, body).response()
}

/// 2015-01-01.
fn oldest(base: &str) -> Value {
    json!({
        "galleryEndpoint": base,
        "graphEndpoint": base,
        "portalEndpoint": base,
        "authentication": {"loginEndpoint": base, "audiences": AUDIENCES},
    })
}

/// 2018-01-01, without the list of all regions of all clouds.
fn old(base: &str) -> Value {
    let mut document = oldest(base);
    document["graphAudience"] = base.into();
    document["authentication"]["tenant"] = "common".into();
    document["authentication"]["identityProvider"] = "AAD".into();
    document
}

/// Since 2019-05-01. A trailing slash of `loginEndpoint` would come twice in the URLs of some clients.
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

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://127.0.0.1:8443";

    fn asked(query: &str) -> (u16, Value) {
        let uri = format!("/metadata/endpoints{query}");
        let response = endpoints(&Request::get(uri).body(Bytes::new()).unwrap(), BASE);
        let body = serde_json::from_slice(response.body()).unwrap();
        (response.status().as_u16(), body)
    }

    #[test]
    fn each_client_finds_what_it_reads() {
        for (version, pointers) in [
            (
                "1.0",
                ["/authentication/loginEndpoint", "/graphEndpoint", "/galleryEndpoint"],
            ),
            (
                "2015-01-01",
                ["/authentication/loginEndpoint", "/graphEndpoint", "/portalEndpoint"],
            ),
            (
                "2018-01-01",
                ["/authentication/loginEndpoint", "/graphAudience", "/portalEndpoint"],
            ),
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
            let (status, body) = asked(&format!("?api-version={version}"));
            assert_eq!(status, 200);
            for pointer in pointers {
                assert_eq!(body.pointer(pointer), Some(&json!(BASE)), "{version} {pointer}");
            }
            let cloud = body.get(0).unwrap_or(&body);
            let first = &cloud["authentication"]["audiences"][0];
            assert_eq!(first, "https://management.core.windows.net/", "{version}");
        }
        let (_, clouds) = asked("?api-version=2019-05-01");
        assert_eq!(clouds[0]["name"], "HeadgateEmulator", "who names none takes the first");
        for name in ["AzurePublicCloud", "AzureChinaCloud"] {
            let mut named = clouds.as_array().unwrap().iter().filter(|cloud| cloud["name"] == name);
            let cloud = named.next().unwrap();
            assert_eq!(cloud["resourceManager"], BASE, "{name}: not Azure's own");
        }
        let (_, body) = asked("?api-version=2022-09-01");
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
        let (status, body) = asked("");
        assert_eq!(
            (status, &body["error"]["code"]),
            (400, &json!("MissingApiVersionParameter"))
        );
    }
}
