//! The spans of maintenances and Evacuations: the fields of each, and which is the parent of which.

use headgate_test_kubernetes::{Fault, RecordedSpan, RecordedSpans};
use serde_json::json;

use crate::world::World;

/// Of a span: term, node, maintenance, pod.
fn subject(span: &RecordedSpan) -> [&str; 4] {
    ["term", "node", "maintenance", "pod"].map(|name| span.field(name))
}

#[tokio::test(start_paused = true)]
async fn each_write_of_a_drain_has_a_span_with_its_node_in_the_span_of_its_turn() {
    let (spans, _guard) = RecordedSpans::start();
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web-1", &json!({})).await;
    world.daemon_pod("one", "log", false).await;
    let _leader = world.lead().await;
    world.observe_out("one");
    world.maintain("m", "Drain", &["one"], &json!({})).await;
    world.until_gone(&["web-1", "log"]).await;
    world.until_drained("m").await;

    let turns = spans.named("reconcile_maintenances");
    assert!(
        turns
            .iter()
            .all(|turn| turn.parent.is_none() && turn.field("term") == "1")
    );
    assert!(turns.iter().any(|turn| turn.field("nodes") == "1"), "{turns:?}");
    let writes = spans.named("reconcile_maintenance");
    let nodes = spans.named("reconcile_node");
    for (spans, expected) in [(&writes, ["1", "", "m", ""]), (&nodes, ["1", "one", "", ""])] {
        assert!(
            spans.iter().any(|span| subject(span) == expected),
            "{expected:?} in {spans:?}"
        );
    }
    assert!(
        writes
            .iter()
            .all(|span| spans.parents(span) == ["reconcile_maintenances"])
    );
    let steps = spans.named("reconcile_evacuation");
    for pod in ["web-1", "log"] {
        let of_pod: Vec<_> = steps.iter().filter(|span| span.field("pod") == pod).collect();
        let created = of_pod
            .iter()
            .find(|span| spans.parents(span) == ["reconcile_maintenances"]);
        assert_eq!(
            created.map(|span| subject(span)),
            Some(["1", "one", "", pod]),
            "created: {of_pod:?}"
        );
        let own = of_pod.iter().find(|span| span.parent.is_none());
        let own = own.unwrap_or_else(|| panic!("a step of its own: {of_pod:?}"));
        assert_eq!(
            (own.field("namespace"), own.field("evacuation").is_empty()),
            ("shop", false)
        );
    }
    assert!(
        spans.all().iter().all(|span| span.field("otel.status_code") != "ERROR"),
        "{spans:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_write_and_failed_eviction_are_errors_of_their_spans() {
    let (spans, _guard) = RecordedSpans::start();
    let mut world = World::new(&["one", "two"]).await;
    world
        .pod("two", "web-2", &json!({"metadata": {"labels": {"app": "web"}}}))
        .await;
    world.budget("web", "web", 0).await;
    let leader = world.lead().await;
    for node in ["one", "two"] {
        world.observe_out(node);
    }
    leader.faults.set_for(Fault::Status(403), |request| {
        let is_refused = request.path == "/api/v1/nodes/one" || request.path.ends_with("/nodemaintenances/refused");
        request.method == "PATCH" && is_refused
    });
    world.maintain("refused", "Cordon", &["two"], &json!({})).await;
    world.maintain("m", "Drain", &["one", "two"], &json!({})).await;
    world.until_requested("POST", "web-2/eviction").await;
    world
        .until("its span", |_| {
            let steps = spans.named("reconcile_evacuation");
            steps.iter().any(|span| span.field("otel.status_code") == "ERROR")
        })
        .await;

    let failed = |name| {
        let failed = spans.named(name).into_iter();
        let failed: Vec<_> = failed
            .filter(|span| span.field("otel.status_code") == "ERROR")
            .collect();
        assert!(!failed.is_empty(), "{name}");
        failed
    };
    for span in failed("reconcile_node") {
        assert_eq!((span.field("node"), span.field("error.type")), ("one", "refused"));
        assert!(span.field("otel.status_description").contains("a fault"), "{span:?}");
    }
    for span in failed("reconcile_maintenance") {
        assert_eq!(
            (span.field("maintenance"), span.field("error.type")),
            ("refused", "refused")
        );
        assert!(span.field("otel.status_description").contains("refused"), "{span:?}");
    }
    let turns = spans.named("reconcile_maintenances");
    assert!(
        turns.iter().any(|turn| turn.field("error.type") == "WriteFailed"),
        "{turns:?}"
    );
    let steps = spans.named("reconcile_evacuation");
    let failed = steps
        .iter()
        .find(|span| span.field("otel.status_code") == "ERROR")
        .unwrap();
    assert_eq!(subject(failed), ["1", "two", "", "web-2"]);
    assert_eq!(failed.field("error.type"), "disruption_budget");
}
