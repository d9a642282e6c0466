//! A drain from its first stage to the last, and what keeps it from going on.

use headgate_maintenance::api::names::COMPLETION_FINALIZER;
use headgate_maintenance::api::{LoadBalancerState, NodeMaintenance};
use headgate_test_kubernetes::{Fault, RecordedRequest};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;
use tokio::time::sleep;

use crate::world::{MINUTE, SECOND, World, node};

#[tokio::test(start_paused = true)]
async fn a_drain_goes_from_the_cordon_to_the_last_pod_and_leaves_nothing() {
    let mut world = World::new(&["one", "two"]).await;
    for pod in ["web-1", "web-2"] {
        world.pod("one", pod, &json!({})).await;
    }
    world.pod("two", "other", &json!({})).await;
    world
        .pod("one", "done", &json!({"status": {"phase": "Succeeded"}}))
        .await;
    world.daemon_pod("one", "log", false).await;
    world.daemon_pod("one", "cni", true).await;
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}}});
    world.pod("one", "static", &mirror).await;
    let _leader = world.lead().await;
    world.observe_in("one");
    world
        .maintain("m", "Drain", &["one"], &json!({"reason": "new kernel"}))
        .await;

    // Cordoned and tainted, but in service: no Evacuation, however long it takes.
    world.until_tainted("one").await;
    let taint = vec![world.uid_of::<NodeMaintenance>("", "m")];
    assert_eq!(world.isolation("one"), (true, taint, Some("false".to_owned())));
    let finalizers = world.maintenance("m").unwrap().metadata.finalizers.unwrap();
    assert_eq!(finalizers, [COMPLETION_FINALIZER]);
    sleep(30 * MINUTE).await;
    assert_eq!(
        world.requests("POST", "/evacuations") + world.requests("POST", "/eviction"),
        0
    );
    assert_eq!(
        world.node_status("m", "one").drain_message,
        "Waiting for the load balancers: in service in kubernetes/kubernetes"
    );
    assert_eq!(world.condition("m", "LoadBalancerOut"), "False Waiting");
    assert_eq!(world.node_conditions("one"), ["DrainInProgress", "MaintenancePlanned"]);

    // Out: the drain window of 30 s, then the pods, those of DaemonSets last.
    world.observe_out("one");
    sleep(25 * SECOND).await;
    let gate = world.node_status("m", "one").load_balancer.unwrap();
    assert_eq!(gate.state, LoadBalancerState::Draining);
    assert_eq!(world.requests("POST", "/evacuations"), 0);
    world.until_gone(&["web-1", "web-2"]).await;
    world.until_gone(&["log"]).await;
    let opened = world.now().duration_since(gate.confirmed_time.unwrap().0).as_secs();
    assert!((30..60).contains(&opened), "{opened}");
    world.until_drained("m").await;
    for pod in ["cni", "static", "done", "other"] {
        assert!(world.has_pod(pod), "{pod} stays");
    }
    let status = world.node_status("m", "one");
    assert_eq!((status.pods_exempt, status.pods_unsupported), (1, 1));
    world
        .until("the condition", |world| {
            world.node_conditions("one") == ["Drained", "MaintenanceInProgress"]
        })
        .await;
    assert_eq!(world.requests("POST", "web-1/eviction"), 1);
    assert_eq!(world.requests("POST", "log/eviction"), 0, "it would be recreated");
    sleep(MINUTE).await;
    for pod in ["web-1", "web-2", "log"] {
        assert!(
            world.evacuation(pod).await.is_none(),
            "the Evacuation of {pod} has ended"
        );
    }

    // Nothing is left at the end.
    world.set_stage("m", "Complete").await;
    world.until("uncordoned", |world| world.is_given_back("one")).await;
    world
        .until("completed", |world| {
            world.condition("m", "Progressing") == "False Completed"
        })
        .await;
    assert_eq!(world.node_conditions("one"), Vec::<String>::new());
    let finalizers = |world: &World| world.maintenance("m").unwrap().metadata.finalizers.unwrap_or_default();
    world.until("no finalizer", |world| finalizers(world).is_empty()).await;
    let patches = world.requests("PATCH", "nodemaintenances/m");
    sleep(10 * MINUTE).await;
    assert_eq!(finalizers(&world), Vec::<String>::new(), "it never comes back");
    assert_eq!(world.requests("PATCH", "nodemaintenances/m"), patches);
    world.delete_maintenance("m").await;
    world.until("gone", |world| world.maintenance("m").is_none()).await;
    let events = world.event_counts("m").await;
    let expected = [
        ("MaintenanceCompleted", 1),
        ("MaintenanceStageStarted", 3),
        ("NodesDrained", 1),
    ];
    assert_eq!(
        events,
        expected.map(|(reason, count)| (reason.to_owned(), count)).into()
    );
    assert!((world.metric("headgate_maintenance_evictions_total{outcome=\"accepted\"}") - 2.0).abs() < 0.1);
    assert!((world.metric("headgate_maintenance_out_to_first_evacuation_seconds_count") - 1.0).abs() < 0.1);
    for stage in ["Cordon", "Drain", "Complete"] {
        let series = format!("headgate_maintenance_stage_duration_seconds_count{{stage=\"{stage}\"}}");
        assert!((world.metric(&series) - 1.0).abs() < 0.1, "{stage}");
    }
    assert!(world.is_given_back("two"));
    let requests = world.fake.requests();
    let parameters = requests.iter().map(|request| &request.query);
    let mut of_node = parameters.filter(|query| query.get("fieldSelector").is_some_and(|it| it == "spec.nodeName=one"));
    assert!(of_node.clone().next().is_some());
    assert!(
        of_node.all(|query| !query.contains_key("limit")),
        "with one, kube-apiserver reads all pods of the cluster"
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_without_room_keeps_its_pod_until_it_has_room() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world.budget("web", "web", 0).await;
    world.observe_out("one");
    let leader = world.lead().await;
    world.maintain("a", "Cordon", &["one"], &json!({})).await;
    world.maintain("m", "Drain", &["one"], &json!({})).await;
    world.until_requested("POST", "web/eviction").await;
    // Failures 1 to 4 are followed by pauses of 10, 20, 40 and 80 s.
    sleep(2 * MINUTE).await;
    assert_eq!(world.requests("POST", "web/eviction"), 4);
    let evacuation = world.evacuation("web").await.unwrap().status.unwrap();
    assert_eq!(evacuation.failed_eviction_counter, 4);
    assert_eq!(evacuation.conditions[0].reason, "DisruptionBudget");
    let status = world.node_status("m", "one");
    assert_eq!(
        status.blockers[0].message,
        "PodDisruptionBudget web allows 0 disruptions; nothing replaces the pod: let the budget allow a disruption, or delete the pod"
    );
    assert!((world.metric("headgate_maintenance_evictions_total{outcome=\"disruption_budget\"}") - 4.0).abs() < 0.1);
    assert!((world.metric("headgate_maintenance_blockers") - 1.0).abs() < 0.1);
    // Room ends the pause, also that of the next leader.
    world.pod("one", "api", &json!({})).await;
    world.budget("api", "api", 0).await;
    sleep(50 * MINUTE).await;
    assert!(world.has_pod("web"));
    world.allow("web", 1);
    sleep(15 * SECOND).await;
    assert!(!world.has_pod("web"));
    leader.kill();
    let _leader = world.lead().await;
    sleep(MINUTE).await;
    assert!(world.has_pod("api"));
    world.allow("api", 1);
    sleep(15 * SECOND).await;
    assert!(!world.has_pod("api"));

    // Only the first Evacuation since a confirmation is measured, and not by a leader that has not seen the confirmation.
    let measured = |world: &World| world.metric("headgate_maintenance_out_to_first_evacuation_seconds_count");
    world.pod("one", "late", &json!({})).await;
    world.until("it leaves", |world| !world.has_pod("late")).await;
    assert!((measured(&world) - 1.0).abs() < 0.1);
    // A machine that comes back under its name is another one.
    world.fake.delete::<Node>("", "one");
    sleep(10 * SECOND).await;
    world.create::<Node>("", node("one")).await;
    world.observe_in("one");
    sleep(10 * SECOND).await;
    world.observe_out("one");
    world.pod("one", "new", &json!({})).await;
    world.until("it leaves", |world| !world.has_pod("new")).await;
    assert!((measured(&world) - 2.0).abs() < 0.1);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_goes_on_where_the_one_before_was_killed() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world.budget("web", "web", 0).await;
    world.observe_out("one");
    let leader = world.lead().await;
    world.maintain("m", "Drain", &["one"], &json!({})).await;
    world.until_requested("POST", "web/eviction").await;
    sleep(5 * SECOND).await;
    let (before, events) = (world.maintenance("m").unwrap(), world.event_counts("m").await);
    leader.kill();
    let _leader = world.lead().await;
    sleep(5 * SECOND).await;
    let after = world.maintenance("m").unwrap();
    let times = |object: &NodeMaintenance| {
        let status = object.status.clone().unwrap();
        (
            status.stage_statuses,
            status.drain_plan_index,
            status.node_statuses[0].load_balancer.clone(),
        )
    };
    assert_eq!(times(&after), times(&before));
    assert_eq!(world.event_counts("m").await, events);
    world.allow("web", 1);
    world.until_gone(&["web"]).await;
    assert_eq!(world.requests("POST", "/evacuations"), 1, "none is created twice");
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_dead_node_terminates_until_the_node_is_back() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world.observe_out("one");
    let set_ready = |world: &World, status: &str| {
        world.fake.change::<Node>("", "one", |node| {
            node["status"]["conditions"][0]["status"] = json!(status);
        });
    };
    set_ready(&world, "Unknown");
    let leader = world.lead().await;
    world.drain_one(0).await;
    world.until_requested("POST", "web/eviction").await;
    sleep(25 * SECOND).await;
    assert_eq!(
        world.condition("m", "Blocked"),
        "False NotBlocked",
        "in its grace period"
    );
    leader.kill();
    let _leader = world.lead().await;
    sleep(MINUTE).await;
    assert_eq!(world.condition("m", "Blocked"), "True Terminating");
    assert!(world.has_pod("web") && !world.is_drained("m"));
    assert_eq!(world.requests("POST", "web/eviction"), 1);
    set_ready(&world, "True");
    world.until_drained("m").await;
    assert!(!world.has_pod("web"));
}

