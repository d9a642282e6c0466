//! What is counted of requests to ARM, each by name and number.

use std::collections::BTreeMap;

use headgate_azure::{AdminState, Metrics, Permit};
use headgate_azure::{RateLimit, RateLimits};
use headgate_telemetry::{MetricsFormat, encode_metrics};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{World, load_balancer, pool_id, soon};

/// The values of one series by the request's name, and the code where there is one.
fn series(registry: &Registry, name: &str) -> BTreeMap<String, String> {
    let text = encode_metrics(registry, MetricsFormat::Prometheus).unwrap();
    let samples = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}{{")));
    let all = samples.map(|sample| {
        let (labels, value) = sample.rsplit_once("} ").unwrap();
        let of = |name: &str| {
            let found = labels
                .split(',')
                .find_map(|label| label.strip_prefix(&format!("{name}=")));
            found.map(|value| value.trim_matches('"').to_owned())
        };
        assert_eq!(
            (
                of("resource_group").unwrap(),
                of("subscription_id").unwrap(),
                of("source").unwrap()
            ),
            ("rg".to_owned(), "sub".to_owned(), "admin_state_controller".to_owned())
        );
        let code = of("code").map(|code| format!(" {code}")).unwrap_or_default();
        (format!("{}{code}", of("request").unwrap()), value.to_owned())
    });
    all.collect()
}

fn expected(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    pairs.collect()
}

#[tokio::test(start_paused = true)]
async fn each_try_is_counted_under_its_callers_name() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let arm = world.arm.clone().counted_in(metrics);
    let arm = arm.as_caller("loadbalancer_adminstate", "admin_state_controller");
    let mut pool = arm.pool(&pool_id("pool"), soon()).await.unwrap();
    pool.set_admin_state(0, AdminState::Down);
    // Two tries come to nothing, one is throttled; the third read is answered.
    world.fault(
        "GET",
        "/pool$",
        2,
        &json!({"answer": {"status": 503, "body": {"error": {"code": "ServiceUnavailable"}}}}),
    );
    arm.pool(&pool_id("pool"), soon()).await.unwrap();
    world.fault(
        "GET",
        "/none$",
        1,
        &json!({"answer": {"status": 429, "body": {"error": {"code": "TooManyRequests"}}}}),
    );
    arm.pool(&pool_id("none"), soon()).await.unwrap_err();
    arm.pool(&pool_id("none"), soon()).await.unwrap_err();
    arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    let name = |series: &str| format!("cloudprovider_azure_api_request_{series}");
    assert_eq!(
        series(&registry, &name("duration_seconds_count")),
        expected(&[
            ("loadbalancer_adminstate_get_backend_pool", "7"),
            ("loadbalancer_adminstate_get_operation", "3"),
            ("loadbalancer_adminstate_update_backend_pool", "1"),
        ])
    );
    assert_eq!(
        series(&registry, &name("errors")),
        expected(&[
            ("loadbalancer_adminstate_get_backend_pool NotFound", "1"),
            ("loadbalancer_adminstate_get_backend_pool ServiceUnavailable", "2"),
            ("loadbalancer_adminstate_get_backend_pool TooManyRequests", "1"),
        ])
    );
    assert_eq!(
        series(&registry, &name("throttled_count")),
        expected(&[("loadbalancer_adminstate_get_backend_pool", "1")])
    );
    assert_eq!(series(&registry, &name("ratelimited_count")), expected(&[]));
}

#[tokio::test(start_paused = true)]
async fn what_our_own_limit_holds_up_is_counted() {
    let mut registry = Registry::default();
    let limit = RateLimit { qps: 1.0, bucket: 2 };
    let limits = RateLimits {
        read: limit,
        write: limit,
    };
    let world = World::with(&[load_balancer("lb", 3)], Some(limits), |answer| answer).await;
    let arm = world.arm.clone().counted_in(Metrics::register(&mut registry));
    let arm = arm.as_caller("p", "admin_state_controller");
    for _ in 0..5 {
        arm.pool(&pool_id("pool"), soon()).await.unwrap();
    }
    let count = series(&registry, "cloudprovider_azure_api_request_ratelimited_count");
    assert_eq!(count, expected(&[("p_get_backend_pool", "3")]));
}
