//! `headgate why service` and the pools of Local Services in `headgate status`.

use headgate_test_kubernetes::{assert_contains, scratch};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use serde_json::{Value, json};

use super::world::World;
use crate::harness::{objects, refused, settings_file, stdout_of};

#[tokio::test]
async fn pools_of_a_local_service_are_compared_with_its_endpoints() {
    let world = World::start().await;
    // The pool `kubernetes-IPv6` has the name of this Service's IPv4 pool.
    let namespaces = Api::<Namespace>::all(world.client.clone());
    objects::create(&namespaces, json!({"metadata": {"name": "kubernetes"}})).await;
    let service = json!({"metadata": {"name": "ipv6"}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80}]}});
    let services = Api::<Service>::namespaced(world.client.clone(), "kubernetes");
    objects::create(&services, service).await;
    let endpoint = |node: &str| json!({"addresses": ["10.1.0.1"], "nodeName": node});
    let slice = json!({"metadata": {"name": "ipv6-1", "labels": {"kubernetes.io/service-name": "ipv6"}}, "addressType": "IPv4",
        "endpoints": [endpoint("node-1"), endpoint("unknown")]});
    let slices = Api::<EndpointSlice>::namespaced(world.client.clone(), "kubernetes");
    objects::create(&slices, slice).await;

    let why = |more: &[&str]| world.with_azure(&[&["why", "service", "kubernetes/ipv6"], more].concat());
    let inactive = stdout_of(why(&[]));
    assert_contains!(inactive, "headgate updates no pools of Local Services");
    let settings = scratch("local-pools").join("settings.yaml");
    std::fs::write(&settings, settings_file("localPools: AllEndpoints\n")).unwrap();
    let on = ["--config", settings.to_str().unwrap()];
    let text = stdout_of(why(&on));
    println!("{text}");
    assert_contains!(
        text,
        "Service kubernetes/ipv6: 1 of 1 pools are to be updated",
        "kubernetes/kubernetes-ipv6 (IPv4): missing 127.0.0.1; surplus fd00:5eed::1, fd00:5eed::2, fd00:5eed::3",
        "left out  unknown: there is no Node of this name"
    );
    let rows: Value = serde_json::from_str(&stdout_of(why(&[&on[..], &["-o", "json"]].concat()))).unwrap();
    assert_eq!(
        (&rows[0]["desired"], &rows[0]["missing"]),
        (&json!(["127.0.0.1"]), &json!(["127.0.0.1"]))
    );
    let text = world.status(&on);
    assert_contains!(text, "LOCAL SERVICE", "kubernetes/kubernetes-ipv6");

    refused(&world.with_azure(&["why", "service", "web"]), 2, &[]);
    refused(&world.with_azure(&["why", "node-1", "default/web"]), 2, &[]);
    refused(&world.headgate(&["why", "service", "default/web"]), 2, &[]);
}
