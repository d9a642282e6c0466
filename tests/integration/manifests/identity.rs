//! headgate's identity in Azure in the examples: pods that can lead have azure.json and a token at the
//! configured paths, and no other pods have them.

use std::collections::BTreeMap;

use headgate_azure::{AzureJson, ConfigSources, Credential};
use headgate_test_kubernetes::scratch;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::rendering::{folder, hardened_with_identity, leading_agents, merged};
use super::{only, render, text};

const CLIENT: &str = "00000000-0000-0000-0000-000000000003";
const FLAG: &str = "--azure-config-file=";

fn webhook() -> Value {
    let webhook = json!({"azure": {"workloadIdentity": "webhook"}});
    merged(leading_agents(), webhook)
}

fn objects_of(values: &Value) -> Vec<Value> {
    render(&folder(values))
}

fn pod<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    &only(objects, kind)["spec"]["template"]["spec"]
}

fn arguments(pod: &Value) -> Vec<String> {
    serde_json::from_value(pod["containers"][0]["args"].clone()).unwrap()
}

/// The sources of the projected volume that is mounted read-only at the path, and the path within the volume.
fn projected<'a>(pod: &'a Value, path: &'a str) -> (&'a Vec<Value>, &'a str) {
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let inside = |mount: &'a Value| {
        let below = path.strip_prefix(mount["mountPath"].as_str()?)?;
        Some((mount, below.strip_prefix('/')?))
    };
    let (mount, below) = mounts.iter().find_map(inside).unwrap();
    assert_eq!(mount["readOnly"], true, "{mount}");
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    (volume["projected"]["sources"].as_array().unwrap(), below)
}

/// The configuration of a pod of these objects, from azure.json, its environment and these variables.
fn loaded(objects: &[Value], kind: &str, more: &[(&str, &str)]) -> AzureJson {
    let pod = pod(objects, kind);
    let arguments = arguments(pod);
    let flags: Vec<&str> = arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix(FLAG))
        .collect();
    assert_eq!(flags.len(), 1, "{arguments:?}");
    let (sources, file) = projected(pod, flags[0]);
    let secret = only(objects, "Secret");
    // The settings are still mounted.
    let settings = &only(objects, "ConfigMap")["metadata"]["name"];
    assert_eq!(sources[0], json!({"configMap": {"name": settings}}));
    let item = json!({"key": "azure.json", "path": file, "mode": 0o440});
    assert_eq!(
        sources[1],
        json!({"secret": {"name": secret["metadata"]["name"], "items": [item]}})
    );
    assert_eq!(
        pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"],
        "who reads it"
    );

    // kustomize folds the base64 text.
    let data = secret["data"]["azure.json"].as_str().unwrap().replace('\n', "");
    let text: ByteString = serde_json::from_value(json!(data)).unwrap();
    let path = scratch("azure").join("azure.json");
    std::fs::write(&path, text.0).unwrap();
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let value = |variable: &Value| {
        let value = variable["value"].as_str()?;
        Some((variable["name"].as_str()?.to_owned(), value.to_owned()))
    };
    let mut values: BTreeMap<String, String> = env.iter().filter_map(value).collect();
    values.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let environment = |name: &str| values.get(name).cloned();
    let sources = ConfigSources {
        file: Some(&path),
        secret: None,
        environment: Some(&environment),
    };
    AzureJson::load(sources).unwrap()
}

#[test]
fn workload_identity_projects_the_token() {
    for (values, kind) in [
        (leading_agents(), "DaemonSet"),
        (hardened_with_identity(), "Deployment"),
    ] {
        let objects = objects_of(&values);
        let taken = loaded(&objects, kind, &[]);
        let Credential::WorkloadIdentity { client_id, token_file } = &taken.credential else {
            panic!("{:?}", taken.credential)
        };
        assert_eq!(client_id, CLIENT);
        assert!(taken.tenant_id.is_some() && taken.subscription_id.is_some() && taken.resource_group.is_some());
        let (sources, file) = projected(pod(&objects, kind), token_file);
        let source = json!({"serviceAccountToken": {"path": file, "expirationSeconds": 3600,
            "audience": "api://AzureADTokenExchange"}});
        assert_eq!(sources, &[source]);
    }
}

#[test]
fn pods_match_what_the_webhook_injects() {
    let objects = objects_of(&webhook());
    let account = &only(&objects, "ServiceAccount")["metadata"]["annotations"];
    assert_eq!(account, &json!({"azure.workload.identity/client-id": CLIENT}));
    let template = &only(&objects, "DaemonSet")["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["azure.workload.identity/use"], "true");
    let file = "/var/run/secrets/azure/tokens/azure-identity-token";
    let put_in = [
        ("AZURE_CLIENT_ID", CLIENT),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_FEDERATED_TOKEN_FILE", file),
    ];
    let taken = loaded(&objects, "DaemonSet", &put_in);
    let expected = Credential::WorkloadIdentity {
        client_id: CLIENT.to_owned(),
        token_file: file.to_owned(),
    };
    assert_eq!(taken.credential, expected);
}

#[test]
fn pods_that_can_lead_have_a_larger_memory_limit() {
    let memory = |objects: &[Value], kind| pod(objects, kind)["containers"][0]["resources"]["limits"]["memory"].clone();
    assert_eq!(memory(&objects_of(&leading_agents()), "DaemonSet"), "256Mi");
    assert_eq!(memory(&objects_of(&hardened_with_identity()), "Deployment"), "256Mi");
    assert_eq!(memory(&objects_of(&hardened_with_identity()), "DaemonSet"), "64Mi");
}

/// The examples of `azure.json` in the README for the other kinds of credential.
#[test]
fn azure_json_examples_of_the_readme_have_the_documented_credential_kinds() {
    let readme = text("manifests/azure/README.md");
    let blocks = readme.split("```json\n").skip(1);
    let kinds: Vec<Credential> = blocks
        .map(|rest| {
            let path = scratch("azure").join("azure.json");
            std::fs::write(&path, rest.split("```").next().unwrap()).unwrap();
            let sources = ConfigSources {
                file: Some(&path),
                ..ConfigSources::default()
            };
            AzureJson::load(sources).unwrap().credential
        })
        .collect();
    assert!(
        matches!(
            &kinds[..],
            [Credential::ManagedIdentity(Some(_)), Credential::ClientSecret { .. }]
        ),
        "{kinds:?}"
    );
}
