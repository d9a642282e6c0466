//! Pods of a node, and what the Eviction API answers.

use headgate_kubernetes::api_server;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;

use super::*;

/// A pod that runs on a node without a kubelet, with so many seconds to terminate.
async fn create_pod(client: &Client, name: &str, node: &str, grace_seconds: Option<i64>) -> Pod {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "serviceAccountName": "evictions", "terminationGracePeriodSeconds": grace_seconds,
            "containers": [{"name": "c", "image": "none"}]}});
    let pod = pods.create(&PostParams::default(), &parse(pod)).await.unwrap();
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let patch = Patch::Merge(&ready);
    pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    pod
}

/// A budget of the pods with this label.
async fn create_budget(client: &Client, name: &str, app: &str, allowed: i32) {
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    let budget =
        json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}});
    budgets.create(&PostParams::default(), &parse(budget)).await.unwrap();
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2,
        "desiredHealthy": 1, "expectedPods": 2}});
    let patch = Patch::Merge(&status);
    budgets
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Status code and causes of the answer to an eviction; 201 without causes if it is accepted.
async fn evict(client: &Client, name: &str, uid: Option<&str>) -> (u16, Vec<String>) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"preconditions": {"uid": uid}}});
    let params = PostParams::default();
    match pods
        .create_subresource::<_, Value>("eviction", name, &params, &body)
        .await
    {
        Ok(_) => (201, Vec::new()),
        Err(kube::Error::Api(status)) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            (status.code, causes.map(|cause| cause.reason.clone()).collect())
        }
        Err(error) => panic!("{error}"),
    }
}

async fn budgets_decide(client: Client, name: &str) {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    let account = parse(json!({"metadata": {"name": "evictions"}}));
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let (other, second) = (format!("{name}-other"), format!("{name}-second"));
    let pod = create_pod(&client, name, &format!("{name}-node"), Some(0)).await;
    create_pod(&client, &other, &second, None).await;
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}-node"));
    let listed: Vec<_> = pods
        .list(&of_node)
        .await
        .unwrap()
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    assert_eq!(listed, [name]);

    let uid = pod.uid();
    assert_eq!(evict(&client, name, Some("another")).await.0, 409);
    create_budget(&client, name, name, 0).await;
    create_budget(&client, &other, &other, 1).await;
    // The budget is asked before the precondition.
    assert_eq!(evict(&client, name, Some("another")).await.0, 429);
    assert_eq!(
        evict(&client, name, uid.as_deref()).await,
        (429, vec!["DisruptionBudget".to_owned()])
    );
    create_budget(&client, &second, name, 1).await;
    assert_eq!(evict(&client, name, uid.as_deref()).await.0, 500);
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE);
    budgets.delete(name, &DeleteParams::default()).await.unwrap();
    assert_eq!(evict(&client, name, uid.as_deref()).await.0, 201);
    assert_eq!(pods.get_opt(name).await.unwrap(), None);
    assert_eq!(evict(&client, name, uid.as_deref()).await.0, 404);
    // The room is used up.
    let left = budgets.get(&second).await.unwrap().status.unwrap();
    assert_eq!(left.disruptions_allowed, 0);
    terminates(&client, &other).await;
    for budget in [&other, &second] {
        budgets.delete(budget, &DeleteParams::default()).await.unwrap();
    }
}

/// An evicted pod stays for its grace period, the default of 30 s, which a second eviction does not lengthen or need the budget for.
/// Its kubelet deletes it with a grace period of 0.
async fn terminates(client: &Client, name: &str) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    assert_eq!(evict(client, name, None).await.0, 201);
    let terminating = pods.get(name).await.unwrap().metadata;
    assert_eq!(terminating.deletion_grace_period_seconds, Some(30));
    let time = terminating.deletion_timestamp.clone().unwrap().0;
    let age = time.duration_since(terminating.creation_timestamp.unwrap().0);
    assert!((30..50).contains(&age.as_secs()), "{age}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(evict(client, name, None).await.0, 201);
    pods.delete(name, &DeleteParams::default()).await.unwrap();
    let later = pods.get(name).await.unwrap().metadata;
    assert_eq!(later.deletion_timestamp, terminating.deletion_timestamp);
    pods.delete(name, &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(pods.get_opt(name).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn budgets_of_the_fake_decide_about_evictions() {
    budgets_decide(FakeApi::default().client().0, "evicted").await;
}

#[tokio::test]
async fn budgets_of_kube_apiserver_decide_about_evictions() {
    // A client that does not retry by itself: kube's own repeats requests that are answered 429.
    let config = api_server::load_config(Some(&control_plane().kubeconfig))
        .await
        .unwrap();
    budgets_decide(
        api_server::build_client(&config, api_server::Program::Cli).unwrap(),
        "evicted",
    )
    .await;
}
