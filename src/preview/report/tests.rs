use headgate_core::settings::IntOrPercent;
use headgate_maintenance::drain_plan::{Labels, PodSelector};
use headgate_test_kubernetes::assert_contains;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::report::{Detail, Report as _};
use crate::status::report::{EntryRow, LoadBalancerRow, NodeRow, PoolRow, VerdictRow};

fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        ready: true,
        ..Node::default()
    }
}

fn pod(node: &str, name: &str, priority: i32) -> PodFacts {
    PodFacts {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: node.to_owned(),
        labels: Labels::from([("app".to_owned(), name.to_owned())]),
        priority,
        ..PodFacts::default()
    }
}

fn budget(name: &str, app: &str, allowed: i32) -> BudgetFacts {
    BudgetFacts {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        selector: PodSelector::label("app", app),
        disruptions_allowed: allowed,
        ..BudgetFacts::default()
    }
}

fn maintenance(name: &str, nodes: &[&str], drain_plan: &Value) -> NodeMaintenance {
    let terms: Vec<_> = nodes
        .iter()
        .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}))
        .collect();
    serde_json::from_value(json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": name, "finalizers": ["nodemaintenance.k8s.io/maintenance-completion"]},
        "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, "stage": "Drain", "drainPlan": drain_plan}}))
    .unwrap()
}

/// A report of one pool with an entry for each node. `Held` is one that the guard keeps in service.
fn status(admin_states: &[(&str, &'static str)]) -> StatusReport {
    let entry = |admin_state| EntryRow {
        load_balancer: "kubernetes".to_owned(),
        pool: "Main".to_owned(),
        admin_state: Some(if admin_state == "Held" { "None" } else { admin_state }),
        becomes: (admin_state == "None").then_some("Down"),
        held_back: admin_state == "Held",
        held_reason: (admin_state == "Held").then(|| "too few others can serve".to_owned()),
        ..EntryRow::default()
    };
    let nodes = admin_states.iter().map(|(name, admin_state)| NodeRow {
        name: (*name).to_owned(),
        ready: true,
        verdict: VerdictRow {
            healthz: Some(200),
            ..VerdictRow::default()
        },
        entries: vec![entry(admin_state)],
        ..NodeRow::default()
    });
    let pool = PoolRow {
        name: "main".to_owned(),
        entries: admin_states.len(),
        down: admin_states.iter().filter(|(_, state)| *state == "Down").count(),
        ..PoolRow::default()
    };
    StatusReport {
        mode: "Enforce",
        foreign_down: "Keep",
        minimum_in_service: "1".to_owned(),
        health_port: 10456,
        nodes_total: admin_states.len(),
        nodes: nodes.collect(),
        load_balancers: vec![LoadBalancerRow {
            name: "kubernetes".to_owned(),
            configured: true,
            pools: vec![pool],
            ..LoadBalancerRow::default()
        }],
        ..StatusReport::default()
    }
}

fn snapshot(nodes: &[&str], pods: Vec<PodFacts>) -> PreviewSnapshot {
    PreviewSnapshot {
        now: Timestamp::UNIX_EPOCH,
        maintenance: maintenance("drain-one", nodes, &json!([])),
        maintenances: Vec::new(),
        nodes: ["one", "two", "three"].map(node).to_vec(),
        pods,
        budgets: Vec::new(),
        load_balancers: Err("not configured".to_owned()),
        minimum_in_service: IntOrPercent::Int(1),
        max_new_down: IntOrPercent::Percent(25),
        max_concurrent_nodes: IntOrPercent::ALL,
    }
}

fn names(step: &StepRow) -> Vec<&str> {
    step.pods.iter().map(|row| row.pod.as_str()).collect()
}

#[test]
fn pods_leave_in_the_order_of_the_drain_plan() {
    let daemon = |tolerates| PodFacts {
        pod_type: PodType::DaemonSet,
        tolerates_maintenance: tolerates,
        ..pod("one", if tolerates { "cni" } else { "log" }, 0)
    };
    let fixed = PodFacts {
        pod_type: PodType::Static,
        ..pod("one", "etcd", 0)
    };
    let done = PodFacts {
        is_finished: true,
        ..pod("one", "job", 0)
    };
    let pods = vec![
        pod("two", "web", 0),
        pod("one", "db", 0),
        pod("one", "web", 0),
        pod("one", "dns", 2_000_000_000),
        pod("three", "elsewhere", 0),
        daemon(false),
        daemon(true),
        fixed,
        done,
    ];
    let mut snapshot = snapshot(&["one", "two"], pods);
    let web = json!([{"podPriority": 5, "podSelector": {"matchLabels": {"app": "web"}}}]);
    snapshot.maintenance = maintenance("m", &["one", "two"], &web);
    let preview = Preview::from_snapshot(&snapshot);
    let steps: Vec<_> = preview
        .steps
        .iter()
        .map(|step| (step.entry.pod_priority, names(step)))
        .collect();
    assert_eq!(
        steps,
        [
            (5, vec!["shop/web", "shop/web"]),
            (1_000_000_000, vec!["shop/db"]),
            (2_000_000_000, vec!["shop/dns"]),
            (1_000_000_000, vec!["shop/log"]),
        ]
    );
    let counts: Vec<_> = preview
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.pods, node.exempt, node.unsupported))
        .collect();
    assert_eq!(counts, [("one", 4, 1, 1), ("two", 1, 0, 0)]);
    let text = preview.text(Detail::Narrow);
    assert_contains!(
        text,
        "5 pods would leave 2 nodes. Nothing was written.",
        "The pools are not known: not configured",
        "2. Pods of priority 5 or lower that {\"matchLabels\":{\"app\":\"web\"}} selects: 2 pods.",
        "5. Pods of DaemonSets of priority 1000000000 or lower: 1 pod.",
        "deleted"
    );
}

