use kube::api::PostParams;
use serde_json::Value;

use super::*;

fn node(name: &str, pool: &str) -> NodeMetadata {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"pool": pool}}})).unwrap()
}

fn maintenance(name: &str, stage: &str, created_by: &str, terms: &Value) -> NodeMaintenance {
    serde_json::from_value(json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "labels": {"headgate.dev/created-by": created_by}},
        "spec": {"stage": stage, "nodeSelector": {"nodeSelectorTerms": terms}}}))
    .unwrap()
}

fn named(names: &[&str]) -> Value {
    let term = |name: &&str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    names.iter().map(term).collect()
}

#[test]
fn what_drain_created_ends_for_the_given_nodes_and_for_no_others() {
    let all = [node("a", "x"), node("b", "x"), node("c", "y")];
    let pool_x = json!([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x"]}]}]);
    let without_gpu = json!([{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]);
    let drained = |terms: &Value| vec![maintenance("m", "Drain", "drain", terms)];
    let decided = |maintenances: &[NodeMaintenance], given: &[&str]| -> Result<Vec<Option<Value>>, String> {
        let given = given.iter().map(ToString::to_string).collect();
        let endings = decide(maintenances, &all, &given, None).map_err(|error| error.to_string())?;
        let rest = |ending: &Ending<'_>| ending.rest.as_ref().map(|rest| json!(rest.node_selector_terms));
        Ok(endings.iter().map(rest).collect())
    };
    for (maintenances, given, expected) in [
        (vec![], &["a"][..], vec![]),
        (drained(&named(&["a"])), &["a"], vec![None]),
        (drained(&named(&["a"])), &["b"], vec![]),
        (drained(&named(&["a", "b"])), &["a", "b"], vec![None]),
        (drained(&named(&["a", "b"])), &["a"], vec![Some(named(&["b"]))]),
        // The Node of `gone` was deleted.
        (drained(&named(&["a", "gone"])), &["a"], vec![Some(named(&["gone"]))]),
        (drained(&named(&["a", "gone"])), &["a", "gone"], vec![None]),
        (drained(&named(&["a", "gone"])), &["gone"], vec![Some(named(&["a"]))]),
        (
            drained(&named(&["gone", "lost"])),
            &["gone"],
            vec![Some(named(&["lost"]))],
        ),
        (drained(&named(&["gone", "lost"])), &["gone", "lost"], vec![None]),
        (drained(&without_gpu), &["gone"], vec![]),
        (drained(&pool_x), &["a", "b"], vec![None]),
        (vec![maintenance("m", "Idle", "", &pool_x)], &["a"], vec![]),
        (vec![maintenance("m", "Complete", "team", &pool_x)], &["a"], vec![]),
    ] {
        assert_eq!(decided(&maintenances, given), Ok(expected), "{given:?}");
    }
    let refused = |maintenances: &[NodeMaintenance]| decided(maintenances, &["a"]).unwrap_err();
    let by_labels = refused(&drained(&pool_x));
    assert!(by_labels.contains("node b as well; nothing was ended"), "{by_labels}");
    let foreign = refused(&[maintenance("kernel", "Cordon", "team", &named(&["a"]))]);
    assert!(foreign.contains("kubectl delete hgnm kernel"), "{foreign}");
}

#[tokio::test]
async fn a_node_that_is_gone_can_be_given_while_a_maintenance_names_it() {
    let (client, _faults) = headgate_test_kubernetes::FakeApi::default().client();
    let given = |nodes: &[&str], maintenance: NodeMaintenance| {
        let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let request = UndrainRequest {
            client: &client,
            nodes: &nodes,
            query: None,
            wait: false,
            timeout: None,
        };
        let given = given_nodes(&request, &[maintenance], &[node("a", "x")]);
        given.map_err(|error| error.to_string())
    };
    let named = |stage| maintenance("m", stage, "drain", &named(&["gone"]));
    let both = ["a".to_owned(), "gone".to_owned()].into();
    assert_eq!(given(&["a", "gone"], named("Drain")), Ok(both));
    let pool = json!([{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["x"]}]}]);
    for maintenance in [named("Complete"), maintenance("m", "Drain", "drain", &pool)] {
        let error = given(&["a", "gone"], maintenance).unwrap_err();
        assert!(error.contains("no Node \"gone\""), "{error}");
    }
}

#[tokio::test]
async fn what_drain_created_for_labels_ends_for_them_also_while_no_node_has_them() {
    let (client, _faults) = headgate_test_kubernetes::FakeApi::default().client();
    let all = [node("a", "x"), node("b", "y")];
    let pool = |values: &[&str]| json!({"key": "pool", "operator": "In", "values": values});
    let terms = |expressions: Value| json!([{"matchExpressions": expressions}]);
    let (old, windows) = (
        terms(json!([pool(&["old"])])),
        json!({"key": "os", "operator": "In", "values": ["windows"]}),
    );
    let two_terms = json!([{"matchExpressions": [pool(&["old"])]}, {"matchExpressions": [pool(&["x"])]}]);
    for (stage, created_by, selector, query, expected) in [
        ("Drain", "drain", &old, "pool=old", Ok(1)),
        ("Drain", "drain", &old, "pool in (old)", Ok(1)),
        (
            "Drain",
            "drain",
            &terms(json!([pool(&["old"]), windows])),
            "os=windows,pool=old",
            Ok(1),
        ),
        ("Drain", "drain", &old, "pool=older", Err("no node matches -l")),
        ("Drain", "drain", &two_terms, "pool=old", Err("no node matches -l")),
        ("Drain", "team", &old, "pool=old", Err("no node matches -l")),
        ("Complete", "drain", &old, "pool=old", Err("no node matches -l")),
        ("Drain", "drain", &terms(json!([pool(&["x"])])), "pool=x", Ok(1)),
        ("Drain", "drain", &old, "pool=x", Ok(0)),
    ] {
        let query = NodeQuery::parse(query).unwrap();
        let request = UndrainRequest {
            client: &client,
            nodes: &[],
            query: Some(&query),
            wait: false,
            timeout: None,
        };
        let maintenances = [maintenance("m", stage, created_by, selector)];
        let given = given_nodes(&request, &maintenances, &all);
        let endings = given.and_then(|given| decide(&maintenances, &all, &given, Some(&query)));
        match (endings, expected) {
            (Ok(endings), Ok(count)) => assert_eq!(endings.len(), count, "{query:?}"),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (endings, _) => panic!("{query:?}: {endings:?}"),
        }
    }
}

#[test]
fn the_leaders_maintenance_of_a_node_that_is_taken_is_left_alone() {
    let all = [node("a", "x"), node("b", "x")];
    let mut automatic = maintenance("automatic-a", "Drain", "", &named(&["a"]));
    automatic
        .labels_mut()
        .insert("headgate.dev/automatic".to_owned(), "preempt".to_owned());
    automatic.metadata.owner_references =
        serde_json::from_value(json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u"}])).unwrap();
    let both = [automatic, maintenance("m", "Drain", "drain", &named(&["b"]))];
    let given = ["a".to_owned(), "b".to_owned()].into();
    let endings = decide(&both, &all, &given, None).unwrap();
    assert_eq!(
        endings
            .iter()
            .map(|ending| ending.object.name_any())
            .collect::<Vec<_>>(),
        ["m"]
    );
    let mut marked = node("c", "x");
    marked
        .annotations_mut()
        .insert(CORDON_ANNOTATION.to_owned(), "false".to_owned());
    let three = [all[0].clone(), all[1].clone(), marked];
    let given = ["a", "b", "c", "gone"].map(str::to_owned).into();
    assert_eq!(
        untouched(&given, &endings, &three),
        ["a"],
        "b is ended, c is being given back"
    );
    let kept: Vec<_> = kept(&both, &endings, &all).collect();
    let why = "it is about to be taken (nodemaintenance/automatic-a)";
    assert_eq!(kept, [("a".to_owned(), why.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_node_is_said_after_a_while() {
    let status = |reason: &str, state: &str, message: &str| {
        let progressing = json!({"type": "Progressing", "status": state, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-02T03:00:00Z"});
        // Also about what the command itself changes.
        json!({"observedGeneration": 9, "conditions": [progressing]})
    };
    let none = Value::Null;
    let drains = status("Drain", "True", "");
    let completed = status("Completed", "False", "");
    let refused = status("Completing", "True", "Node a was refused");
    let taken_up = "node/a stays out: another maintenance has begun there (nodemaintenance/n)";
    for (selector, status, stage, expected) in [
        (named(&["b"]), &none, "Drain", taken_up),
        (
            named(&["a", "b"]),
            &none,
            "Drain",
            "nodemaintenance/m: no controller has answered yet",
        ),
        (
            named(&["a", "b"]),
            &drains,
            "Drain",
            "node/a is still cordoned by headgate. Does a controller lead?",
        ),
        (
            named(&["a"]),
            &none,
            "Drain",
            "nodemaintenance/m: no controller has answered yet",
        ),
        (
            named(&["a"]),
            &refused,
            "Drain",
            "nodemaintenance/m is being completed: Node a was refused",
        ),
        (
            named(&["a"]),
            &completed,
            "Drain",
            "nodemaintenance/m is completed, and its finalizers keep it: example.com/backup",
        ),
        (
            named(&["b"]),
            &none,
            "Drain",
            "node/a is still cordoned by headgate. Does a controller lead?",
        ),
        (
            named(&["a"]),
            &none,
            "Later",
            "node/a is still cordoned by headgate. NodeMaintenance m cannot be decoded: ",
        ),
    ] {
        let fake = headgate_test_kubernetes::FakeApi::default();
        let (client, _faults) = fake.client();
        let nodes = Api::<Node>::all(client.clone());
        let object = json!({"metadata": {"name": "a", "annotations": {CORDON_ANNOTATION: "false"}}, "spec": {"unschedulable": true}});
        let object = serde_json::from_value(object).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        let mut object = maintenance("m", "Drain", "drain", &selector);
        object.metadata.finalizers = Some(vec!["example.com/backup".to_owned()]);
        let all = Api::<NodeMaintenance>::all(client.clone());
        all.create(&PostParams::default(), &object).await.unwrap();
        fake.change::<NodeMaintenance>("", "m", |object| {
            object["status"] = status.clone();
            object["spec"]["stage"] = json!(stage);
        });
        let request = UndrainRequest {
            client: &client,
            nodes: &["a".to_owned()],
            query: None,
            wait: true,
            timeout: Some(Duration::from_mins(2)),
        };
        let mut lines = Vec::new();
        let undrained = undrain(&request, std::future::pending(), |line| lines.push(line.to_owned()));
        let another = async {
            sleep(Duration::from_secs(5)).await;
            let object = maintenance("n", "Drain", "drain", &named(&["a"]));
            if expected == taken_up {
                all.create(&PostParams::default(), &object).await.unwrap();
            }
        };
        let (undrained, ()) = tokio::join!(undrained, another);
        let failed = undrained.err().map(|failure| (failure.code, failure.error.to_string()));
        let timeout = "not given back within 120s; the same command again waits on";
        let timeout = (expected != taken_up).then(|| (1, timeout.to_owned()));
        assert_eq!(failed, timeout, "{expected}");
        let found = lines.iter().filter(|line| line.starts_with(expected)).count();
        assert_eq!(found, 1, "{expected}: {lines:?}");
    }
}

#[test]
fn a_node_is_given_back_without_the_annotation() {
    let returned_of = |annotations: Value, unschedulable: bool| {
        let node = json!({"metadata": {"annotations": annotations}, "spec": {"unschedulable": unschedulable}});
        returned(Some(&serde_json::from_value(node).unwrap()))
    };
    assert_eq!(returned_of(json!({CORDON_ANNOTATION: "false"}), true), None);
    assert_eq!(returned_of(json!({}), false), Some("uncordoned"));
    assert!(
        returned_of(json!({}), true)
            .unwrap()
            .starts_with("is cordoned, as it was before")
    );
    assert!(returned(None).is_some());
}

#[test]
fn a_maintenance_of_which_no_node_exists_any_more_is_named() {
    let all = [node("a", "x"), node("b", "x")];
    let maintenances = [maintenance("m", "Drain", "drain", &named(&["a", "b", "gone"]))];
    let line = |given: &[&str]| {
        let given = given.iter().map(ToString::to_string).collect();
        let endings = decide(&maintenances, &all, &given, None).unwrap();
        absent_line(&endings[0], &all)
    };
    assert_eq!(line(&["a"]), None, "b exists");
    assert_eq!(line(&["a", "b", "gone"]), None, "nothing is left");
    let left = line(&["a", "b"]).unwrap();
    assert!(left.contains("`headgate undrain gone` ends that"), "{left}");
}
