//! Reads: lists, single resources, retries, deadlines, and links that are not followed.

use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, LoadBalancerSummary, NetworkInterfaceId, ProvisioningState};
use headgate_azure::{RateLimit, RateLimits};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{BASE, NO_POOLS, TestBed, group, load_balancer, pool_id, soon};

#[tokio::test(start_paused = true)]
async fn list_has_all_pages() {
    let all: Vec<_> = (0..7).map(|number| load_balancer(&format!("lb-{number}"), 1)).collect();
    let bed = TestBed::new(&all).await;
    let found = bed.list(&group()).await.unwrap();
    let names: Vec<_> = found.iter().map(|load_balancer| load_balancer.id.name()).collect();
    assert_eq!(names, ["lb-0", "lb-1", "lb-2", "lb-3", "lb-4", "lb-5", "lb-6"]);
    assert!(found.iter().all(|load_balancer| load_balancer.pools.len() == 2));
    let requests = bed.requests("GET", "/loadBalancers$");
    assert_eq!(requests.len(), 3, "three pages");
    for request in &requests {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(request["userAgent"], format!("headgate/{version}"));
        assert_eq!(request["clientRequestId"].as_str().unwrap().len(), 36);
    }
    assert_ne!(requests[0]["clientRequestId"], requests[1]["clientRequestId"]);
}

#[tokio::test(start_paused = true)]
async fn list_of_interfaces_has_the_machines_of_those_that_have_one() {
    let path = |kind: &str, number: usize| format!("{}/providers/{kind}/n{number}", group());
    let interface = |number| path("Microsoft.Network/networkInterfaces", number);
    let machine = |number| path("Microsoft.Compute/virtualMachines", number);
    let nic = |number| {
        let mut nic = json!({"id": interface(number), "location": "eastus",
            "properties": {"ipConfigurations": [{"name": "c", "properties": {}}]}});
        if number != 4 {
            nic["properties"]["virtualMachine"] = json!({"id": machine(number)});
        }
        nic
    };
    let bed = TestBed::new(&(0..5).map(nic).collect::<Vec<_>>()).await;
    let expected = |numbers: &[usize]| -> Vec<_> {
        let found = numbers.iter().map(|number| {
            let id = NetworkInterfaceId::parse(&interface(*number)).unwrap();
            (id, machine(*number).to_lowercase())
        });
        found.collect()
    };
    let group = group();
    let list = async || {
        let mut found = Vec::new();
        let listed = bed.arm.list_interface_virtual_machines(&group, soon(), &mut found);
        let is_ok = listed.await.is_ok();
        (found, is_ok)
    };
    assert_eq!(list().await, (expected(&[0, 1, 2, 3]), true));
    assert_eq!(bed.requests("GET", "/networkInterfaces$").len(), 2, "two pages");
    let odd = json!({"value": [null, {"id": 5}, {"id": interface(7), "properties": []}, nic(6)]});
    bed.answer("GET", "/networkInterfaces$", 1, &json!({"status": 200, "body": odd}));
    assert_eq!(list().await, (expected(&[6]), true));
    // What was read before an error counts.
    let next = format!("{BASE}/noSuchList");
    let page = json!({"value": [nic(6)], "nextLink": next});
    bed.answer("GET", "/networkInterfaces$", 1, &json!({"status": 200, "body": page}));
    assert_eq!(list().await, (expected(&[6]), false));
}

#[tokio::test(start_paused = true)]
async fn load_balancer_and_pool_share_an_etag() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    let pool = bed.pool("pool").await;
    let load_balancer = bed.arm.get_load_balancer(pool.id.load_balancer(), |_| (), soon());
    let load_balancer = load_balancer.await.unwrap();
    assert!(pool.etag.is_some());
    assert_eq!(pool.etag, load_balancer.summary.etag, "they share one");
    let mut pools = load_balancer.text.pools(pool.id.load_balancer()).unwrap().unwrap();
    assert_eq!(pools[0].pool().document, pool.document);
    assert_eq!(pool.provisioning_state(), ProvisioningState::Settled);
}

