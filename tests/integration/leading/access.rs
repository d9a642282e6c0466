//! From `azure.json` and a Secret to a connection to ARM.

use headgate::agent::{ArmConnectError, AzureAccess};
use headgate::config::Settings;
use headgate_azure::{Metrics, ResourceGroupId};
use headgate_core::clock::Clock;
use headgate_test_kubernetes::scratch;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;
use tokio::time::Instant;

use super::*;
use crate::emulator::emulator_process::Emulator;

const TENANT: &str = "7e4a0000-0000-4000-8000-000000000001";
const APPLICATION: &str = "c11e0000-0000-4000-8000-000000000002";
const SUBSCRIPTION: &str = "5b0c0de0-0000-4000-8000-000000000005";

/// Writes the Secret with this data.
async fn write_secret(name: &str, data: &Value) {
    let secrets = Api::<Secret>::namespaced(control_plane().client(), "kube-system");
    // It may not exist.
    let _ = secrets.delete(name, &DeleteParams::default()).await;
    objects::create(&secrets, json!({"metadata": {"name": name}, "stringData": data})).await;
}

#[tokio::test]
async fn azure_config_is_read_again_from_file_and_secret_for_each_connection() {
    let emulator = Emulator::start(&[]).await;
    let directory = scratch("access");
    let file = directory.join("azure.json");
    // Keys in mixed case, as operators write them; the name of the cloud selects its item in ARM's metadata.
    let base = json!({
        "cloud": "azureChinaCloud", "resourceManagerEndpoint": format!("http://{}", emulator.arm),
        "tenantID": TENANT, "SubscriptionId": SUBSCRIPTION, "resourceGroup": "Traffic", "aadClientId": APPLICATION,
        "loadBalancerName": "from the file",
    });
    let write = |document: &Value| std::fs::write(&file, document.to_string()).unwrap();
    write(&base);
    let mut settings = Settings::default().azure;
    settings.config_file = Some(file.clone());
    settings.config_secret = Some("kube-system/headgate-access-test".parse().unwrap());
    let access = AzureAccess {
        settings,
        client: control_plane().client(),
        metrics: Metrics::default(),
        clock: Clock::System,
        may_use_az: false,
    };
    let refused = async || access.connect().await.unwrap_err();

    let error = refused().await;
    assert!(
        matches!(&error, ArmConnectError::Secret { reason, .. } if reason == "is not there"),
        "{error}"
    );
    write_secret("headgate-access-test", &json!({"other": "x"})).await;
    assert!(refused().await.to_string().contains("has no key cloud-config"));
    write_secret(
        "headgate-access-test",
        &json!({"cloud-config": "aadClientSecret: [hunter2]\n"}),
    )
    .await;
    let error = refused().await.to_string();
    assert!(
        error.contains("the Secret's cloud-config:1: aadClientSecret: this value is not allowed"),
        "{error}"
    );
    assert!(!error.contains("hunter2"));
    // Without a credential there is no identity.
    write_secret("headgate-access-test", &json!({"cloud-config": "{}"})).await;
    let error = refused().await.to_string();
    assert!(error.contains("there is no credential for Azure"), "{error}");

    let over = "aadClientSecret: a secret\nloadBalancerName: from the Secret\n";
    write_secret("headgate-access-test", &json!({"cloud-config": over})).await;
    let connected = access.connect().await.unwrap_or_else(|error| panic!("{error}"));
    let config = &connected.config;
    assert_eq!(config.load_balancer_name.as_deref(), Some("from the Secret"));
    assert_eq!(config.cloud_name.as_deref(), Some("azureChinaCloud"));
    let group = ResourceGroupId::new(SUBSCRIPTION, config.load_balancers_group().unwrap()).unwrap();
    let deadline = Instant::now() + SOON;
    assert!(
        !connected
            .arm
            .list_load_balancers(&group, |_| true, |_| (), deadline)
            .await
            .unwrap()
            .load_balancers
            .is_empty()
    );

    // The next term reads the changed file.
    let mut other = base.clone();
    other["cloud"] = json!("AzureOfNobody");
    write(&other);
    let error = refused().await.to_string();
    assert!(error.contains("it has no cloud \"AzureOfNobody\""), "{error}");
    other["resourceManagerEndpoint"] = json!("http://arm.example.com");
    write(&other);
    assert!(refused().await.to_string().contains("is not https"));
    std::fs::write(&file, "{").unwrap();
    assert!(refused().await.to_string().contains("is neither YAML nor JSON"));
    write(&base);
    access.connect().await.unwrap_or_else(|error| panic!("{error}"));
    emulator.stop().await;
}