/// It may have been completed since, and nothing would say so.
#[tokio::test(start_paused = true)]
async fn no_pod_leaves_for_a_maintenance_that_cannot_be_read_for_five_minutes() {
    let of_maintenances: fn(&RecordedRequest) -> bool = |request| request.path.ends_with("/nodemaintenances");
    let of_evacuations = |request: &RecordedRequest| request.method == "GET" && request.path.ends_with("/evacuations");
    for (reads, are_maintenances_read) in [(of_maintenances, false), (of_evacuations, true)] {
        let mut world = World::new(&["one", "two"]).await;
        world.pod("one", "web", &json!({})).await;
        world.budget("web", "web", 0).await;
        world.observe_out("one");
        let leader = world.lead().await;
        world.maintain("m", "Drain", &["one"], &json!({})).await;
        world.maintain("n", "Cordon", &["two"], &json!({})).await;
        world.until_requested("POST", "web/eviction").await;
        leader.faults.set_for(Fault::Status(403), reads);
        leader.faults.cut_watches();
        sleep(6 * MINUTE).await;
        let before = world.requests("POST", "web/eviction");
        world.pod("one", "other", &json!({})).await;
        sleep(20 * MINUTE).await;
        assert_eq!(world.requests("POST", "web/eviction"), before);
        assert_eq!(world.evacuation("other").await.is_some(), are_maintenances_read);
        world.set_stage("n", "Complete").await;
        sleep(MINUTE).await;
        assert_eq!(world.isolation("two").0, !are_maintenances_read);
        leader.faults.set(Fault::None);
        world.allow("web", 1);
        world.until_gone(&["web", "other"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_that_has_not_read_yet_takes_nothing_back_and_lets_no_pod_go() {
    let mut world = World::new(&["one", "two"]).await;
    world.first_read_after = 10 * SECOND;
    let leader = world.lead().await;
    world.observe_out("one");
    let gate = json!({"loadBalancer": {"confirmation": "BestEffort", "connectionsDrainSeconds": 3600}});
    world.maintain("empty", "Drain", &["one"], &json!({})).await;
    world.maintain("m", "Drain", &["two"], &gate).await;
    world.pod("two", "web", &json!({})).await;
    let state = |world: &World| world.node_status("m", "two").load_balancer.map(|gate| gate.state);
    world.observe_out("two");
    sleep(30 * MINUTE).await;
    let conditions = ["Drained", "MaintenanceInProgress"];
    assert!(world.is_drained("empty"));
    assert_eq!(world.node_conditions("one"), conditions);
    assert_eq!(state(&world), Some(LoadBalancerState::Draining));
    let events = world.event_counts("empty").await;
    leader.kill();
    let _leader = world.lead().await;
    sleep(SECOND).await;
    assert_eq!(state(&world), Some(LoadBalancerState::Pending), "before its first read");
    assert!(world.is_drained("empty"));
    assert_eq!(world.node_conditions("one"), conditions);
    assert_eq!(world.condition("empty", "Blocked"), "False NotBlocked");
    sleep(MINUTE).await;
    assert_eq!(state(&world), Some(LoadBalancerState::Draining));
    assert!(world.is_drained("empty") && world.has_pod("web"));
    assert_eq!(world.event_counts("empty").await, events);
}

#[tokio::test(start_paused = true)]
async fn another_actor_that_keeps_uncordoning_is_reported() {
    let mut world = World::new(&["one"]).await;
    let _leader = world.lead().await;
    world.maintain("m", "Cordon", &["one"], &json!({})).await;
    for reverts in 0..3 {
        world.until("cordoned", |world| world.isolation("one").0).await;
        sleep(SECOND).await;
        assert!(world.notes("one", "CordonReverted").await.is_empty(), "{reverts}");
        world.fake.change::<Node>("", "one", |node| {
            node["spec"]["unschedulable"] = json!(false);
        });
    }
    world.until("cordoned again", |world| world.isolation("one").0).await;
    sleep(SECOND).await;
    let notes = world.notes("one", "CordonReverted").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("3 times"), "{notes:?}");
    assert_eq!(
        world.isolation("one"),
        (true, Vec::new(), Some("false".to_owned())),
        "no taint before Drain"
    );
}

#[tokio::test(start_paused = true)]
async fn maintenances_whose_requests_hang_delay_another_as_long_as_one_request() {
    let names: Vec<String> = (0..7).map(|number| format!("hanging-{number}")).collect();
    let mut nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push("two");
    let mut world = World::new(&nodes).await;
    let leader = world.lead().await;
    leader.faults.set_for(Fault::Slow(60 * MINUTE), |request| {
        request.path.contains("/nodemaintenances/hanging-")
    });
    for node in nodes {
        world.maintain(node, "Cordon", &[node], &json!({})).await;
    }
    sleep(15 * SECOND).await;
    assert!(world.isolation("two").0, "a request is given up after 10 s");
    leader.faults.set(Fault::None);
    world.until("the others", |world| world.isolation("hanging-0").0).await;
}

/// As with a webhook that has to time out before each of them.
#[tokio::test(start_paused = true)]
async fn evacuations_that_take_long_to_create_delay_another_maintenance_as_long_as_one_of_them() {
    let mut world = World::new(&["one", "two"]).await;
    for number in 0..100 {
        world.pod("one", &format!("web-{number}"), &json!({})).await;
    }
    let leader = world.lead().await;
    world.observe_out("one");
    leader.faults.set_for(Fault::Slow(3 * SECOND / 2), |request| {
        request.method == "POST" && request.path.ends_with("/evacuations")
    });
    world.drain_one(0).await;
    let _requested = world.until_evacuating("web-0").await;
    world.maintain("n", "Cordon", &["two"], &json!({})).await;
    sleep(10 * SECOND).await;
    assert!(world.isolation("two").0, "after two turns");
    world
        .until("all pods leave", |world| {
            (0..100).all(|number| !world.has_pod(&format!("web-{number}")))
        })
        .await;
    assert_eq!(world.requests("POST", "/evacuations"), 100, "none is created twice");
}

#[tokio::test(start_paused = true)]
async fn evacuations_whose_creation_hangs_keep_no_other_from_its_turn() {
    let mut world = World::new(&["one"]).await;
    for number in 0..20 {
        let hanging = json!({"metadata": {"name": format!("web-{number}"), "namespace": "hanging"},
            "spec": {"nodeName": "one", "containers": [{"name": "c"}]}, "status": {"phase": "Running"}});
        world.create::<Pod>("hanging", hanging).await;
    }
    world.pod("one", "web", &json!({})).await;
    let leader = world.lead().await;
    world.observe_out("one");
    leader.faults.set_for(Fault::Slow(60 * MINUTE), |request| {
        request.method == "POST" && request.path.ends_with("/hanging/evacuations")
    });
    world.drain_one(0).await;
    world.until_gone(&["web"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_hangs_delays_no_other() {
    let mut world = World::new(&["one"]).await;
    for number in 0..10 {
        world.pod("one", &format!("hanging-{number}"), &json!({})).await;
    }
    let leader = world.lead().await;
    world.observe_out("one");
    leader.faults.set_for(Fault::Slow(60 * MINUTE), |request| {
        request.path.contains("/pods/hanging-") && request.path.ends_with("/eviction")
    });
    world.maintain("m", "Drain", &["one"], &json!({})).await;
    let _requested = world.until_evacuating("hanging-9").await;
    sleep(SECOND).await;
    world.pod("one", "web", &json!({})).await;
    sleep(4 * SECOND).await;
    assert_eq!(world.requests("POST", "web/eviction"), 1, "within a few seconds");
}

/// After a deadline each pod that a budget keeps is due again after 10 s. Evictions that take longer than a step has a place come to 16 a second.
#[tokio::test(start_paused = true)]
async fn evictions_that_a_budget_refuses_keep_no_other_from_its_turn() {
    let mut world = World::new(&["one"]).await;
    let kept = json!({"metadata": {"labels": {"app": "kept"}}});
    for number in 0..200 {
        world.pod("one", &format!("kept-{number}"), &kept).await;
    }
    world.budget("kept", "kept", 0).await;
    let leader = world.lead().await;
    world.observe_out("one");
    let is_eviction = |request: &RecordedRequest| request.path.ends_with("/eviction");
    leader.faults.set_for(Fault::Slow(3 * SECOND / 5), is_eviction);
    let deadline = world.now().to_string();
    world
        .maintain("m", "Drain", &["one"], &json!({"deadline": deadline}))
        .await;
    world.until_requested("POST", "kept-0/eviction").await;
    world.pod("one", "web", &json!({})).await;
    sleep(30 * SECOND).await;
    assert!(!world.has_pod("web"));
}