#[tokio::test(start_paused = true)]
async fn failing_server_gets_four_requests() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    for (times, status, good) in [(3, 503, true), (4, 500, false), (3, 408, true)] {
        bed.control("DELETE", "faults", &Value::Null);
        bed.control("POST", "reset", &Value::Null);
        bed.fault("GET", "/pool$", times, &json!({"answer": {"status": status}}));
        let read = bed.arm.get_pool(&pool_id("pool"), soon()).await;
        assert_eq!(read.is_ok(), good, "{status}");
        assert_eq!(bed.requests("GET", "/pool$").len(), 4, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_a_read() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    bed.pool("pool").await;
    let wait = Duration::from_secs(5);
    bed.fault("GET", "/pool$", 1, &json!({"stall": "50s"}));
    let start = Instant::now();
    let error = bed.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert_eq!(start.elapsed().as_secs(), 5);
    // A Retry-After past the deadline ends the read at once.
    bed.fault("GET", "/pool$", 1, &json!({"answer": {"status": 503, "retryAfter": 6}}));
    let start = Instant::now();
    let error = bed.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(error.retry_after(start), Some(Duration::from_secs(6)));
    assert!(start.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_refreshed_once() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    let rejected =
        json!({"answer": {"status": 401, "body": {"error": {"code": "ExpiredAuthenticationToken", "message": "m"}}}});
    bed.pool("pool").await;
    // Within one second the emulator issues the same token again.
    sleep(Duration::from_secs(1)).await;
    bed.fault("GET", "/pool$", 1, &rejected);
    bed.pool("pool").await;
    assert_eq!(bed.requests("POST", "/oauth2/").len(), 2);
    sleep(Duration::from_secs(1)).await;
    bed.fault("GET", "/pool$", 99, &rejected);
    let error = bed.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert_eq!(error.code(), "ExpiredAuthenticationToken");
    assert_eq!(error.class(), ErrorClass::Retriable);
    assert_eq!(bed.requests("POST", "/oauth2/").len(), 3, "one refresh");
    assert_eq!(bed.requests("GET", "/pool$").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn empty_token_bucket_delays_requests() {
    let limit = RateLimit { qps: 1.0, bucket: 2 };
    let limits = RateLimits {
        read: limit,
        write: limit,
    };
    let bed = TestBed::with(&[load_balancer("lb", 2)], Some(limits), |answer| answer).await;
    let start = Instant::now();
    let five = futures::future::join_all((0..5).map(|_| bed.pool("pool"))).await;
    assert_eq!(five.len(), 5);
    assert_eq!(start.elapsed().as_secs(), 3);
    // A request with too little time fails at once.
    let now = Instant::now();
    let error = bed
        .arm
        .get_pool(&pool_id("pool"), now + Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(error, ArmError::RateLimited), "{error}");
    assert_eq!(now.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn links_to_other_origins_are_rejected() {
    let links = [
        "https://127.0.0.1:1/subscriptions/sub/x",
        "http://127.0.0.1:2/subscriptions/sub/x",
        "http://127.0.0.1:1@evil.test/",
        "/subscriptions/sub/x",
        "nonsense nonsense",
    ];
    for link in links {
        let change = move |answer: headgate_azure::BufferedResponse| {
            let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
            if document.get("value").is_some() {
                document["nextLink"] = link.into();
            }
            answer.map(|_| document.to_string().into())
        };
        let bed = TestBed::with(&[load_balancer("lb", 2)], None, change).await;
        let error = bed.list(&group()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{link}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_pages_are_rejected() {
    let change = |answer: headgate_azure::BufferedResponse| {
        let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
        if document.get("value").is_some() {
            let path =
                "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers?api-version=2025-05-01";
            document["nextLink"] = format!("{BASE}{path}").into();
        }
        answer.map(|_| document.to_string().into())
    };
    let bed = TestBed::with(&[load_balancer("lb", 1)], None, change).await;
    let off = json!({"throttle": {"enabled": false}});
    bed.control("PUT", "settings", &off);
    let error = bed.list(&group()).await.unwrap_err();
    assert!(error.to_string().contains("1000 pages"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn malformed_responses() {
    let bed = TestBed::new(&[load_balancer("lb", 1)]).await;
    for body in [json!([]), json!({"value": 1}), json!("x")] {
        bed.answer("GET", "/loadBalancers$", 1, &json!({"status": 200, "body": body}));
        let error = bed.list(&group()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{body}: {error}");
        assert_eq!(error.class(), ErrorClass::Retriable, "it may come from a proxy");
    }
    // Items that are not load balancers are omitted.
    let nonsense = json!({"value": [{}, {"id": "/x"}, null]});
    bed.answer("GET", "/loadBalancers$", 1, &json!({"status": 200, "body": nonsense}));
    assert!(bed.list(&group()).await.unwrap().is_empty());
    bed.answer("GET", "/pool$", 1, &json!({"status": 200, "text": "<html>"}));
    let error = bed.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
}

/// A load balancer with a rule and a probe; each pool has about this many bytes more.
fn with_rules(more_bytes: usize) -> Value {
    let mut resource = load_balancer("lb", 2);
    let id = resource["id"].as_str().unwrap().to_owned();
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let properties = &mut resource["properties"];
    properties["frontendIPConfigurations"] = json!([{"name": "front", "properties": {"privateIPAddress": "10.9.9.9"}}]);
    properties["probes"] =
        json!([{"name": "probe", "properties": {"protocol": "Http", "port": 10456, "requestPath": "/healthz"}}]);
    properties["loadBalancingRules"] = json!([{"name": "rule", "properties": {
        "frontendIPConfiguration": inside("frontendIPConfigurations", "front"), "backendAddressPool": inside("backendAddressPools", "pool"),
        "probe": inside("probes", "probe"), "protocol": "Tcp", "frontendPort": 80, "backendPort": 80}}]);
    for pool in properties["backendAddressPools"].as_array_mut().unwrap() {
        pool["futurePool"] = json!("x".repeat(more_bytes));
    }
    resource
}

fn kept(address: headgate_azure::BackendAddress<'_>) -> (Option<String>, Option<std::net::IpAddr>) {
    (address.name().map(str::to_owned), address.ip_address())
}

#[tokio::test(start_paused = true)]
async fn load_balancer_in_parts_is_the_same_as_the_whole_one() {
    let bed = TestBed::new(&[with_rules(0)]).await;
    let id = group().load_balancer("LB").unwrap();
    let whole = bed.arm.get_load_balancer(&id, kept, soon()).await.unwrap();
    let parts = bed.arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon());
    let parts = parts.await.unwrap();
    assert_eq!(parts.summary, whole.summary);
    assert_eq!(parts.summary.id.name(), "lb", "as ARM writes it");
    assert_eq!(parts.summary.pools.len(), 2);
    assert_eq!(parts.summary.rules["loadBalancingRules"].as_array().unwrap().len(), 1);
    assert_eq!((whole.is_assembled, parts.is_assembled), (false, true));
    assert!(whole.text.is_kept() && parts.text.pools(&id).unwrap().is_none());
    // Pages of one item.
    bed.control("PUT", "settings", &json!({"pageSize": 1}));
    let paged = bed.arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon());
    assert_eq!(paged.await.unwrap().summary, whole.summary);
    assert_eq!(bed.requests("GET", "/backendAddressPools$").len(), 1 + 2);
    let single_pools = bed.requests("GET", "/backendAddressPools/");
    assert!(single_pools.is_empty());
    let none = group().load_balancer("none").unwrap();
    let missing = bed.arm.get_load_balancer_in_parts(&none, &NO_POOLS, kept, soon());
    assert_eq!(missing.await.unwrap_err().class(), ErrorClass::Stale);
}

#[tokio::test(start_paused = true)]
async fn single_pools_are_read_if_their_list_is_too_large() {
    const BYTES: usize = 300_000;
    let bed = TestBed::new(&[with_rules(BYTES)]).await;
    let id = group().load_balancer("lb").unwrap();
    let expected = bed.arm.get_load_balancer(&id, kept, soon()).await.unwrap().summary;
    let arm = bed.arm_up_to(BYTES * 3 / 2);
    let whole = arm.get_load_balancer(&id, kept, soon()).await.unwrap_err();
    assert!(matches!(whole, ArmError::TooLarge(_)), "{whole}");
    // The pool that a rule uses, and the known one; one that does not exist is left out.
    let elsewhere = group().load_balancer("elsewhere").unwrap().pool("other").unwrap();
    let listed = vec![pool_id("other"), pool_id("POOL"), pool_id("gone"), elsewhere];
    for (known, pools) in [(vec![], 1), (listed, 2)] {
        let known = known.into_iter().collect();
        let parts = arm.get_load_balancer_in_parts(&id, &known, kept, soon()).await;
        let mut parts = parts.unwrap().summary;
        let mut expected = expected.clone();
        expected.pools.retain(|pool| pools == 2 || pool.id.name() == "pool");
        for found in [&mut parts, &mut expected] {
            found.pools.sort_by_key(|pool| pool.id.to_string());
        }
        assert_eq!(parts, expected);
    }
    // One pool that is too large is an error, and so is a refusal.
    let arm = bed.arm_up_to(BYTES / 2);
    let parts = arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon()).await;
    let error = parts.unwrap_err();
    assert!(matches!(error, ArmError::TooLarge(_)), "{error}");
    let arm = bed.arm_up_to(BYTES * 3 / 2);
    let refusal = json!({"status": 404, "body": "a proxy"});
    bed.answer("GET", "/backendAddressPools/pool$", 1, &refusal);
    let parts = arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon()).await;
    // A 404 that is not ARM's proves nothing.
    assert_eq!(parts.unwrap_err().status(), Some(StatusCode::NOT_FOUND));
}

#[tokio::test(start_paused = true)]
async fn busy_load_balancer_is_busy_in_parts_too() {
    let bed = TestBed::new(&[with_rules(300_000)]).await;
    let id = group().load_balancer("lb").unwrap();
    let arm = bed.arm_up_to(100_000);
    let state = async || {
        // Single pools are too large as well, so the list is read with the other client.
        let parts = bed.arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon());
        parts.await.unwrap().summary.provisioning_state
    };
    assert!(arm.get_load_balancer(&id, kept, soon()).await.is_err());
    assert_eq!(state().await, ProvisioningState::Settled);
    let mut document = with_rules(300_000);
    document["tags"] = json!({"a": "b"});
    let path = format!("{}/providers/Microsoft.Network/loadBalancers/lb", super::GROUP);
    let accepted = bed.send_as_other("PUT", &path, &document).await;
    assert!(accepted.status().is_success());
    assert_eq!(state().await, ProvisioningState::Busy);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(state().await, ProvisioningState::Settled);
}

#[tokio::test(start_paused = true)]
async fn list_that_shows_pools_without_their_entries_proves_nothing() {
    let bed = TestBed::with(&[with_rules(0)], None, |mut answer| {
        // The list of the pools, and no single pool.
        let mut body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if let Some(Value::Array(items)) = body.get_mut("value") {
            for item in items {
                if item["type"] == "Microsoft.Network/loadBalancers/backendAddressPools" {
                    let properties = item["properties"].as_object_mut().unwrap();
                    properties.remove("loadBalancerBackendAddresses").unwrap();
                }
            }
            *answer.body_mut() = body.to_string().into();
        }
        answer
    })
    .await;
    let id = group().load_balancer("lb").unwrap();
    let whole = bed.arm.get_load_balancer(&id, kept, soon()).await.unwrap().summary;
    let parts = bed.arm.get_load_balancer_in_parts(&id, &NO_POOLS, kept, soon());
    let parts = parts.await.unwrap().summary;
    let entries =
        |summary: &LoadBalancerSummary<_>| -> usize { summary.pools.iter().map(|pool| pool.addresses.len()).sum() };
    assert_eq!((entries(&parts), entries(&whole)), (4, 4));
    assert_eq!(bed.requests("GET", "/backendAddressPools/").len(), 2);
}