#[test]
fn blockers_and_narrow_budgets_are_named() {
    let mut twice = pod("one", "twice", 0);
    twice.labels.insert("tier".to_owned(), "x".to_owned());
    let daemon = PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod("one", "log", 0)
    };
    let ready = PodFacts {
        is_ready: true,
        ..pod("two", "cache", 0)
    };
    let pods = vec![
        pod("one", "db", 0),
        twice,
        daemon,
        pod("one", "cache", 0),
        ready,
        pod("one", "web", 0),
        pod("two", "web", 0),
    ];
    let mut snapshot = snapshot(&["one", "two"], pods);
    snapshot.budgets = vec![
        budget("db", "db", 0),
        budget("log", "log", 0),
        budget("twice", "twice", 1),
        BudgetFacts {
            selector: PodSelector::label("tier", "x"),
            ..budget("tier", "x", 1)
        },
        budget("web", "web", 1),
        budget("other", "other", 0),
        BudgetFacts {
            lets_unready_go: true,
            ..budget("cache", "cache", 1)
        },
    ];
    let preview = Preview::from_snapshot(&snapshot);
    let rows = preview.blocked.iter().map(|row| (row.pod.as_str(), row.reason));
    let (one, more) = (
        BlockerReason::DisruptionBudget,
        BlockerReason::MultipleDisruptionBudgets,
    );
    let expected = [("shop/db", one), ("shop/twice", more)];
    assert!(rows.eq(expected), "pods of DaemonSets are deleted whatever budgets say");
    let rows = preview.budgets.iter();
    let rows: Value = rows
        .map(|row| json!([row.budget, row.disruptions_allowed, row.pods]))
        .collect();
    let expected = json!([
        ["shop/db", 0, 1],
        ["shop/cache", 1, 1],
        ["shop/tier", 1, 1],
        ["shop/twice", 1, 1],
        ["shop/web", 1, 2]
    ]);
    assert_eq!(rows, expected);
    let text = preview.text(Detail::Narrow);
    assert_contains!(
        text,
        "Blocked now: pod shop/db on one: PodDisruptionBudget db allows 0 disruptions.",
        "PodDisruptionBudget shop/web allows 1 disruptions now, and is about 2 of these pods"
    );
}

