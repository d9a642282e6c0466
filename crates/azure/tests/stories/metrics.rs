//! The metrics of requests to ARM.

use std::collections::BTreeMap;

use headgate_azure::{AdminState, Metrics, NetworkInterfaceId, RateLimit, RateLimits};
use headgate_core::telemetry::{MetricsFormat, encode_metrics};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{GROUP, TestBed, load_balancer, permit, pool_id, soon};

/// The values of one metric by the label `request`, and the label `code` if it has one.
fn series(registry: &Registry, name: &str) -> BTreeMap<String, String> {
    let text = encode_metrics(registry, MetricsFormat::Prometheus).unwrap();
    let samples = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}{{")));
    let all = samples.map(|sample| {
        let (labels, value) = sample.rsplit_once("} ").unwrap();
        let of = |name: &str| {
            let mut pairs = labels.split(',').filter_map(|label| label.split_once('='));
            pairs.find_map(|(key, value)| (key == name).then(|| value.trim_matches('"').to_owned()))
        };
        let common = ["resource_group", "subscription_id", "source"].map(|name| of(name).unwrap());
        assert_eq!(common, ["rg", "sub", "admin_state_controller"]);
        let code = of("code").map(|code| format!(" {code}")).unwrap_or_default();
        (format!("{}{code}", of("request").unwrap()), value.to_owned())
    });
    all.collect()
}

fn expected(prefix: &str, pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| (format!("{prefix}{name}"), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_under_the_callers_labels() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry).with_own(&mut registry);
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let arm = bed.arm.clone().with_metrics(metrics);
    let arm = arm.with_request_labels("loadbalancer_adminstate", "admin_state_controller");
    let mut pool = arm.get_pool(&pool_id("pool"), soon()).await.unwrap();
    pool.set_admin_state(0, AdminState::Down);
    // Two attempts fail and the third succeeds; then ARM throttles once.
    let refused = |status, code| json!({"status": status, "body": {"error": {"code": code}}});
    bed.answer("GET", "/pool$", 2, &refused(503, "ServiceUnavailable"));
    arm.get_pool(&pool_id("pool"), soon()).await.unwrap();
    bed.answer("GET", "/none$", 1, &refused(429, "TooManyRequests"));
    arm.get_pool(&pool_id("none"), soon()).await.unwrap_err();
    // The gate is closed for a second.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    arm.get_pool(&pool_id("none"), soon()).await.unwrap_err();
    // Another operation holds the resource.
    bed.answer("PUT", "/pool$", 1, &refused(429, "RetryableError"));
    let put = || arm.put_pool(pool.encode().unwrap(), permit(), soon());
    put().await.unwrap_err();
    let operation = put().await.unwrap();
    arm.poll_until_done(&operation, soon()).await.unwrap();
    arm.get_pool(&pool.id, soon()).await.unwrap();
    let durations = [
        ("get_backend_pool", "7"),
        ("get_operation", "2"),
        ("update_backend_pool", "2"),
    ];
    let errors = [
        ("get_backend_pool NotFound", "1"),
        ("get_backend_pool ServiceUnavailable", "2"),
        ("get_backend_pool TooManyRequests", "1"),
        ("update_backend_pool RetryableError", "1"),
    ];
    let throttled = [("get_backend_pool", "1"), ("update_backend_pool", "1")];
    for (name, values) in [
        ("duration_seconds_count", &durations[..]),
        ("errors", &errors),
        ("throttled_count", &throttled),
        ("ratelimited_count", &[]),
    ] {
        let found = series(&registry, &format!("cloudprovider_azure_api_request_{name}"));
        assert_eq!(found, expected("loadbalancer_adminstate_", values), "{name}");
    }
    let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
    assert!(text.contains("\nheadgate_arm_requests_throttled_total 1\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn delays_by_the_own_rate_limit_are_counted() {
    let mut registry = Registry::default();
    let limit = RateLimit { qps: 1.0, bucket: 2 };
    let (read, write) = (limit, limit);
    let limits = RateLimits { read, write };
    let bed = TestBed::with(&[load_balancer("lb", 3)], Some(limits), |answer| answer).await;
    let arm = bed.arm.clone().with_metrics(Metrics::register(&mut registry));
    let arm = arm.with_request_labels("p", "admin_state_controller");
    for _ in 0..5 {
        arm.get_pool(&pool_id("pool"), soon()).await.unwrap();
    }
    // Lookups wait for a limit that no setting has.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let interface = format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/nic");
    let interface = NetworkInterfaceId::parse(&interface).unwrap();
    for _ in 0..3 {
        arm.get_interface_virtual_machine(&interface, soon()).await.unwrap_err();
    }
    let count = series(&registry, "cloudprovider_azure_api_request_ratelimited_count");
    assert_eq!(count, expected("p_", &[("get_backend_pool", "3")]));
}
