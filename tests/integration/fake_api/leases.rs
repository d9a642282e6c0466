//! The behaviour of the Lease API that the election and the ARM lock rely on.

use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::control_plane;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::code;

fn lease(value: Value) -> Lease {
    serde_json::from_value(value).unwrap()
}

/// The Lease, or the status code of the error.
async fn create(leases: &Api<Lease>, value: Value) -> Result<Lease, u16> {
    let created = leases.create(&PostParams::default(), &lease(value)).await;
    created.map_err(|error| code(&error))
}

async fn replace(leases: &Api<Lease>, name: &str, lease: &Lease) -> Result<Lease, u16> {
    let replaced = leases.replace(name, &PostParams::default(), lease).await;
    replaced.map_err(|error| code(&error))
}

fn version(lease: &Lease) -> &str {
    lease.metadata.resource_version.as_deref().unwrap()
}

async fn check_leases(client: Client, name: &str) {
    let leases = Api::<Lease>::namespaced(client, "kube-system");
    let spec = json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-01-02T03:04:05.000001Z", "renewTime": "2026-01-02T03:04:05.123456Z"});
    let created = create(&leases, json!({"metadata": {"name": name}, "spec": spec}))
        .await
        .unwrap();
    assert_eq!(serde_json::to_value(&created.spec).unwrap(), spec, "to the microsecond");
    let with_version = json!({"metadata": {"name": format!("{name}-other"), "resourceVersion": "1"}});
    assert!(create(&leases, with_version).await.is_err());
    assert_eq!(leases.get(name).await.unwrap().spec, created.spec);

    // Other kinds can be replaced so.
    let mut anyhow = created;
    anyhow.metadata.resource_version = None;
    assert_eq!(replace(&leases, name, &anyhow).await.unwrap_err(), 422, "no version");

    // A release as in client-go is accepted; a duration of 0 and negative values are refused.
    for (field, value, refused) in [
        ("leaseDurationSeconds", json!(0), true),
        ("leaseDurationSeconds", json!(-1), true),
        ("leaseTransitions", json!(-1), true),
        ("leaseDurationSeconds", json!(1), false),
    ] {
        let mut released = serde_json::to_value(leases.get(name).await.unwrap()).unwrap();
        released["spec"]["holderIdentity"] = json!("");
        released["spec"][field] = value.clone();
        let answer = replace(&leases, name, &lease(released)).await;
        match answer {
            Err(code) => assert!(refused && code == 422, "{field} {value}: {code}"),
            Ok(released) => {
                assert!(!refused, "{field} {value}");
                assert_eq!(released.spec.unwrap().holder_identity.as_deref(), Some(""));
            }
        }
    }
}

/// Checks that a reader cannot replace a Lease that was deleted since, or deleted and created again.
async fn check_deletion_conflicts(client: Client, name: &str, delete: impl AsyncFn()) {
    let leases = Api::<Lease>::namespaced(client, "kube-system");
    let new = json!({"metadata": {"name": name}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    let read = create(&leases, new.clone()).await.unwrap();
    delete().await;
    assert_eq!(replace(&leases, name, &read).await.unwrap_err(), 409, "deleted");
    assert!(leases.get_opt(name).await.unwrap().is_none());
    let anew = create(&leases, new).await.unwrap();
    assert_ne!(version(&anew), version(&read));
    assert_eq!(replace(&leases, name, &read).await.unwrap_err(), 409, "created again");
}

#[tokio::test(start_paused = true)]
async fn leases_of_the_fake_behave_as_expected() {
    let fake = FakeApi::default();
    check_leases(fake.client().0, "leader-cases").await;
    let delete = async || fake.delete::<Lease>("kube-system", "leader-deleted");
    check_deletion_conflicts(fake.client().0, "leader-deleted", delete).await;
}

#[tokio::test]
async fn leases_of_kube_apiserver_behave_as_expected() {
    let client = control_plane().client();
    check_leases(client.clone(), "leader-cases").await;
    let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
    let delete = async || {
        leases
            .delete("leader-deleted", &kube::api::DeleteParams::default())
            .await
            .unwrap();
    };
    check_deletion_conflicts(client, "leader-deleted", delete).await;
}