#[test]
fn pools_lose_the_entries_that_are_not_down_yet() {
    let mut snapshot = snapshot(&["one", "two"], Vec::new());
    let held = "kubernetes/main keeps two in service: too few others can serve. Their pods leave only after \
                loadBalancer.confirmationTimeoutSeconds (600 s).";
    let is_up = "keeps one in service: the adminState is Up, which headgate leaves as it is.\n";
    let observes = "adminState.mode is Observe: the leader sets nothing Down";
    for (mode, states, expected, note) in [
        ("Enforce", ["None", "None", "None"], (0, 2, 1), None),
        ("Enforce", ["Down", "None", "None"], (1, 1, 1), None),
        ("Enforce", ["None", "None", "Down"], (1, 2, 0), None),
        ("Enforce", ["None", "Held", "None"], (0, 1, 2), Some(held)),
        ("Enforce", ["Up", "None", "None"], (0, 1, 2), Some(is_up)),
        ("Enforce", ["Down", "Down", "Down"], (3, 0, 0), None),
        ("Observe", ["None", "None", "Down"], (1, 0, 2), Some(observes)),
    ] {
        let [one, two, three] = states;
        snapshot.load_balancers = Ok(StatusReport {
            mode,
            ..status(&[("one", one), ("two", two), ("three", three)])
        });
        let preview = Preview::from_snapshot(&snapshot);
        let [pool] = preview.pools.as_slice() else {
            panic!("{preview:?}")
        };
        assert_eq!((pool.down, pool.leaving, pool.remaining), expected, "{states:?}");
        let text = preview.text(Detail::Narrow);
        for each in [held, is_up, observes] {
            assert_eq!(text.contains(each), note == Some(each), "{states:?}: {text}");
        }
        // A quarter of three is none, and one is the least.
        let held_back = text.contains("adminState.maxNewDown lets 1 of them go");
        assert_eq!(held_back, pool.leaving > 1);
    }
    let mut elsewhere = status(&[("three", "None")]);
    elsewhere.azure_error = Some("ARM is away".to_owned());
    snapshot.load_balancers = Ok(elsewhere);
    let preview = Preview::from_snapshot(&snapshot);
    assert_eq!(
        (preview.pools.len(), preview.azure_error.as_deref()),
        (0, Some("ARM is away"))
    );
    let mut unattributed = status(&[("three", "None")]);
    unattributed.unattributed = vec!["interface nic-1 cannot be read".to_owned()];
    snapshot.load_balancers = Ok(unattributed);
    let text = Preview::from_snapshot(&snapshot).text(Detail::Narrow);
    assert!(
        text.contains("any Node: interface nic-1 cannot be read.\n   No other entry of"),
        "{text}"
    );
}

#[test]
fn other_maintenances_and_evacuators_are_named() {
    let annotation = |class: &str| format!("evacuation.coordination.k8s.io/priority_{class}");
    let mut db = pod("one", "db", 0);
    db.evacuators = BTreeMap::from([
        (annotation("backup.example"), "20000".to_owned()),
        (annotation("move.example"), "30000/mover".to_owned()),
        (annotation("broken.example"), "many".to_owned()),
    ]);
    let mut snapshot = snapshot(&["one"], vec![db]);
    let stage = |name: &str, nodes: &[&str], stage: &str| {
        let mut object = maintenance(name, nodes, &json!([]));
        object.spec.stage = serde_json::from_value(json!(stage)).unwrap();
        object
    };
    snapshot.maintenances = vec![
        stage("drain-one", &["one"], "Drain"),
        stage("older", &["one", "two"], "Cordon"),
        stage("elsewhere", &["two"], "Drain"),
        stage("over", &["one"], "Complete"),
        stage("idle", &["one"], "Idle"),
    ];
    let preview = Preview::from_snapshot(&snapshot);
    let others: Vec<_> = preview.other_maintenances.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(others, ["older"]);
    assert_eq!(preview.other_maintenances[0].nodes, ["one"]);
    assert_eq!(preview.steps[0].pods[0].evacuators, ["move.example", "backup.example"]);
    assert_eq!(preview.malformed_annotations.len(), 1);
    let text = preview.text(Detail::Narrow);
    assert_contains!(
        text,
        "move.example, backup.example, then Eviction API",
        "NodeMaintenance older (stage Cordon) has the same nodes: one.",
        "Pod shop/db: annotation evacuation.coordination.k8s.io/priority_broken.example: \"many\" is left out"
    );
}

#[test]
fn names_of_others_cannot_control_the_terminal() {
    let snapshot = snapshot(&["one"], vec![pod("one", "a\n\u{1b}[2J", 0)]);
    let text = Preview::from_snapshot(&snapshot).text(Detail::Narrow);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

#[test]
fn wide_text_has_all_pods_and_columns_and_nodes_are_sorted() {
    let pods = (0..21).map(|number| pod("one", &format!("p{number:02}"), 0)).collect();
    let mut snapshot = snapshot(&["one", "two"], pods);
    snapshot.load_balancers = Ok(status(&[("one", "None"), ("two", "None"), ("three", "None")]));
    let mut preview = Preview::from_snapshot(&snapshot);
    let (narrow, wide) = (preview.text(Detail::Narrow), preview.text(Detail::Wide));
    assert!(
        narrow.contains("   1 more pods; -o wide has all.\n") && !narrow.contains("shop/p20"),
        "{narrow}"
    );
    for part in [
        "shop/p20",
        "OF DAEMONSETS   STATIC",
        "MINIMUM   NODES THAT LEAVE",
        "one, two\n",
    ] {
        assert!(
            wide.contains(part) && !narrow.contains(part),
            "{part:?} in\n{wide}\n{narrow}"
        );
    }
    preview.sort_nodes_by(".pods").unwrap();
    let names: Vec<_> = preview.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["two", "one"]);
    let error = preview.sort_nodes_by(".since").unwrap_err().to_string();
    assert_contains!(error, "\".since\"; allowed: a field", ".pods");
}

#[test]
fn nodes_without_room_wait() {
    let mut snapshot = snapshot(&["one", "two"], Vec::new());
    let other = |stage: &str| {
        let mut other = maintenance("other", &["three"], &json!([]));
        other.metadata.creation_timestamp = Some(Time("1969-12-31T23:59:59Z".parse().unwrap()));
        other.spec.stage = serde_json::from_value(json!(stage)).unwrap();
        vec![other]
    };
    let (idle, draining) = (other("Idle"), other("Drain"));
    for (max, others, expected) in [
        (IntOrPercent::ALL, &idle, &[][..]),
        (IntOrPercent::Int(2), &idle, &[]),
        (IntOrPercent::Int(1), &idle, &["two"]),
        (IntOrPercent::Percent(67), &draining, &["two"]),
        (IntOrPercent::Int(1), &draining, &["one", "two"]),
    ] {
        snapshot.max_concurrent_nodes = max;
        snapshot.maintenances.clone_from(others);
        let preview = Preview::from_snapshot(&snapshot);
        let waiting = preview.nodes.iter().filter(|node| node.waiting_for_room);
        let waiting: Vec<_> = waiting.map(|node| node.name.as_str()).collect();
        assert_eq!(waiting, expected, "{max}");
        let text = preview.text(Detail::Narrow);
        let note = format!("maintenance.maxConcurrentNodes ({max}) has no room for ");
        assert_eq!(text.contains(&note), !expected.is_empty(), "{text}");
    }
}
